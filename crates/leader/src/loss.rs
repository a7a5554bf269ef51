//! The reasons for the end of leadership.

use super::coordinator::CoordinatorError;

/// Why leadership has ended. For every reason, work that was started under the token must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Loss {
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
    Superseded { token: i64 },
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

impl Loss {
    /// All labels in logs and metrics.
    pub const LABELS: [&'static str; 7] =
        ["expired", "revoked", "key_gone", "superseded", "unreachable", "refused", "resigned"];

    /// Label in logs and metrics.
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

/// The last renewal failed with this error.
impl From<CoordinatorError> for Loss {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Unreachable { reason, .. } => Loss::Unreachable { reason },
            error => Loss::Refused { reason: error.reason() },
        }
    }
}
