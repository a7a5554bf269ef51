//! The reasons for a rejection, and the errors that clients receive for them. `fence/fence_error.rs` contains those of
//! the fence.

use fencegate_fence::session::{Epoch, Token};
use fencegate_fence::store::StoreError;
use fencegate_fence::value::InvalidValue;
use fencegate_fence::{FenceError, Remedy, stale};
use fencegate_policy::QualifiedName;
use fencegate_statement::{OpaqueReason, StatementKind};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use fencegate_wire::error::{ErrorText, start_of};

/// A reason to reject a statement or to end a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of a variant covers its fields")]
pub enum Rejection {
    /// The fence has refused: LF001, LF003 to LF006, or 42501.
    Fence(FenceError),
    /// LF002. `named`: the resources in the session's list; `by_bare_name`: the fenced table that an unqualified name may
    /// refer to.
    Missing { resource: String, named: Vec<String>, by_bare_name: Option<QualifiedName> },
    /// LF003: the text of a SET or of a startup parameter.
    InvalidSetting { why: InvalidValue, value: String },
    /// LF003: a function or a default has set the invalid value.
    InvalidValue { resource: String },
    /// LF003: a query string would write under a token other than that of its earlier statements or the open transaction.
    TwoTokensAtOnce { resource: String, presented: Token, written: Token },
    /// LF004: the effects of the statement are unknown.
    Unverifiable { why: String, hint: &'static str },
    /// LF004: PREPARE TRANSACTION would take these effects out of the session.
    CarriedOut { what: &'static str, hint: &'static str },
    /// LF004: the keys that the statement writes are unknown.
    UnknownKey { resource: String, why: String, hint: &'static str, by_bare_name: Option<QualifiedName> },
    /// 42501, with the server's message: the session's role may not drop, rename or move the database.
    NotOwner { database: String },
    /// LF006: there was no room to hold the statement until it could be judged.
    NoRoom,
    /// LF006: the statement names a relation that may lead to a fenced table. `why`: the error of the last reading.
    UnreadCatalog { why: Option<StoreError> },
}

/// Outcome of the open transaction of a session that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOffOutcome {
    /// Nothing was in flight: the open transaction is rolled back.
    RolledBack,
    /// A statement or a COMMIT was in flight.
    Unknown,
}

impl CutOffOutcome {
    /// The name in the error's DETAIL.
    pub fn name(self) -> &'static str {
        match self {
            CutOffOutcome::RolledBack => "rolled_back",
            CutOffOutcome::Unknown => "unknown",
        }
    }
}

impl From<FenceError> for Rejection {
    fn from(refusal: FenceError) -> Self {
        Rejection::Fence(refusal)
    }
}

impl Rejection {
    /// The resource that the rejection concerns, if any.
    pub fn resource(&self) -> Option<&str> {
        match self {
            Rejection::Fence(refusal) => Some(refusal.resource()),
            Rejection::Missing { resource, .. }
            | Rejection::InvalidValue { resource }
            | Rejection::TwoTokensAtOnce { resource, .. }
            | Rejection::UnknownKey { resource, .. } => Some(resource),
            Rejection::InvalidSetting { .. }
            | Rejection::Unverifiable { .. }
            | Rejection::CarriedOut { .. }
            | Rejection::NotOwner { .. }
            | Rejection::NoRoom
            | Rejection::UnreadCatalog { .. } => None,
        }
    }

    /// The token presented and the highest one, as in the error's DETAIL.
    pub fn tokens(&self) -> (Option<Token>, Option<Token>) {
        match self {
            Rejection::Fence(refusal) => refusal.tokens(),
            Rejection::TwoTokensAtOnce { presented, written, .. } => (Some(*presented), Some(*written)),
            _ => (None, None),
        }
    }

    /// Returns true if the rejected statement ends the transaction even when it fails: the server rolls back. PREPARE
    /// TRANSACTION is the only statement that ends a transaction and can be rejected.
    pub fn ends_transaction(&self) -> bool {
        matches!(self, Rejection::CarriedOut { .. })
    }
}

