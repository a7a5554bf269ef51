//! Text of rejections, compared verbatim if it depends on a length.

use crate::rejection::Rejection;
use fencegate_fence::store::StoreError;
use fencegate_fence::value::InvalidValue;
use fencegate_fence::{Blocker, FenceError, Obstacle};
use fencegate_wire::client_error::ClientError;

#[test]
fn a_long_value_is_truncated() {
    for (length, rest) in [(59, ""), (60, ""), (61, "..."), (1000, "...")] {
        let rejection = Rejection::InvalidSetting { why: InvalidValue::Token, value: "x".repeat(length) };
        let detail = format!("value=\"{}\"{rest}", "x".repeat(length.min(60)));
        assert_eq!(rejection.text().detail, detail);
    }
}

#[test]
fn at_most_ten_resources_are_named() {
    let all: Vec<String> = (10..30).map(|number| format!("r{number}")).collect();
    let ten = "r10, r11, r12, r13, r14, r15, r16, r17, r18, r19";
    for (many, names) in [(1, "r10".to_owned()), (10, ten.to_owned()), (11, format!("{ten}, ..."))] {
        let (resource, named) = ("jobs".to_owned(), all[..many].to_vec());
        let hint = Rejection::Missing { resource, named, by_bare_name: None }.text().hint;
        assert!(hint.starts_with(&format!("lease.fence names only {names}. SET ")), "{hint}");
    }
}

/// The log and the error state the same reason.
#[test]
fn the_message_contains_the_logged_reason() {
    let resource = "jobs".to_owned();
    let missing = Rejection::Missing { resource: resource.clone(), named: Vec::new(), by_bare_name: None };
    let no_token = "resource \"jobs\" is fenced, and this session has no token for it";
    let blocker = Blocker { holder: "process 1".to_owned(), query: "SELECT 1".to_owned() };
    let unavailable = Rejection::Fence(FenceError::unavailable(&resource, Obstacle::NotEnded(vec![blocker])));
    let not_ended = "processes admitted under lower tokens have not ended: process 1";
    let no_proof =
        format!("cannot prove which token for resource \"jobs\" is the highest: {not_ended}, query: SELECT 1");
    let unread = Rejection::UnreadCatalog { why: Some(StoreError::Vacated) };
    let vacated = "the catalog cannot be read: the database is being dropped";
    let no_verdict = format!("cannot determine whether this statement writes to a fenced table: {vacated}");
    for (rejection, reason, message) in
        [(missing, no_token, no_token), (unavailable, not_ended, &no_proof), (unread, vacated, &no_verdict)]
    {
        assert_eq!((rejection.log_reason().as_str(), rejection.text().message.as_str()), (reason, message));
    }
}

/// The reason why the catalog cannot be read reaches the client with its remedy. Only sessions with a token receive the
/// queries of others.
#[test]
fn a_database_failure_reaches_the_client_with_its_remedy() {
    let blocker = Blocker { holder: "process 1".to_owned(), query: "LOCK TABLE t".to_owned() };
    for error in [StoreError::TablesLocked(vec![blocker]), StoreError::Unprepared { database: "app".to_owned() }] {
        let (message, hint) = (error.text().message, error.remedy().hint());
        let unread = Rejection::UnreadCatalog { why: Some(error.clone()) };
        let refused = Rejection::from(FenceError::Store { resource: "jobs".to_owned(), error });
        for (rejection, is_about) in [
            (
                &unread,
                format!(
                    "cannot determine whether this statement writes to a fenced table: the catalog cannot be read: {message}"
                ),
            ),
            (&refused, format!("cannot prove which token for resource \"jobs\" is the highest: {message}")),
        ] {
            let text = rejection.text();
            assert!(text.message.starts_with(&is_about), "{text:?}");
            assert_eq!(
                (text.code, rejection.kind().label(), text.hint.as_str()),
                ("LF006", "unavailable", hint.as_str())
            );
        }
        assert!(!unread.text().message.contains("LOCK TABLE") && !refused.log_reason().contains("LOCK TABLE"));
    }
}
