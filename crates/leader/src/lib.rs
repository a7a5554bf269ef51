//! Leaders: winning an election, noticing its loss, and sending the token.
//!
//! Owns campaigning, the lease and its events. Must never decide which leader may write: the storage, not this module,
//! stops a leader that does not know of its loss.

mod callbacks;
mod candidacy;
#[cfg(feature = "postgres")]
mod client;
pub mod clock;
#[cfg(feature = "command")]
pub mod command;
mod coordinator;
mod election;
mod election_name;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
mod etcd_candidacy;
mod keeper;
mod leadership;
mod lease_session;
mod loss;
mod meter;
mod patience;
#[cfg(feature = "postgres")]
mod postgres;
mod ticker;
mod timing;

pub use callbacks::Callbacks;
#[cfg(feature = "postgres")]
pub use client::{ConnectError, FencedClient};
pub use coordinator::{Candidate, Coordinator, CoordinatorError, Leader, Lease, Observe, Share, Turn};
pub use election::Election;
pub use election_name::{ElectionName, InvalidName};
pub use leadership::Leadership;
pub use lease_session::LeaseSession;
pub use loss::Loss;
pub use meter::Meter;
pub use patience::Patience;
#[cfg(feature = "postgres")]
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
