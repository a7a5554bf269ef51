//! The reasons why a session may not write, and the errors that clients receive for them.

use super::obstacle::{Blocker, Obstacle, Remedy};
use super::session::{Epoch, Token};
use super::store::StoreError;
use fencegate_policy::{Issuer, Resource};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use fencegate_wire::error::ErrorText;

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

impl ClientError for FenceError {
    fn kind(&self) -> ErrorKind {
        match self {
            FenceError::Stale { .. } | FenceError::GoneBack { .. } => ErrorKind::Stale,
            FenceError::WrittenUnderAnotherToken { .. } => ErrorKind::Invalid,
            FenceError::NotInForce { .. } => ErrorKind::Unverifiable,
            FenceError::Unissued { .. } => ErrorKind::Unissued,
            FenceError::Denied { .. } => ErrorKind::Denied,
            FenceError::RoleUnknown { .. } | FenceError::Store { .. } | FenceError::Unavailable { .. } => {
                ErrorKind::Unavailable
            }
        }
    }

    fn log_reason(&self) -> String {
        match self {
            FenceError::Store { error, .. } => error.log_reason(),
            FenceError::Unavailable { obstacle, .. } => obstacle.to_string(),
            other => other.text().message,
        }
    }

    fn text(&self) -> ErrorText {
        match self {
            FenceError::Stale { resource, presented, highest } => stale(resource, *presented, highest.token)
                .detail(format!("resource={resource} presented={presented} highest={}", highest.token))
                .hint("A newer leader has taken over. Stop this work, and campaign again before further writes."),
            FenceError::GoneBack { resource, presented, highest, issuer } => {
                let highest = highest.token;
                let message = format!(
                    "tokens have gone back: the leader of {issuer} holds {presented}, and the fence of resource \"{resource}\" is at {highest}"
                );
                ErrorText::new("LF001", message)
                    .detail(format!("resource={resource} presented={presented} highest={highest}"))
                    .hint(format!("This leader cannot write until an operator lowers the fence. When no leader of the lost history is running, run FENCE RESET {resource} TO {presented} in the proxy's console."))
            }
            FenceError::WrittenUnderAnotherToken { resource, presented, current } => {
                ErrorText::new("LF003", format!("this transaction has already written to resource \"{resource}\" under token {current}"))
                    .detail(format!("resource={resource} presented={presented} highest={current}"))
                    .hint("Change the token between transactions, not within one.")
            }
            FenceError::NotInForce { resource, presented, highest } => {
                let message = format!("cannot determine what this statement writes, and token {presented} for resource \"{resource}\" is not in force yet");
                let highest = highest.map(|token| format!(" highest={token}")).unwrap_or_default();
                ErrorText::new("LF004", message)
                    .detail(format!("resource={resource} presented={presented}{highest}"))
                    .hint("First write to a table of the resource by name, or lock it (LOCK TABLE, SELECT ... FOR UPDATE). That statement puts the token in force.")
            }
            FenceError::Unissued { resource, presented, issuer, issued } => unissued(resource, *presented, issuer, *issued),
            FenceError::Denied { resource, presented, what } => {
                ErrorText::new("42501", format!("permission denied for {what}"))
                    .detail(format!("resource={resource} presented={presented}"))
                    .hint("Only a role with this privilege can raise the token. Privileges and objects of the open transaction count only after it has committed.")
            }
            // Sessions query the server for the role. Only callers that cannot do so get here.
            FenceError::RoleUnknown { resource } => {
                unavailable(resource, "the session's current role is unknown", &[], Remedy::TryAgain)
            }
            FenceError::Store { resource, error } => {
                unavailable(resource, &error.text().message, error.blockers(), error.remedy())
            }
            FenceError::Unavailable { resource, obstacle } => {
                unavailable(resource, &obstacle.to_string(), obstacle.blockers(), obstacle.remedy())
            }
        }
    }
}

impl FenceError {
    /// The token presented and the highest one, as in the error's DETAIL.
    pub fn tokens(&self) -> (Option<Token>, Option<Token>) {
        match self {
            FenceError::Stale { presented, highest, .. } | FenceError::GoneBack { presented, highest, .. } => {
                (Some(*presented), Some(highest.token))
            }
            FenceError::WrittenUnderAnotherToken { presented, current, .. } => (Some(*presented), Some(*current)),
            FenceError::NotInForce { presented, highest, .. } => (Some(*presented), *highest),
            FenceError::Unissued { presented, issued, .. } => (Some(*presented), issued.token()),
            FenceError::Denied { presented, .. } => (Some(*presented), None),
            FenceError::RoleUnknown { .. } | FenceError::Store { .. } | FenceError::Unavailable { .. } => (None, None),
        }
    }
}

/// LF001, without DETAIL and HINT.
pub fn stale(resource: &str, presented: Token, highest: Token) -> ErrorText {
    let message = format!("fencing token {presented} for resource \"{resource}\" is stale: the highest is {highest}");
    ErrorText::new("LF001", message)
}

/// LF006. Only clients see the blockers' queries: these may contain values, which must not be logged.
fn unavailable(resource: &str, reason: &str, blockers: &[Blocker], remedy: Remedy) -> ErrorText {
    let queries: Vec<_> = blockers.iter().map(|it| it.query.as_str()).filter(|query| !query.is_empty()).collect();
    let queries = if queries.is_empty() { String::new() } else { format!(", query: {}", queries.join("; ")) };
    let message = format!("cannot prove which token for resource \"{resource}\" is the highest: {reason}{queries}");
    ErrorText::new("LF006", message).detail(format!("resource={resource}")).hint(remedy.hint())
}

fn unissued(resource: &str, presented: Token, issuer: &Issuer, issued: Issued) -> ErrorText {
    let is_its = issued.token() == Some(presented);
    let why = match issued {
        Issued::ToNobody => format!("was not issued: {issuer} has no leader"),
        Issued::ToLeader(token) => format!("was not issued: the leader of {issuer} holds {token}"),
        Issued::Released(_) if is_its => format!("is no longer in force: {issuer} was released"),
        Issued::Expired(_) if is_its => format!("is no longer in force: {issuer} has expired"),
        Issued::Released(token) => format!("was not issued: {issuer} was released, and its last token was {token}"),
        Issued::Expired(token) => format!("was not issued: {issuer} has expired, and its last token was {token}"),
    };
    // The highest token known to be issued.
    let highest = issued.token().map(|token| format!(" highest={token}")).unwrap_or_default();
    let hint = match issuer {
        Issuer::Election(_) => {
            "Send the create_revision of your own key while it leads the election. If it no longer leads, stop this work and campaign again."
        }
        Issuer::Lease(_) => {
            "Send the token that fencegate.acquire returned, after that transaction has committed and while the lease lasts. If you no longer lead, stop this work and acquire the lease again."
        }
    };
    ErrorText::new("LF005", format!("fencing token {presented} for resource \"{resource}\" {why}"))
        .detail(format!("resource={resource} presented={presented}{highest}"))
        .hint(hint)
}
