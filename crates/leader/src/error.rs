//! Why a request about an election failed.

use crate::ElectionName;
use crate::lost::Lost;
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
