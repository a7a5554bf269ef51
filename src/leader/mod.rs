//! Leaders: winning an election, noticing its loss, and sending the token.
//!
//! Owns campaigning, the lease and its events. Must never decide which leader may write: the storage, not this module,
//! stops a leader that does not know of its loss.

mod callbacks;
mod candidacy;
mod client;
pub mod clock;
#[cfg(feature = "proxy")]
pub mod command;
mod coordinator;
mod election;
mod etcd;
mod keeper;
mod leadership;
mod lease_session;
mod loss;
mod meter;
#[cfg(feature = "proxy")]
mod metrics;
mod postgres;
mod ticker;
mod timing;

pub use callbacks::Callbacks;
pub use client::{ConnectError, FencedClient};
pub use coordinator::{Candidate, Coordinator, CoordinatorError, Lease, Observe, Share, Turn};
pub use election::Election;
pub use leadership::Leadership;
pub use lease_session::LeaseSession;
pub use loss::Loss;
pub use meter::Meter;
#[cfg(feature = "proxy")]
pub use metrics::LeaderMetrics;
pub use postgres::{Connect, LeaseObserver, Leases, RunningLease};
pub use ticker::{Tick, Ticker};
pub use timing::{InvalidTimings, Timings};

/// Why a leader's request failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The coordinator did not answer or refused.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// Leadership has been lost.
    #[error("leadership was lost: {0}")]
    Lost(Loss),
}
