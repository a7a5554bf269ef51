//! Counters of the protocol's steps.

use prometheus::{Histogram, IntCounter, IntCounterVec};

/// Counters that the program registers.
#[derive(Clone, Debug)]
pub struct FenceMetrics {
    /// Fences that this proxy has raised and drained.
    pub advances: IntCounter,
    /// Duration of drains, in seconds.
    pub drain_seconds: Histogram,
    /// Admissions that a newer token ended, by method.
    pub drained_sessions: IntCounterVec,
    /// Sessions that were admitted to a resource.
    pub admissions: IntCounter,
}
