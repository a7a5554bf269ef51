//! The reasons why a session may not write, as the fence reports them.

use super::obstacle::Obstacle;
use super::session::{Epoch, Token};
use super::store::StoreError;
use fencegate_policy::{Issuer, Resource};

/// Why a session was not admitted. Nothing was written in any of these cases. `resource` is the resource to write, and
/// `presented` the session's token.
#[allow(missing_docs, reason = "the messages name the other fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// LF001: the epoch row has a higher token, confirmed in the database. Or etcd reports a leader with a higher token that
    /// has not raised the epoch yet.
    #[error("token {presented} for resource {resource} is lower than {}, the highest seen", highest.token)]
    Stale { resource: String, presented: Token, highest: Epoch },
    /// LF001, although the token is that of the current leader. The higher token was issued in an abandoned history, or
    /// never.
    #[error("token {presented} for resource {resource} is lower than {}, although the leader of {issuer} holds it", highest.token)]
    GoneBack { resource: String, presented: Token, highest: Epoch, issuer: Issuer },
    /// LF005: according to the current leader, the resource's issuer has not issued this token, or its lease has ended.
    #[error("token {presented} for resource {resource} was not issued to the leader of {issuer}")]
    Unissued { resource: String, presented: Token, issuer: Issuer, issued: Issued },
    /// LF003: the open transaction wrote to the resource under another token. The token was not raised.
    #[error("token {presented} for resource {resource}: the transaction has already written under token {current}")]
    WrittenUnderAnotherToken { resource: String, presented: Token, current: Token },
    /// LF004: the token is higher than the epoch's, or the first, and this write may not raise it.
    #[error("token {presented} for resource {resource} is not in force yet")]
    NotInForce {
        resource: String,
        presented: Token,
        /// The token in the database; `None` if there is none.
        highest: Option<Token>,
    },
    /// 42501: the server would refuse the statement to the session's role. The token was not raised.
    #[error("token {presented} for resource {resource}: the session's role may not do this to {what}")]
    Denied {
        resource: String,
        presented: Token,
        /// The relation or function, by its own name.
        what: String,
    },
    /// Internal: the token would have to be raised, and the session's current role must be determined first.
    #[error("resource {resource}: the session's current role is unknown")]
    RoleUnknown { resource: String },
    /// LF006: an operation on the database failed.
    #[error("resource {resource}: {error}")]
    Store {
        resource: String,
        #[source]
        error: StoreError,
    },
    /// LF006: the highest token, or the end of all processes below it, cannot be proved.
    #[error("resource {resource}: {obstacle}")]
    Unavailable {
        resource: String,
        #[source]
        obstacle: Obstacle,
    },
}

/// The last known token of a resource's issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// No token: there is no leader.
    ToNobody,
    /// The leader's token.
    ToLeader(Token),
    /// The token of a lease that was released.
    Released(Token),
    /// The token of a lease that has expired.
    Expired(Token),
}

impl Issued {
    /// The token.
    pub fn token(self) -> Option<Token> {
        match self {
            Issued::ToNobody => None,
            Issued::ToLeader(token) | Issued::Released(token) | Issued::Expired(token) => Some(token),
        }
    }
}

impl FenceError {
    /// The resource that the session was about to write.
    pub fn resource(&self) -> &str {
        match self {
            FenceError::Stale { resource, .. }
            | FenceError::GoneBack { resource, .. }
            | FenceError::Unissued { resource, .. }
            | FenceError::WrittenUnderAnotherToken { resource, .. }
            | FenceError::NotInForce { resource, .. }
            | FenceError::Denied { resource, .. }
            | FenceError::RoleUnknown { resource }
            | FenceError::Store { resource, .. }
            | FenceError::Unavailable { resource, .. } => resource,
        }
    }

    /// LF005 for a resource whose policy names an issuer.
    pub(super) fn unissued(resource: &Resource, presented: Token, issued: Issued) -> Self {
        match resource.issuer.clone() {
            Some(issuer) => FenceError::Unissued { resource: resource.name.clone(), presented, issuer, issued },
            None => FenceError::unavailable(&resource.name, Obstacle::NoIssuer),
        }
    }

    /// LF006 that names the obstacle.
    pub fn unavailable(resource: &str, obstacle: Obstacle) -> Self {
        FenceError::Unavailable { resource: resource.to_owned(), obstacle }
    }
}

/// Converts the store's error to LF006 for the resource.
pub(super) fn about<T>(resource: &Resource, answer: Result<T, StoreError>) -> Result<T, FenceError> {
    answer.map_err(|error| FenceError::Store { resource: resource.name.clone(), error })
}

/// The newer epoch for which a session's server process was terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The resource that both epochs belong to.
    pub resource: String,
    /// The session's epoch.
    pub presented: Epoch,
    /// The newer epoch.
    pub highest: Epoch,
}
