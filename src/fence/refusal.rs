//! What a session is told when it may not write.

use super::session::{Epoch, Token};
use super::store::StoreError;
use crate::policy::Resource;
use std::fmt;

/// Why a session was not admitted. Nothing was written in any of these cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// LF001: the epoch row says so, not memory alone; or etcd does, and its leader has not raised the epoch yet.
    #[error("token {presented} for resource {resource} is lower than {}, the highest seen", highest.token)]
    Stale {
        /// What was to be written.
        resource: String,
        /// The session's token.
        presented: Token,
        /// What the database holds, or what the election's leader will raise it to.
        highest: Epoch,
    },
    /// LF005: the election that issues the resource's tokens has not issued this one, as far as its leader tells.
    #[error("token {presented} for resource {resource} is not the one of the leader of {election}")]
    Unissued {
        /// What was to be written.
        resource: String,
        /// The session's token.
        presented: Token,
        /// Who was asked.
        election: String,
        /// The leader's token, which is lower; None: nobody leads.
        issued: Option<Token>,
    },
    /// LF003: the open transaction wrote to the resource under another token. The token was not raised.
    #[error("token {presented} for resource {resource}: the transaction has already written under token {current}")]
    WrittenUnderAnotherToken {
        /// What was to be written.
        resource: String,
        /// The session's token.
        presented: Token,
        /// The token under which the transaction wrote.
        current: Token,
    },
    /// LF004: the token is higher than the epoch's, or the first, and what was to be written may not raise it.
    #[error("token {presented} for resource {resource} is not in force yet")]
    NotInForce {
        /// What may be written.
        resource: String,
        /// The session's token.
        presented: Token,
        /// What the database holds; None: nothing yet.
        highest: Option<Token>,
    },
    /// 42501: the server would not let the session's role do it. The token was not raised.
    #[error("token {presented} for resource {resource}: the session's role may not do this to {what}")]
    Denied {
        /// What was to be written.
        resource: String,
        /// The session's token.
        presented: Token,
        /// The relation or function, by its own name.
        what: String,
    },
    /// Not for clients: the token would have to be raised, and as whom the session acts has to be found out first.
    #[error("resource {resource}: the session's current role is not known")]
    RoleUnknown {
        /// What was to be written.
        resource: String,
    },
    /// LF006: it cannot be proved which token is the highest, or that everybody below it has ended.
    #[error("resource {resource}: {hindrance}")]
    Unavailable {
        /// What was to be written.
        resource: String,
        /// What is in the way.
        hindrance: Hindrance,
        /// What those run who are in the way, for the client only: it may hold values, which no log may.
        queries: String,
    },
}

/// What keeps a fence from being proved, or a catalogue from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// What it is, for the log.
    pub reason: String,
    /// The same for clients, who may be anybody, where the reason says what is not for them: who the control role is.
    told: Option<String>,
    /// What helps.
    pub remedy: Remedy,
}

/// What helps against a [`Hindrance`]; its words are the proxy's.
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
    /// Those who are named have to end.
    EndThem,
    /// etcd has to answer.
    Etcd,
    /// The transaction has to be split.
    Split,
}

impl Hindrance {
    /// What it is, and what helps.
    pub fn new(reason: impl Into<String>, remedy: Remedy) -> Self {
        Hindrance { reason: reason.into(), told: None, remedy }
    }

    /// With these words for clients.
    pub(super) fn told(self, words: Option<String>) -> Self {
        Hindrance { told: words, ..self }
    }

    /// With more words, for everybody.
    pub(super) fn and(self, words: &str) -> Self {
        Hindrance { reason: self.reason + words, told: self.told.map(|told| told + words), ..self }
    }

    /// What it is, for clients.
    pub fn public_reason(&self) -> &str {
        self.told.as_deref().unwrap_or(&self.reason)
    }
}

/// It may pass by itself.
impl<T: Into<String>> From<T> for Hindrance {
    fn from(reason: T) -> Self {
        Hindrance::new(reason, Remedy::TryAgain)
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

/// Somebody who is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Who it is, for people.
    pub who: String,
    /// What they run; empty where it is no process.
    pub query: String,
}

impl Refusal {
    /// What was to be written.
    pub fn resource(&self) -> &str {
        match self {
            Refusal::Stale { resource, .. }
            | Refusal::Unissued { resource, .. }
            | Refusal::WrittenUnderAnotherToken { resource, .. }
            | Refusal::NotInForce { resource, .. }
            | Refusal::Denied { resource, .. }
            | Refusal::RoleUnknown { resource }
            | Refusal::Unavailable { resource, .. } => resource,
        }
    }

    /// LF006 with what is in the way.
    pub fn unavailable(resource: &str, hindrance: impl Into<Hindrance>) -> Self {
        Refusal::Unavailable { resource: resource.to_owned(), hindrance: hindrance.into(), queries: String::new() }
    }

    /// LF006, since the database did not answer.
    pub(super) fn of_store(resource: &str, error: StoreError) -> Self {
        match error {
            StoreError::Obstructed(by) => Refusal::obstructed(resource, "its lock is held by", &by),
            StoreError::Unprepared(hindrance) | StoreError::Unavailable(hindrance) => {
                Refusal::unavailable(resource, hindrance)
            }
        }
    }

    /// LF006 with who is in the way.
    pub(super) fn obstructed(resource: &str, how: &str, by: &[Obstacle]) -> Self {
        let who: Vec<_> = by.iter().map(|obstacle| obstacle.who.as_str()).collect();
        let queries = by.iter().map(|obstacle| obstacle.query.as_str()).filter(|query| !query.is_empty());
        Refusal::Unavailable {
            resource: resource.to_owned(),
            hindrance: Hindrance::new(format!("{how}: {}", who.join("; ")), Remedy::EndThem),
            queries: queries.collect::<Vec<_>>().join("; "),
        }
    }
}

/// What the store has answered about a resource, or LF006.
pub(super) fn about<T>(resource: &Resource, answer: Result<T, StoreError>) -> Result<T, Refusal> {
    answer.map_err(|error| Refusal::of_store(&resource.name, error))
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
