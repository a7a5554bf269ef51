//! Leaders: winning an election, knowing when it is lost, and sending the token.
//!
//! Owns campaigning, the lease and the events around it. Must never take part in the decision who may
//! write: a leader that does not know that it has lost is stopped by the storage, not by this module.

pub mod clock;
mod leadership;
mod loss;

pub use leadership::Leadership;
pub use loss::Loss;

use crate::etcd::EtcdError;

/// Why a leader could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The coordinator did not answer, or refused.
    #[error(transparent)]
    Coordinator(#[from] EtcdError),
    /// Leadership has been lost.
    #[error("leadership is lost: {0}")]
    Lost(Loss),
}
