//! The reasons why a session may not write, as the fence reports them.

use super::obstacle::Obstacle;
use super::session::{Epoch, Token};
use super::store::StoreError;
use crate::policy::{Issuer, Resource};

/// Why a session was not admitted. Nothing was written in any of these cases. `resource` is what was to be written, and
/// `presented` the session's token.
#[allow(missing_docs, reason = "the messages name the other fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// LF001: the epoch row says so, not memory alone; or etcd does, and its leader has not raised the epoch yet.
    #[error("token {presented} for resource {resource} is lower than {}, the highest seen", highest.token)]
    Stale { resource: String, presented: Token, highest: Epoch },
    /// LF001 as well: but the token is that of the election's present leader. What is higher was issued in a history that was
    /// given up, or never.
    #[error("token {presented} for resource {resource} is lower than {}, though it is the one of the leader of {issuer}", highest.token)]
    GoneBack { resource: String, presented: Token, highest: Epoch, issuer: Issuer },
    /// LF005: what issues the resource's tokens has not issued this one, as far as its leader tells; or its lease has ended.
    #[error("token {presented} for resource {resource} is not the one of the leader of {issuer}")]
    Unissued { resource: String, presented: Token, issuer: Issuer, issued: Issued },
    /// LF003: the open transaction wrote to the resource under another token. The token was not raised.
    #[error("token {presented} for resource {resource}: the transaction has already written under token {current}")]
    WrittenUnderAnotherToken { resource: String, presented: Token, current: Token },
    /// LF004: the token is higher than the epoch's, or the first, and what was to be written may not raise it.
    #[error("token {presented} for resource {resource} is not in force yet")]
    NotInForce {
        resource: String,
        presented: Token,
        /// The token in the database; `None` if there is none.
        highest: Option<Token>,
    },
    /// 42501: the server would not let the session's role do it. The token was not raised.
    #[error("token {presented} for resource {resource}: the session's role may not do this to {what}")]
    Denied {
        resource: String,
        presented: Token,
        /// The relation or function, by its own name.
        what: String,
    },
    /// Not for clients: the token would have to be raised, and as whom the session acts has to be found out first.
    #[error("resource {resource}: the session's current role is not known")]
    RoleUnknown { resource: String },
    /// LF006: the database did not do what the proof needs.
    #[error("resource {resource}: {error}")]
    Store {
        resource: String,
        #[source]
        error: StoreError,
    },
    /// LF006: there is no proof which token is the highest, or that all processes below it have ended.
    #[error("resource {resource}: {obstacle}")]
    Unavailable {
        resource: String,
        #[source]
        obstacle: Obstacle,
    },
}

/// The last token of a resource's issuer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// Nothing: nobody leads.
    ToNobody,
    /// The leader's token.
    ToLeader(Token),
    /// The token of a lease that was given up.
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

/// The remedy for LF006: who has to act, and whether retrying is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It may pass by itself.
    TryAgain,
    /// The control connection has to be opened.
    Connect,
    /// `fencegate init` has to be run: for the schema, or for the control role's privileges in it.
    Init,
    /// The schema is that of a newer program.
    Upgrade,
    /// The control role needs the privileges that are named.
    Grant,
    /// The control role has to be a superuser.
    Superuser,
    /// Sessions and control connections have to lead to the same server, without anything in between.
    SameServer,
    /// This proxy has to load the policies that the others have.
    Reload,
    /// The processes that are named have to end.
    EndThem,
    /// etcd has to answer.
    Etcd,
    /// The transaction has to be split.
    Split,
    /// A timeout of the server was about to end the session: this setting.
    ServerTimeout(&'static str),
}

/// A reason with the descriptions of its blockers.
pub(super) fn named(how: &str, by: &[Blocker]) -> String {
    let who: Vec<_> = by.iter().map(|blocker| blocker.who.as_str()).collect();
    format!("{how}: {}", who.join("; "))
}

/// A process, or a prepared transaction, that blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its description, for messages.
    pub who: String,
    /// Its query; empty for a prepared transaction.
    pub query: String,
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

/// The store's answer about a resource, or LF006.
pub(super) fn about<T>(resource: &Resource, answer: Result<T, StoreError>) -> Result<T, FenceError> {
    answer.map_err(|error| FenceError::Store { resource: resource.name.clone(), error })
}

/// The newer epoch for which a session's server process had to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The resource that both epochs belong to.
    pub resource: String,
    /// The session's epoch.
    pub presented: Epoch,
    /// The newer one.
    pub highest: Epoch,
}