impl ClientError for Rejection {
    fn kind(&self) -> ErrorKind {
        match self {
            Rejection::Fence(refusal) => refusal.kind(),
            Rejection::Missing { .. } => ErrorKind::Missing,
            Rejection::InvalidSetting { .. } | Rejection::InvalidValue { .. } | Rejection::TwoTokensAtOnce { .. } => {
                ErrorKind::Invalid
            }
            Rejection::Unverifiable { .. } | Rejection::CarriedOut { .. } | Rejection::UnknownKey { .. } => {
                ErrorKind::Unverifiable
            }
            Rejection::NotOwner { .. } => ErrorKind::Denied,
            Rejection::NoRoom | Rejection::UnreadCatalog { .. } => ErrorKind::Unavailable,
        }
    }

    fn log_reason(&self) -> String {
        match self {
            Rejection::Fence(refusal) => refusal.log_reason(),
            Rejection::UnreadCatalog { why: Some(why) } => format!("the catalog cannot be read: {why}"),
            other => other.text().message,
        }
    }

    fn text(&self) -> ErrorText {
        match self {
            Rejection::Fence(refusal) => refusal.text(),
            Rejection::Missing { resource, named, by_bare_name } => {
                ErrorText::new("LF002", format!("resource \"{resource}\" is fenced, and this session has no token for it"))
                    .detail(format!("resource={resource}"))
                    .hint(missing_tokens_hint(named, by_bare_name.as_ref()))
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
            Rejection::TwoTokensAtOnce { resource, presented, written } => {
                ErrorText::new("LF003", format!("one query string cannot write to resource \"{resource}\" under token {written} and then {presented}"))
                    .detail(format!("resource={resource} presented={presented} highest={written}"))
                    .hint("Send the statement that ends the transaction, and the statements after it, as separate queries.")
            }
            Rejection::Unverifiable { why, hint } => {
                ErrorText::new("LF004", format!("cannot determine what this statement writes: {why}")).hint(*hint)
            }
            Rejection::CarriedOut { what, hint } => {
                let message = format!("cannot PREPARE a transaction that {what}");
                ErrorText::new("LF004", message).hint(*hint)
            }
            Rejection::UnknownKey { resource, why, hint, by_bare_name } => {
                ErrorText::new("LF004", format!("cannot determine what this statement writes: {why}"))
                    .detail(format!("resource={resource}"))
                    .hint(unqualified_name_hint(by_bare_name.as_ref()) + hint)
            }
            Rejection::NotOwner { database } => {
                ErrorText::new("42501", format!("must be owner of database {database}"))
            }
            Rejection::NoRoom => {
                ErrorText::new("LF006", format!("cannot determine whether this statement writes to a fenced table: {}", OpaqueReason::NoRoom))
                    .hint("Nothing was written. Retry. Prepare the statement again if it was a prepared one.")
            }
            Rejection::UnreadCatalog { why } => {
                let (reason, remedy) = match why {
                    Some(why) => (format!("the catalog cannot be read: {}", why.text().message), why.remedy()),
                    None => {
                        ("the catalog may have changed and could not be read in time".to_owned(), Remedy::TryAgain)
                    }
                };
                ErrorText::new("LF006", format!("cannot determine whether this statement writes to a fenced table: {reason}"))
                    .hint(remedy.hint())
            }
        }
    }
}

/// Maximum length of a value that an error shows, in bytes.
const LONGEST_SHOWN: usize = 60;

/// Maximum number of resources that an error names.
const MOST_NAMED: usize = 10;

/// The hint of LF002.
fn missing_tokens_hint(named: &[String], by_bare_name: Option<&QualifiedName>) -> String {
    let mut hint = unqualified_name_hint(by_bare_name);
    if !named.is_empty() {
        let rest = if named.len() > MOST_NAMED { ", ..." } else { "" };
        hint += &format!("lease.fence names only {}{rest}. ", named[..named.len().min(MOST_NAMED)].join(", "));
    }
    hint + "SET lease.fence to the fencing token that the leader election issued, or connect with options=-clease.fence=TOKEN."
}

/// First part of the hint for a statement with an unqualified name.
fn unqualified_name_hint(by_bare_name: Option<&QualifiedName>) -> String {
    let meant = |table: &QualifiedName| {
        format!(
            "The unqualified name may mean {table}. For another table, write its schema, or pg_temp for a temporary table. "
        )
    };
    by_bare_name.map(meant).unwrap_or_default()
}

const FORMS: &str =
    "Use one token, SET lease.fence = 47, or a list by resource, SET lease.fence = 'scheduler=47, billing=55'.";

/// The error for a session that a newer token has cut off.
pub fn cut_off(resource: &str, presented: Epoch, highest: Epoch, outcome: CutOffOutcome) -> ErrorText {
    let is_reset = highest.generation > presented.generation;
    let (presented, highest) = (presented.token, highest.token);
    let (text, reason) = if is_reset {
        let message = format!(
            "the fence of resource \"{resource}\" was reset after token {presented} was admitted, and is at {highest}"
        );
        (ErrorText::new("LF001", message), "An operator has reset the fence")
    } else {
        (stale(resource, presented, highest), "A newer leader has taken over")
    };
    let outcome = outcome.name();
    text.detail(format!("resource={resource} presented={presented} highest={highest} outcome={outcome}")).hint(format!(
        "{reason} and this session was cut off. Stop this work, and campaign again before you reconnect."
    ))
}

/// The hint of the guard's error, once the fence has been raised for it.
pub fn now_in_force(may_have_committed: bool) -> &'static str {
    match may_have_committed {
        true => "The token is now in force. Retry the failed statement. Earlier commits are unaffected.",
        false => "The token is now in force. Nothing was written: roll back, and retry.",
    }
}

