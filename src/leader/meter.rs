//! What is worth counting in an election.

use crate::etcd::ElectionName;
use std::time::Duration;

/// Whoever counts what candidates do. Must not wait: the lease is kept by the task that tells it.
pub trait Meter: Send + Sync {
    /// There is a candidate: it does not lead yet.
    fn campaigns(&self, election: &ElectionName);

    /// The candidate begins to lead, or ceases to.
    fn leads(&self, election: &ElectionName, leads: bool);

    /// A renewal of the lease took that long, answered or not.
    fn renewed(&self, took: Duration);
}
