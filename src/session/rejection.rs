//! The reasons for a rejection, and their error messages.
//!
//! Every text that a user reads because of a fence is here, and only here.

use crate::fence::session::{Epoch, Token};
use crate::fence::value::InvalidValue;
use crate::fence::{Cause, Issued, Refusal, Remedy};
use crate::policy::{Issuer, QualifiedName};
use crate::statement::{OpaqueReason, StatementKind};
use crate::wire::error::{ErrorText, start_of};

/// A reason to reject a statement or to end a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// LF001.
    Stale { resource: String, presented: Token, highest: Token },
    /// LF001: of the present leader, whose token is lower than the fence's.
    GoneBack { resource: String, presented: Token, highest: Token, issuer: Issuer },
    /// LF002; `named`: the resources that the session's list names instead; `by_bare_name`: the fenced table that the
    /// statement may mean by a name without a schema.
    Missing { resource: String, named: Vec<String>, by_bare_name: Option<QualifiedName> },
    /// LF003: the text of a SET or of a startup parameter.
    InvalidSetting { why: InvalidValue, value: String },
    /// LF003: a function or a default set it.
    InvalidValue { resource: String },
    /// LF003: the transaction wrote under another token.
    TwoTokens { resource: String, presented: Token, written: Token },
    /// LF003: a string of statements would write under another token than it, or what is open, has before.
    TwoTokensAtOnce { resource: String, presented: Token, written: Token },
    /// LF004.
    Unverifiable { why: String, hint: &'static str },
    /// LF004: PREPARE TRANSACTION would carry this out of the session.
    CarriedOut { what: &'static str, hint: &'static str },
    /// LF004: which resources of a keyed one it would write.
    UnknownKey { resource: String, why: String, hint: &'static str, by_bare_name: Option<QualifiedName> },
    /// LF004: the statement may not raise the token; `highest` is what is in force.
    NotInForce { resource: String, presented: Token, highest: Option<Token> },
    /// LF005.
    Unissued { resource: String, presented: Token, issuer: Issuer, issued: Issued },
    /// 42501, as the server would say: the session's role may not do it.
    Denied { resource: String, presented: Token, what: String },
    /// 42501, as the server would say: the session's role may not drop, rename or move the database.
    NotOwner { database: String },
    /// LF006.
    Unavailable { resource: String, cause: Cause, queries: String },
    /// LF006: the statement was not held until it could be judged.
    NoRoom,
    /// LF006: what the statement names may be a way to a fenced table. `why`: the last reading failed.
    UnreadCatalogue { why: Option<Cause> },
}

/// How the transaction of a session ended that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOffOutcome {
    /// Nothing was in flight: what was open is rolled back.
    RolledBack,
    /// A statement or a COMMIT was in flight.
    Unknown,
}

impl CutOffOutcome {
    /// As in the error's DETAIL.
    pub fn name(self) -> &'static str {
        match self {
            CutOffOutcome::RolledBack => "rolled_back",
            CutOffOutcome::Unknown => "unknown",
        }
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Stale { resource, presented, highest } => {
                Rejection::Stale { resource, presented, highest: highest.token }
            }
            Refusal::GoneBack { resource, presented, highest, issuer } => {
                Rejection::GoneBack { resource, presented, highest: highest.token, issuer }
            }
            Refusal::WrittenUnderAnotherToken { resource, presented, current } => {
                Rejection::TwoTokens { resource, presented, written: current }
            }
            Refusal::Unissued { resource, presented, issuer, issued } => {
                Rejection::Unissued { resource, presented, issuer, issued }
            }
            Refusal::NotInForce { resource, presented, highest } => {
                Rejection::NotInForce { resource, presented, highest }
            }
            Refusal::Denied { resource, presented, what } => Rejection::Denied { resource, presented, what },
            // Only a caller that cannot find the role out gets here: others ask the server for it.
            Refusal::RoleUnknown { resource } => {
                let cause = "the session's current role is not known".into();
                Rejection::Unavailable { resource, cause, queries: String::new() }
            }
            Refusal::Unavailable { resource, cause, queries } => Rejection::Unavailable { resource, cause, queries },
        }
    }
}

