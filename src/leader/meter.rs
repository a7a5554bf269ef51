//! The events of an election for metrics.

use super::loss::Loss;
use crate::etcd::ElectionName;
use std::time::Duration;

/// Receives the events of candidates. Must not block: the task that keeps the lease calls it.
pub trait Meter: Send + Sync {
    /// There is a candidate: it does not lead yet.
    fn campaigns(&self, election: &ElectionName);

    /// The candidate begins to lead.
    fn leads(&self, election: &ElectionName);

    /// It has ceased to lead.
    fn lost(&self, election: &ElectionName, loss: &Loss);

    /// A renewal of the lease took that long, answered or not.
    fn renewed(&self, took: Duration);
}