/// The rejection if an earlier statement of the same string may have set another token.
pub fn may_be_another(kind: StatementKind) -> Rejection {
    let why = format!("an earlier statement of the same string may change lease.fence ({kind})");
    let hint = "Send the statements separately, so that the proxy can read the token between them. Run migrations that a library sends as one string as one of the policy's `exempt_roles`, or install the guard and set `opaque: allow` for their role.";
    Rejection::Unverifiable { why, hint }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fencegate_fence::Issued;
    use fencegate_policy::Issuer;

    fn epoch(token: Token) -> Epoch {
        Epoch { generation: 1, token }
    }

    #[test]
    fn details_contain_the_tokens_and_the_outcome() {
        let text = FenceError::Stale { resource: "scheduler".into(), presented: 46, highest: epoch(47) }.text();
        assert_eq!((text.code, text.detail.as_str()), ("LF001", "resource=scheduler presented=46 highest=47"));
        let unissued = |issued| {
            let issuer = Issuer::Election("/e".parse().unwrap());
            FenceError::Unissued { resource: "scheduler".into(), presented: 99, issuer, issued }.text()
        };
        assert_eq!(unissued(Issued::ToLeader(47)).detail, "resource=scheduler presented=99 highest=47");
        assert_eq!(unissued(Issued::ToNobody).detail, "resource=scheduler presented=99");
        assert!(unissued(Issued::ToNobody).message.ends_with("was not issued: /e has no leader"));
        let text = cut_off("scheduler", epoch(46), epoch(47), CutOffOutcome::Unknown);
        assert!(text.detail.ends_with("outcome=unknown") && text.hint.starts_with("A newer leader"));
        let reset = Epoch { generation: 2, token: 7 };
        let text = cut_off("scheduler", epoch(46), reset, CutOffOutcome::RolledBack);
        assert_eq!(text.detail, "resource=scheduler presented=46 highest=7 outcome=rolled_back");
        assert!(
            text.message.ends_with("was reset after token 46 was admitted, and is at 7")
                && text.hint.starts_with("An operator")
        );
    }

    /// Each rejection has texts for the log and the metrics, in addition to its SQLSTATE.
    #[test]
    fn each_rejection_has_a_code_label_resource_and_tokens() {
        let (resource, issuer) = (String::from("r"), Issuer::Election("/e".parse().unwrap()));
        let (presented, highest, written) = (46, 47, 47);
        let unissued = |issued| {
            Rejection::Fence(FenceError::Unissued {
                resource: resource.clone(),
                presented,
                issuer: issuer.clone(),
                issued,
            })
        };
        let of_r = Some("r");
        let error = StoreError::Standby;
        let all = [
            (
                Rejection::Fence(FenceError::Stale { resource: resource.clone(), presented, highest: epoch(highest) }),
                "LF001 stale",
                of_r,
                (46, 47),
            ),
            (
                Rejection::Fence(FenceError::GoneBack {
                    resource: resource.clone(),
                    presented,
                    highest: epoch(highest),
                    issuer: issuer.clone(),
                }),
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
            (
                Rejection::Fence(FenceError::WrittenUnderAnotherToken {
                    resource: resource.clone(),
                    presented,
                    current: written,
                }),
                "LF003 invalid",
                of_r,
                (46, 47),
            ),
            (
                Rejection::TwoTokensAtOnce { resource: resource.clone(), presented, written },
                "LF003 invalid",
                of_r,
                (46, 47),
            ),
            (Rejection::Unverifiable { why: "w".into(), hint: "h" }, "LF004 unverifiable", None, (0, 0)),
            (
                Rejection::CarriedOut { what: "has written to a fenced table", hint: "h" },
                "LF004 unverifiable",
                None,
                (0, 0),
            ),
            (
                Rejection::UnknownKey { resource: resource.clone(), why: "w".into(), hint: "h", by_bare_name: None },
                "LF004 unverifiable",
                of_r,
                (0, 0),
            ),
            (
                Rejection::Fence(FenceError::NotInForce {
                    resource: resource.clone(),
                    presented,
                    highest: Some(highest),
                }),
                "LF004 unverifiable",
                of_r,
                (46, 47),
            ),
            (unissued(Issued::ToNobody), "LF005 unissued", of_r, (46, 0)),
            (unissued(Issued::ToLeader(47)), "LF005 unissued", of_r, (46, 47)),
            (unissued(Issued::Released(47)), "LF005 unissued", of_r, (46, 47)),
            (unissued(Issued::Expired(46)), "LF005 unissued", of_r, (46, 46)),
            (
                Rejection::Fence(FenceError::Denied { resource: resource.clone(), presented, what: "table t".into() }),
                "42501 denied",
                of_r,
                (46, 0),
            ),
            (
                Rejection::Fence(FenceError::Store { resource: resource.clone(), error: error.clone() }),
                "LF006 unavailable",
                of_r,
                (0, 0),
            ),
            (Rejection::NotOwner { database: "d".into() }, "42501 denied", None, (0, 0)),
            (Rejection::NoRoom, "LF006 unavailable", None, (0, 0)),
            (Rejection::UnreadCatalog { why: Some(error) }, "LF006 unavailable", None, (0, 0)),
        ];
        for (rejection, is, about, (presented, highest)) in all {
            let found = format!("{} {}", rejection.text().code, rejection.kind().label());
            assert_eq!((found.as_str(), rejection.resource()), (is, about));
            let token = |token: Token| (token > 0).then_some(token);
            assert_eq!(rejection.tokens(), (token(presented), token(highest)), "{is}");
            assert!(!rejection.log_reason().is_empty(), "{is}");
            // The server has no hint for a role that is not the owner.
            let has_hint = !matches!(rejection, Rejection::NotOwner { .. });
            assert_eq!(!rejection.text().hint.is_empty(), has_hint, "{is}");
        }
        // The state of a lease is reported for its own token, and for other tokens.
        let why = |issued| unissued(issued).text().message;
        assert!(why(Issued::Released(46)).ends_with("is no longer in force: /e was released"));
        assert!(why(Issued::Released(47)).ends_with("was not issued: /e was released, and its last token was 47"));
        assert!(why(Issued::Expired(46)).ends_with("is no longer in force: /e has expired"));
        assert!(why(Issued::Expired(47)).ends_with("was not issued: /e has expired, and its last token was 47"));
        assert!(!now_in_force(false).contains("commit") && now_in_force(true).contains("commit"));
    }
}