impl Rejection {
    /// The verdict's name in logs and metrics.
    pub fn verdict(&self) -> &'static str {
        match self {
            Rejection::Stale { .. } | Rejection::GoneBack { .. } => "stale",
            Rejection::Missing { .. } => "missing",
            Rejection::InvalidSetting { .. }
            | Rejection::InvalidValue { .. }
            | Rejection::TwoTokens { .. }
            | Rejection::TwoTokensAtOnce { .. } => "invalid",
            Rejection::Unverifiable { .. }
            | Rejection::CarriedOut { .. }
            | Rejection::UnknownKey { .. }
            | Rejection::NotInForce { .. } => "unverifiable",
            Rejection::Unissued { .. } => "unissued",
            Rejection::Denied { .. } | Rejection::NotOwner { .. } => "denied",
            Rejection::Unavailable { .. } | Rejection::NoRoom | Rejection::UnreadCatalogue { .. } => "unavailable",
        }
    }

    /// The resource that it is about, if it is about one.
    pub fn resource(&self) -> Option<&str> {
        match self {
            Rejection::Stale { resource, .. }
            | Rejection::GoneBack { resource, .. }
            | Rejection::Missing { resource, .. }
            | Rejection::InvalidValue { resource }
            | Rejection::TwoTokens { resource, .. }
            | Rejection::TwoTokensAtOnce { resource, .. }
            | Rejection::UnknownKey { resource, .. }
            | Rejection::NotInForce { resource, .. }
            | Rejection::Unissued { resource, .. }
            | Rejection::Denied { resource, .. }
            | Rejection::Unavailable { resource, .. } => Some(resource),
            Rejection::InvalidSetting { .. }
            | Rejection::Unverifiable { .. }
            | Rejection::CarriedOut { .. }
            | Rejection::NotOwner { .. }
            | Rejection::NoRoom
            | Rejection::UnreadCatalogue { .. } => None,
        }
    }

    /// The token presented and the highest one, as in the error's DETAIL.
    pub fn tokens(&self) -> (Option<Token>, Option<Token>) {
        match self {
            Rejection::Stale { presented, highest, .. } | Rejection::GoneBack { presented, highest, .. } => {
                (Some(*presented), Some(*highest))
            }
            Rejection::TwoTokens { presented, written, .. } | Rejection::TwoTokensAtOnce { presented, written, .. } => {
                (Some(*presented), Some(*written))
            }
            Rejection::NotInForce { presented, highest, .. } => (Some(*presented), *highest),
            Rejection::Unissued { presented, issued, .. } => (Some(*presented), issued.token()),
            Rejection::Denied { presented, .. } => (Some(*presented), None),
            _ => (None, None),
        }
    }

    /// The rejected statement ends the transaction even when it fails: the server rolls that back. Of the statements that end a
    /// transaction, only PREPARE TRANSACTION is ever rejected.
    pub fn ends_transaction(&self) -> bool {
        matches!(self, Rejection::CarriedOut { .. })
    }

    /// The reason, for the log: without any part of a statement.
    pub fn reason(&self) -> String {
        match self {
            Rejection::Unavailable { cause, .. } => cause.reason.clone(),
            Rejection::UnreadCatalogue { why: Some(why) } => format!("the catalogue cannot be read: {why}"),
            other => other.text().message,
        }
    }

    /// The error for the client.
    pub fn text(&self) -> ErrorText {
        match self {
            Rejection::Stale { resource, presented, highest } => stale(resource, *presented, *highest)
                .detail(format!("resource={resource} presented={presented} highest={highest}"))
                .hint("A newer leader has taken over. Stop this work; campaign again before you write again."),
            Rejection::GoneBack { resource, presented, highest, issuer } => {
                let message = format!(
                    "tokens have gone back: the leader of {issuer} holds {presented}, and the fence of resource \"{resource}\" is at {highest}"
                );
                ErrorText::new("LF001", message)
                    .detail(format!("resource={resource} presented={presented} highest={highest}"))
                    .hint(format!("You lead, and cannot write until an operator lowers the fence: FENCE RESET {resource} TO {presented} in the proxy's console, once no leader of the lost history runs any more."))
            }
            Rejection::Missing { resource, named, by_bare_name } => {
                ErrorText::new("LF002", format!("resource \"{resource}\" is fenced, and this session has no token for it"))
                    .detail(format!("resource={resource}"))
                    .hint(what_is_missing(named, by_bare_name.as_ref()))
            }
            Rejection::InvalidSetting { why, value } => {
                let shown = start_of(value, LONGEST_SHOWN);
                let rest = if shown.len() < value.len() { "..." } else { "" };
                ErrorText::new("LF003", format!("invalid value for parameter \"lease.fence\": {why}"))
                    .detail(format!("value={shown:?}{rest}"))
                    .hint(FORMS)
            }
            Rejection::InvalidValue { resource } => {
                ErrorText::new("LF003", "the session's value of \"lease.fence\" is not a fencing token")
                    .detail(format!("resource={resource}"))
                    .hint(FORMS)
            }
            Rejection::TwoTokens { resource, presented, written } => {
                ErrorText::new("LF003", format!("this transaction has already written to resource \"{resource}\" under token {written}"))
                    .detail(format!("resource={resource} presented={presented} highest={written}"))
                    .hint("Change the token between transactions, not within one.")
            }
            Rejection::TwoTokensAtOnce { resource, presented, written } => {
                ErrorText::new("LF003", format!("one string of statements cannot write to resource \"{resource}\" under token {written} and then {presented}"))
                    .detail(format!("resource={resource} presented={presented} highest={written}"))
                    .hint("Send the statement that ends the transaction, and what follows it, each in a string of its own.")
            }
            Rejection::Unverifiable { why, hint } => {
                ErrorText::new("LF004", format!("cannot tell what this statement would write: {why}")).hint(*hint)
            }
            Rejection::CarriedOut { what, hint } => {
                let message = format!("a prepared transaction would carry {what} to a fenced table out of this session");
                ErrorText::new("LF004", message).hint(*hint)
            }
            Rejection::UnknownKey { resource, why, hint, by_bare_name } => {
                ErrorText::new("LF004", format!("cannot tell what this statement would write: {why}"))
                    .detail(format!("resource={resource}"))
                    .hint(what_is_meant(by_bare_name.as_ref()) + hint)
            }
            Rejection::NotInForce { resource, presented, highest } => {
                let message = format!("cannot tell what this statement would write, and token {presented} for resource \"{resource}\" is not in force yet");
                let highest = highest.map(|token| format!(" highest={token}")).unwrap_or_default();
                ErrorText::new("LF004", message)
                    .detail(format!("resource={resource} presented={presented}{highest}"))
                    .hint("A statement that names a table of the resource puts its token in force: write to one first, or lock it (LOCK TABLE, SELECT ... FOR UPDATE).")
            }
            Rejection::Unissued { resource, presented, issuer, issued } => unissued(resource, *presented, issuer, *issued),
            Rejection::Denied { resource, presented, what } => {
                ErrorText::new("42501", format!("permission denied for {what}"))
                    .detail(format!("resource={resource} presented={presented}"))
                    .hint("Only a role that may do this can raise the token. What the open transaction has granted or made counts once it is committed.")
            }
            Rejection::NotOwner { database } => {
                ErrorText::new("42501", format!("must be owner of database {database}"))
            }
            Rejection::NoRoom => {
                ErrorText::new("LF006", format!("cannot tell whether this statement writes a fenced table: {}", OpaqueReason::NoRoom))
                    .hint("Nothing was written. Try again; a statement that was prepared has to be prepared again.")
            }
            Rejection::UnreadCatalogue { why } => {
                let reason = match why {
                    Some(why) => format!("the catalogue cannot be read: {}", why.public_reason()),
                    None => "the catalogue may have changed and could not be read in time".to_owned(),
                };
                let remedy = why.as_ref().map_or(Remedy::TryAgain, |why| why.remedy);
                ErrorText::new("LF006", format!("cannot tell whether this statement writes a fenced table: {reason}"))
                    .hint(what_helps(remedy))
            }
            Rejection::Unavailable { resource, cause, queries } => {
                let reason = cause.public_reason();
                let queries = if queries.is_empty() { String::new() } else { format!(", query: {queries}") };
                ErrorText::new("LF006", format!("cannot prove which token for resource \"{resource}\" is the highest: {reason}{queries}"))
                    .detail(format!("resource={resource}"))
                    .hint(what_helps(cause.remedy))
            }
        }
    }
}

