//! The errors that clients receive when the fence refuses a write.

use super::blocker::Blocker;
use super::fence_error::{FenceError, Issued};
use super::remedy::Remedy;
use super::session::Token;
use fencegate_policy::Issuer;
use fencegate_wire::client_error::{ClientError, ErrorKind};
use fencegate_wire::error::ErrorText;

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
                .hint("A newer leader has taken over. Stop this work; campaign again before you write again."),
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
