//! Events of an election, for metrics.

use crate::{ElectionName, Lost};
use std::time::Duration;

/// Receives the events of candidates. Must not block: the task that keeps the lease calls it.
pub trait Meter: Send + Sync {
    /// A candidate has entered the election. It does not lead yet.
    fn campaigns(&self, election: &ElectionName);

    /// The candidate has become the leader.
    fn leads(&self, election: &ElectionName);

    /// The candidate no longer leads.
    fn lost(&self, election: &ElectionName, loss: &Lost);

    /// A renewal of the lease, answered or not, took this long.
    fn renewed(&self, took: Duration);
}
