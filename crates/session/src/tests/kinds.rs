//! Kinds of messages and rejections, and their texts.

use super::*;
use crate::pipeline::{Defined, Effects, Request};
use crate::rejection::Rejection;
use fencegate_fence::store::StoreError;
use fencegate_fence::value::InvalidValue;
use fencegate_fence::{Issued, Obstacle};
use fencegate_statement::analyze;
use fencegate_wire::client_error::ClientError;

fn runs(sql: &str) -> Request {
    Request::query(analyze(sql.as_bytes(), Lexing::USUAL).unwrap().statements.clone())
}

fn executes(sql: &str) -> Request {
    let statement = analyze(sql.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone();
    Request::Execute { statement, defines: None }
}

/// The traits as letters: may undo, changes the catalog, may be a COPY from the client, may commit, affects the
/// parameter, affects the lexing.
fn traits(request: &Request) -> String {
    let all = [
        ('u', request.may_undo()),
        ('d', request.changes_catalog()),
        ('c', request.may_copy_in()),
        ('o', request.may_commit()),
        ('p', request.affects_parameter()),
        ('l', request.affects_lexing()),
    ];
    let effects = request.effects();
    let kept = [Effects::UNDOES, Effects::CATALOG, Effects::COPIES, Effects::PARAMETER, Effects::LEXING];
    let found = [0, 1, 2, 4, 5].map(|index| all[index].1);
    assert_eq!(kept.map(|effect| effects.has(effect)), found, "the effects are determined once");
    all.iter().filter(|(_, is_so)| *is_so).map(|(letter, _)| *letter).collect()
}

#[test]
fn a_request_has_the_traits_of_its_statements() {
    for (sql, expected) in [
        ("SELECT 1", "l"),
        ("BEGIN", "u"),
        ("ROLLBACK TO a", "ul"),
        ("INSERT INTO t VALUES (1)", "l"),
        ("SELECT f()", "pl"),
        ("DO 'BEGIN END'", "udcopl"),
        ("COPY t FROM STDIN", "cl"),
        ("COPY t TO STDOUT", "l"),
        ("CREATE TABLE t (a int)", "dl"),
        ("SET lease.fence = 1", "pl"),
        ("SET standard_conforming_strings = off", "l"),
    ] {
        assert_eq!(traits(&executes(sql)), expected, "{sql}");
        // An error in it does not skip the next message.
        assert_eq!(traits(&runs(sql)), format!("u{}", expected.trim_start_matches('u')), "{sql}");
    }
    assert_eq!(traits(&runs("SELECT 1; DO 'BEGIN END'; BEGIN")), "udcopl", "all traits of the statements");
    // A message that was not judged may set anything; a function call names its function by number.
    assert_eq!(traits(&Request::query(Vec::new())), "ul");
    assert_eq!(traits(&Request::FunctionCall), "upl");
    assert_eq!(traits(&Request::Sync), "u");
    let others = [Request::Describe, Request::Close, Request::CopyData, Request::CopyEnd];
    assert!(others.iter().all(|request| traits(request).is_empty()));
    let parse = Request::Parse { defines: Some(Defined { name: Vec::new(), sequence: 1 }) };
    assert_eq!(traits(&parse), "");
}

#[test]
fn requests_report_their_protocol_and_weight() {
    let extended =
        [Request::Describe, Request::Close, Request::bind(), Request::execute(), Request::Parse { defines: None }];
    assert!(extended.iter().all(Request::is_extended));
    let others = [runs("SELECT 1"), Request::Sync, Request::FunctionCall, Request::CopyData, Request::CopyEnd];
    assert!(!others.iter().any(Request::is_extended));
    assert!(others[3..].iter().all(Request::is_copy) && !others[..3].iter().any(Request::is_copy));
    let (one, two) = (runs("SELECT 1").weight(), runs("SELECT 1; SELECT 1").weight());
    assert!(one > 0 && two > one);
    let executed = executes("SELECT 1");
    assert!(executed.weight() > 0);
    let Request::Execute { statement, .. } = &executed else { panic!() };
    let _portal = statement.clone();
    assert_eq!(executed.weight(), 0, "the portal accounts for it");
    assert!(Request::execute().weight() > 0 && Request::Sync.weight() == 0);
}

#[test]
fn a_rejection_reports_its_verdict_resource_tokens_and_code() {
    let (resource, issuer) = ("r".to_owned(), policies_issuer());
    let epoch = Epoch { generation: 1, token: 9 };
    let unissued =
        |issued| FenceError::Unissued { resource: "r".into(), presented: 5, issuer: policies_issuer(), issued };
    let refusals: Vec<(FenceError, &str)> = vec![
        (FenceError::Stale { resource: resource.clone(), presented: 5, highest: epoch }, "stale r 5 9 LF001"),
        (
            FenceError::GoneBack { resource: resource.clone(), presented: 5, highest: epoch, issuer },
            "stale r 5 9 LF001",
        ),
        (unissued(Issued::ToLeader(7)), "unissued r 5 7 LF005"),
        (unissued(Issued::ToNobody), "unissued r 5 - LF005"),
        (
            FenceError::WrittenUnderAnotherToken { resource: resource.clone(), presented: 5, current: 4 },
            "invalid r 5 4 LF003",
        ),
        (
            FenceError::NotInForce { resource: resource.clone(), presented: 5, highest: Some(4) },
            "unverifiable r 5 4 LF004",
        ),
        (
            FenceError::NotInForce { resource: resource.clone(), presented: 5, highest: None },
            "unverifiable r 5 - LF004",
        ),
        (FenceError::Denied { resource: resource.clone(), presented: 5, what: "table t".into() }, "denied r 5 - 42501"),
        (FenceError::RoleUnknown { resource: resource.clone() }, "unavailable r - - LF006"),
        (FenceError::unavailable("r", Obstacle::NotAdmitted), "unavailable r - - LF006"),
    ];
    for (refusal, expected) in refusals {
        assert_eq!(refusal.resource(), "r");
        assert_eq!(shown(&refusal.into()), expected);
    }
    let two = |at_once: bool| match at_once {
        true => Rejection::TwoTokensAtOnce { resource: "r".into(), presented: 5, written: 4 },
        false => {
            Rejection::Fence(FenceError::WrittenUnderAnotherToken { resource: "r".into(), presented: 5, current: 4 })
        }
    };
    for (rejection, expected) in [
        (Rejection::Missing { resource: "r".into(), named: Vec::new(), by_bare_name: None }, "missing r - - LF002"),
        (Rejection::InvalidSetting { why: InvalidValue::Token, value: "x".into() }, "invalid - - - LF003"),
        (Rejection::InvalidValue { resource: "r".into() }, "invalid r - - LF003"),
        (two(false), "invalid r 5 4 LF003"),
        (two(true), "invalid r 5 4 LF003"),
        (Rejection::Unverifiable { why: "why".into(), hint: "hint" }, "unverifiable - - - LF004"),
        (
            Rejection::UnknownKey { resource: "r".into(), why: "why".into(), hint: "hint", by_bare_name: None },
            "unverifiable r - - LF004",
        ),
        (Rejection::NoRoom, "unavailable - - - LF006"),
        (Rejection::UnreadCatalog { why: Some(StoreError::Vacated) }, "unavailable - - - LF006"),
        (Rejection::UnreadCatalog { why: None }, "unavailable - - - LF006"),
    ] {
        assert_eq!(shown(&rejection), expected);
    }
}

fn policies_issuer() -> fencegate_policy::Issuer {
    let text = "version: 1\nresources:\n  - {name: r, tables: [public.t], lease: l}\n";
    join([("a.yaml".into(), Ok(text.into()))]).unwrap().resources[0].issuer.clone().unwrap()
}

fn shown(rejection: &Rejection) -> String {
    let (presented, highest) = rejection.tokens();
    let token = |token: Option<Token>| token.map_or("-".to_owned(), |token| token.to_string());
    let text = rejection.text();
    assert!(!text.message.is_empty() && text.detail.contains(rejection.resource().unwrap_or_default()));
    let (verdict, resource) = (rejection.kind().label(), rejection.resource().unwrap_or("-"));
    format!("{verdict} {resource} {} {} {}", token(presented), token(highest), text.code)
}
