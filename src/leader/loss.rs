//! The reasons for the end of leadership.

use super::coordinator::CoordinatorError;

/// Why leadership has ended. Whatever the reason: what was begun under the token must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Loss {
    /// The lease ran out while we did not renew it: this process or its machine stood still.
    #[error("the lease expired: this process or machine was paused past its deadline")]
    Expired,
    /// The coordinator says, before our deadline, that the lease is gone: another client revoked it.
    #[error("the lease was revoked")]
    Revoked,
    /// Our key in the election was deleted while the lease lives.
    #[error("the leader's key was deleted")]
    KeyGone,
    /// Another candidate leads although our lease should live: the coordinator's past was rewritten, by a restore; or, with
    /// leases in PostgreSQL, ours was ended early, by hand or by the server's clock.
    #[error("another candidate leads, under token {token}")]
    Superseded { token: i64 },
    /// No renewal was answered in time.
    #[error("the coordinator did not answer in time to renew the lease: {reason}")]
    Unreachable { reason: String },
    /// The coordinator refused to renew the lease: a password or a permission was changed, for instance.
    #[error("the coordinator refused to renew the lease: {reason}")]
    Refused { reason: String },
    /// We gave it up.
    #[error("resigned")]
    Resigned,
}

impl Loss {
    /// All names in logs and metrics.
    pub const LABELS: [&'static str; 7] =
        ["expired", "revoked", "key_gone", "superseded", "unreachable", "refused", "resigned"];

    /// The name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Revoked => "revoked",
            Loss::KeyGone => "key_gone",
            Loss::Superseded { .. } => "superseded",
            Loss::Unreachable { .. } => "unreachable",
            Loss::Refused { .. } => "refused",
            Loss::Resigned => "resigned",
        }
    }
}

/// The last renewal failed so.
impl From<CoordinatorError> for Loss {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Unreachable { reason, .. } => Loss::Unreachable { reason },
            error => Loss::Refused { reason: error.reason() },
        }
    }
}