/// Of a value that is shown, in bytes.
const LONGEST_SHOWN: usize = 60;

/// The most resources that an error names.
const MOST_NAMED: usize = 10;

/// The hint of LF002.
fn what_is_missing(named: &[String], by_bare_name: Option<&QualifiedName>) -> String {
    let mut hint = what_is_meant(by_bare_name);
    if !named.is_empty() {
        let rest = if named.len() > MOST_NAMED { ", ..." } else { "" };
        hint += &format!("lease.fence names only {}{rest}. ", named[..named.len().min(MOST_NAMED)].join(", "));
    }
    hint + "SET lease.fence to the fencing token that the leader election gave, or connect with options=-clease.fence=TOKEN."
}

/// Before the hint of a statement that names its table without a schema.
fn what_is_meant(by_bare_name: Option<&QualifiedName>) -> String {
    let meant = |table: &QualifiedName| {
        format!(
            "The statement names no schema, and may mean {table}: name the schema if it means another table, \
             pg_temp for a temporary one. "
        )
    };
    by_bare_name.map(meant).unwrap_or_default()
}

/// The hint of LF006.
fn what_helps(remedy: Remedy) -> String {
    let what = match remedy {
        Remedy::ServerTimeout(setting) => {
            return format!("Nothing was written. Retry. To let writes wait longer, raise {setting}.");
        }
        Remedy::TryAgain => "Retry. If the error persists, see the proxy's log.",
        Remedy::Connect => {
            "Retry. If the error persists, check that the server is up and that the proxy's `control` setting and its \
             password are correct. The proxy's log has the details."
        }
        Remedy::Init => {
            "Retrying will not help. Run fencegate init --control URL --role ROLE, \
             with a superuser's URL of this database and the proxy's control role."
        }
        Remedy::Upgrade => {
            "Retrying will not help. The database was prepared for a newer version: upgrade this proxy, \
             or go back with the fencegate init of its version."
        }
        Remedy::Grant => "Retrying will not help. Run the GRANT as a superuser.",
        Remedy::Superuser => {
            "Retrying will not help. Give the proxy a superuser as its control role, or write as a role that is not a superuser."
        }
        Remedy::SameServer => {
            "Connect again. If the error persists, check that the proxy's `upstream` and `control` settings lead to the \
             same server, without a pooler in between."
        }
        Remedy::Reload => {
            "Retrying will not help. Give this proxy the policies that the others have, and reload it \
             (SIGHUP, or RELOAD in its console)."
        }
        Remedy::EndThem => {
            "Retry. If the error persists, end them on the server: pg_terminate_backend, or ROLLBACK PREPARED for what is prepared."
        }
        Remedy::Etcd => {
            "Retry. If the error persists, check that etcd is reachable and that the proxy's `etcd` setting is correct."
        }
        Remedy::Split => "Write to fewer resources in one transaction.",
    };
    format!("Nothing was written. {what}")
}

