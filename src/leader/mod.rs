//! Leaders: winning an election, knowing when it is lost, and sending the token.
//!
//! Owns campaigning, the lease and the events around it. Must never decide which leader may write:
//! the storage stops a leader that does not know that it has lost, not this module.

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
mod loss;
mod meter;
#[cfg(feature = "proxy")]
mod metrics;
mod postgres;
mod session;
mod ticker;
mod timing;

pub use callbacks::Callbacks;
pub use client::{ConnectError, FencedClient};
pub use coordinator::{Candidate, Coordinator, CoordinatorError, Lease, Observe, Share, Turn};
pub use election::Election;
pub use leadership::Leadership;
pub use loss::Loss;
pub use meter::Meter;
#[cfg(feature = "proxy")]
pub use metrics::LeaderMetrics;
pub use postgres::{Connect, LeaseObserver, Leases, RunningLease};
pub use session::Session;
pub use ticker::{Tick, Ticker};
pub use timing::{InvalidTimings, Timings};

/// Why a leader could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The coordinator did not answer, or refused.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// Leadership has been lost.
    #[error("leadership is lost: {0}")]
    Lost(Loss),
}
