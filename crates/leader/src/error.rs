//! Why a request about an election failed, and why leadership ended.

use crate::{ElectionName, Token};
use std::time::Duration;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Error {
    /// No response in time. Whether the request took effect is unknown.
    #[error("the coordinator did not answer within {limit:?}: {reason}")]
    Unreachable { limit: Duration, reason: String },
    /// The coordinator refused the request.
    #[error("the coordinator refused: {reason}")]
    Refused { reason: String },
    /// One election's keys are among the keys of another: the outer election would wait for the inner one's leader.
    #[error("the election {election} shares keys with another one, which has {key}: elections must not be nested")]
    Nested { election: ElectionName, key: String },
    /// The candidate has lost its place: its lease ended, or another client removed it from the queue.
    #[error("the candidate has lost its lease or its place in the queue")]
    Gone,
    /// Leadership has been lost.
    #[error("leadership was lost: {0}")]
    Lost(Lost),
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::Lost(lost)
    }
}

impl Error {
    /// True if a new campaign, or the same observation, may succeed without a change by an operator.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Gone => true,
            Error::Refused { .. } | Error::Nested { .. } => false,
            Error::Lost(lost) => lost.is_retryable(),
        }
    }

    /// The reason of the failure, without the coordinator's name.
    pub(crate) fn reason(self) -> String {
        match self {
            Error::Unreachable { reason, .. } | Error::Refused { reason } => reason,
            error => error.to_string(),
        }
    }
}

/// Why leadership has ended. For every reason, work that was started under the token must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Lost {
    /// The lease expired because it was not renewed: this process or its machine was suspended.
    #[error("the lease expired: this process or machine was paused past its deadline")]
    Expired,
    /// The coordinator reports before the deadline that the lease has ended: another client revoked it.
    #[error("the lease was revoked")]
    Revoked,
    /// This candidate's key was deleted while the lease lives.
    #[error("the leader's key was deleted")]
    KeyGone,
    /// Another candidate leads although this lease should live: the coordinator was restored from a backup, or, with
    /// leases in PostgreSQL, the lease was ended early, by hand or by the server's clock.
    #[error("another candidate leads, under token {token}")]
    Superseded { token: Token },
    /// No renewal was answered in time.
    #[error("the coordinator did not answer in time to renew the lease: {reason}")]
    Unreachable { reason: String },
    /// The coordinator refused to renew the lease, for example because a password or permission was changed.
    #[error("the coordinator refused to renew the lease: {reason}")]
    Refused { reason: String },
    /// The leader resigned.
    #[error("resigned")]
    Resigned,
}

impl Lost {
    /// All labels in logs and metrics.
    pub const LABELS: [&'static str; 7] =
        ["expired", "revoked", "key_gone", "superseded", "unreachable", "refused", "resigned"];

    /// Label in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Lost::Expired => "expired",
            Lost::Revoked => "revoked",
            Lost::KeyGone => "key_gone",
            Lost::Superseded { .. } => "superseded",
            Lost::Unreachable { .. } => "unreachable",
            Lost::Refused { .. } => "refused",
            Lost::Resigned => "resigned",
        }
    }

    /// True if a new campaign may succeed without a change by an operator.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Lost::Refused { .. })
    }

    /// True if the lease was not renewed in time, so it may live until its deadline.
    pub(crate) fn is_unrenewed(&self) -> bool {
        matches!(self, Lost::Expired | Lost::Unreachable { .. } | Lost::Refused { .. })
    }

    /// The loss of a lease whose last renewal failed with this error.
    pub(crate) fn unrenewed(failure: Error) -> Self {
        match failure {
            Error::Unreachable { reason, .. } => Lost::Unreachable { reason },
            error => Lost::Refused { reason: error.reason() },
        }
    }
}