const FORMS: &str =
    "Use one token, SET lease.fence = 47, or a list by resource, SET lease.fence = 'scheduler=47, billing=55'.";

/// The error for a session that a newer token has cut off.
pub fn cut_off(resource: &str, presented: Epoch, highest: Epoch, outcome: CutOffOutcome) -> ErrorText {
    let is_reset = highest.generation > presented.generation;
    let (presented, highest) = (presented.token, highest.token);
    let (text, reason) = if is_reset {
        let message = format!(
            "the fence of resource \"{resource}\" was reset since token {presented} was admitted, and is at {highest}"
        );
        (ErrorText::new("LF001", message), "An operator has reset the fence")
    } else {
        (stale(resource, presented, highest), "A newer leader has taken over")
    };
    let outcome = outcome.name();
    text.detail(format!("resource={resource} presented={presented} highest={highest} outcome={outcome}")).hint(format!(
        "{reason} and this session was cut off. Stop this work; campaign again before you connect again."
    ))
}

fn unissued(resource: &str, presented: Token, issuer: &Issuer, issued: Issued) -> ErrorText {
    let is_its = issued.token() == Some(presented);
    let why = match issued {
        Issued::ToNobody => format!("was not issued: nobody leads {issuer}"),
        Issued::ToLeader(token) => format!("was not issued: the leader of {issuer} holds {token}"),
        Issued::Released(_) if is_its => format!("is not in force any more: {issuer} was released"),
        Issued::Expired(_) if is_its => format!("is not in force any more: {issuer} has expired"),
        Issued::Released(token) => format!("was not issued: {issuer} was released, and had token {token}"),
        Issued::Expired(token) => format!("was not issued: {issuer} has expired, and had token {token}"),
    };
    // The highest that was issued, as far as is known.
    let highest = issued.token().map(|token| format!(" highest={token}")).unwrap_or_default();
    let hint = match issuer {
        Issuer::Election(_) => {
            "Present the create_revision of your own key while it leads the election. If you do not lead it any more, stop this work and campaign again."
        }
        Issuer::Lease(_) => {
            "Present the token that fencegate.acquire has returned, once it is committed and while the lease lasts. If you do not lead any more, stop this work and acquire the lease again."
        }
    };
    ErrorText::new("LF005", format!("fencing token {presented} for resource \"{resource}\" {why}"))
        .detail(format!("resource={resource} presented={presented}{highest}"))
        .hint(hint)
}

