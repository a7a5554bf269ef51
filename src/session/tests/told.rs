//! The client's messages for a rejection, word for word if they depend on a length.

use crate::fence::value::InvalidValue;
use crate::fence::{Cause, FenceError};
use crate::session::rejection::Rejection;
use crate::wire::client_error::ClientError;

#[test]
fn a_long_value_is_shown_in_part() {
    for (length, rest) in [(59, ""), (60, ""), (61, "..."), (1000, "...")] {
        let rejection = Rejection::InvalidSetting { why: InvalidValue::Token, value: "x".repeat(length) };
        let detail = format!("value=\"{}\"{rest}", "x".repeat(length.min(60)));
        assert_eq!(rejection.text().detail, detail);
    }
}

#[test]
fn of_many_resources_ten_are_named() {
    let all: Vec<String> = (10..30).map(|number| format!("r{number}")).collect();
    let ten = "r10, r11, r12, r13, r14, r15, r16, r17, r18, r19";
    for (many, names) in [(1, "r10".to_owned()), (10, ten.to_owned()), (11, format!("{ten}, ..."))] {
        let (resource, named) = ("jobs".to_owned(), all[..many].to_vec());
        let hint = Rejection::Missing { resource, named, by_bare_name: None }.text().hint;
        assert!(hint.starts_with(&format!("lease.fence names only {names}. SET ")), "{hint}");
    }
}

/// The log says why; and so does the error.
#[test]
fn the_reason_is_that_of_the_rejection() {
    let resource = "jobs".to_owned();
    let missing = Rejection::Missing { resource: resource.clone(), named: Vec::new(), by_bare_name: None };
    let no_token = "resource \"jobs\" is fenced, and this session has no token for it";
    let unavailable = Rejection::Fence(FenceError::Unavailable {
        resource,
        cause: Cause::from("it hangs"),
        queries: "SELECT 1".into(),
    });
    let no_proof = "cannot prove which token for resource \"jobs\" is the highest: it hangs, query: SELECT 1";
    let unread = Rejection::UnreadCatalog { why: Some(Cause::from("it hangs")) };
    let hangs = "the catalog cannot be read: it hangs";
    let no_verdict = format!("cannot tell whether this statement writes a fenced table: {hangs}");
    for (rejection, reason, message) in
        [(missing, no_token, no_token), (unavailable, "it hangs", no_proof), (unread, hangs, &no_verdict)]
    {
        assert_eq!((rejection.log_reason().as_str(), rejection.text().message.as_str()), (reason, message));
    }
}