fn stale(resource: &str, presented: Token, highest: Token) -> ErrorText {
    ErrorText::new(
        "LF001",
        format!("fencing token {presented} for resource \"{resource}\" is stale: the highest is {highest}"),
    )
}

/// The hint of the guard's error, once the fence has been raised for it.
pub fn now_in_force(may_have_committed: bool) -> &'static str {
    match may_have_committed {
        true => "The token is in force now: do again what has failed. What was committed before that stays.",
        false => "The token is in force now. Nothing was written: roll back, and do it again.",
    }
}

/// What stands before in the same string may have set another token.
pub fn may_be_another(kind: StatementKind) -> Rejection {
    let why = format!("an earlier statement of the same string may change lease.fence ({kind})");
    let hint = "Send the statements one by one, so that the proxy can read the token in between. A library's migration, which comes \
        as one string, runs as one of the policy's `exempt_roles`, or with `opaque: allow` for its role and the guard installed.";
    Rejection::Unverifiable { why, hint }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn details_name_what_applies() {
        let text = Rejection::Stale { resource: "scheduler".into(), presented: 46, highest: 47 }.text();
        assert_eq!((text.code, text.detail.as_str()), ("LF001", "resource=scheduler presented=46 highest=47"));
        let unissued = |issued| {
            let issuer = Issuer::Election("/e".parse().unwrap());
            Rejection::Unissued { resource: "scheduler".into(), presented: 99, issuer, issued }.text()
        };
        assert_eq!(unissued(Issued::ToLeader(47)).detail, "resource=scheduler presented=99 highest=47");
        assert_eq!(unissued(Issued::ToNobody).detail, "resource=scheduler presented=99");
        assert!(unissued(Issued::ToNobody).message.ends_with("was not issued: nobody leads /e"));
        let epoch = |token| Epoch { generation: 1, token };
        let text = cut_off("scheduler", epoch(46), epoch(47), CutOffOutcome::Unknown);
        assert!(text.detail.ends_with("outcome=unknown") && text.hint.starts_with("A newer leader"));
        let reset = Epoch { generation: 2, token: 7 };
        let text = cut_off("scheduler", epoch(46), reset, CutOffOutcome::RolledBack);
        assert_eq!(text.detail, "resource=scheduler presented=46 highest=7 outcome=rolled_back");
        assert!(
            text.message.ends_with("was reset since token 46 was admitted, and is at 7")
                && text.hint.starts_with("An operator")
        );
    }

    /// What the log and the metrics say of each, beside its SQLSTATE.
    #[test]
    fn each_says_what_it_is_about() {
        let (resource, issuer) = (String::from("r"), Issuer::Election("/e".parse().unwrap()));
        let (presented, highest, written) = (46, 47, 47);
        let unissued =
            |issued| Rejection::Unissued { resource: resource.clone(), presented, issuer: issuer.clone(), issued };
        let of_r = Some("r");
        let cause = Cause::from("no connection");
        let all = [
            (Rejection::Stale { resource: resource.clone(), presented, highest }, "LF001 stale", of_r, (46, 47)),
            (
                Rejection::GoneBack { resource: resource.clone(), presented, highest, issuer: issuer.clone() },
                "LF001 stale",
                of_r,
                (46, 47),
            ),
            (
                Rejection::Missing { resource: resource.clone(), named: Vec::new(), by_bare_name: None },
                "LF002 missing",
                of_r,
                (0, 0),
            ),
            (Rejection::InvalidSetting { why: InvalidValue::Token, value: "x".into() }, "LF003 invalid", None, (0, 0)),
            (Rejection::InvalidValue { resource: resource.clone() }, "LF003 invalid", of_r, (0, 0)),
            (Rejection::TwoTokens { resource: resource.clone(), presented, written }, "LF003 invalid", of_r, (46, 47)),
            (
                Rejection::TwoTokensAtOnce { resource: resource.clone(), presented, written },
                "LF003 invalid",
                of_r,
                (46, 47),
            ),
            (Rejection::Unverifiable { why: "w".into(), hint: "h" }, "LF004 unverifiable", None, (0, 0)),
            (Rejection::CarriedOut { what: "writes", hint: "h" }, "LF004 unverifiable", None, (0, 0)),
            (
                Rejection::UnknownKey { resource: resource.clone(), why: "w".into(), hint: "h", by_bare_name: None },
                "LF004 unverifiable",
                of_r,
                (0, 0),
            ),
            (
                Rejection::NotInForce { resource: resource.clone(), presented, highest: Some(highest) },
                "LF004 unverifiable",
                of_r,
                (46, 47),
            ),
            (unissued(Issued::ToNobody), "LF005 unissued", of_r, (46, 0)),
            (unissued(Issued::ToLeader(47)), "LF005 unissued", of_r, (46, 47)),
            (unissued(Issued::Released(47)), "LF005 unissued", of_r, (46, 47)),
            (unissued(Issued::Expired(46)), "LF005 unissued", of_r, (46, 46)),
            (
                Rejection::Denied { resource: resource.clone(), presented, what: "table t".into() },
                "42501 denied",
                of_r,
                (46, 0),
            ),
            (
                Rejection::Unavailable { resource: resource.clone(), cause: cause.clone(), queries: String::new() },
                "LF006 unavailable",
                of_r,
                (0, 0),
            ),
            (Rejection::NotOwner { database: "d".into() }, "42501 denied", None, (0, 0)),
            (Rejection::NoRoom, "LF006 unavailable", None, (0, 0)),
            (Rejection::UnreadCatalogue { why: Some(cause) }, "LF006 unavailable", None, (0, 0)),
        ];
        for (rejection, is, about, (presented, highest)) in all {
            let found = format!("{} {}", rejection.text().code, rejection.verdict());
            assert_eq!((found.as_str(), rejection.resource()), (is, about));
            let token = |token: Token| (token > 0).then_some(token);
            assert_eq!(rejection.tokens(), (token(presented), token(highest)), "{is}");
            assert!(!rejection.reason().is_empty(), "{is}");
            // The server has no hint for a role that is not the owner.
            let has_hint = !matches!(rejection, Rejection::NotOwner { .. });
            assert_eq!(!rejection.text().hint.is_empty(), has_hint, "{is}");
        }
        // What became of a lease is said of the token that was its own, and of another one.
        let why = |issued| unissued(issued).text().message;
        assert!(why(Issued::Released(46)).ends_with("is not in force any more: /e was released"));
        assert!(why(Issued::Released(47)).ends_with("was not issued: /e was released, and had token 47"));
        assert!(why(Issued::Expired(46)).ends_with("is not in force any more: /e has expired"));
        assert!(why(Issued::Expired(47)).ends_with("was not issued: /e has expired, and had token 47"));
        assert!(!now_in_force(false).contains("committed") && now_in_force(true).contains("committed"));
    }
}
