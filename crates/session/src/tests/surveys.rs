//! Inputs of a verdict other than the text: the catalog, other sessions, pending responses, and earlier statements.

use super::one_session::WITHOUT_DELAYING_OTHERS;
use super::outcomes::begun;
use super::*;

const FUNCTIONS: &str =
    "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.work]}\n";
/// A path that leads to no other schema.
const PUBLIC: fn() -> Path = || Path::new(Some("public"), false);

/// A string is long if it has more than 200 statements, writes, calls and redirects in total.
#[test]
fn a_long_string_is_judged_without_delaying_others() {
    for (sql, most) in [
        ("BEGIN", 200),
        ("INSERT INTO free VALUES (1)", 100),
        ("SELECT f()", 100),
        ("CREATE UNIQUE INDEX ON free (a)", 100),
        ("INSERT INTO free SELECT f()", 66),
    ] {
        for (times, without_delaying_others) in [(most, false), (most + 1, true)] {
            let mut session = session("");
            WITHOUT_DELAYING_OTHERS.set(0);
            sends(&mut session, &query(&vec![sql; times].join(";")));
            assert_eq!(WITHOUT_DELAYING_OTHERS.get() > 0, without_delaying_others, "{times} times {sql}");
        }
    }
}

#[test]
fn writes_definitions_and_calls_are_judged_by_the_catalog() {
    for (sql, is_wanted, with_cascades) in [
        ("INSERT INTO free VALUES (1)", true, false),
        ("CREATE TABLE other (id int)", true, false),
        ("SELECT work()", true, false),
        ("DROP TABLE free CASCADE", true, true),
        ("DROP TABLE free", true, false),
        ("BEGIN", false, false),
        ("INSERT INTO jobs VALUES (1)", false, false),
    ] {
        let mut session = session_under(FUNCTIONS, "47", PUBLIC());
        sends(&mut session, &query(sql));
        assert_eq!(session.host.wanted.load(Relaxed), is_wanted, "{sql}");
        assert_eq!(session.host.wanted_cascades.load(Relaxed), with_cascades, "{sql}");
    }
}

#[test]
fn a_statement_that_depends_on_an_unread_catalog_waits() {
    for (sql, waits) in [
        ("INSERT INTO free VALUES (1)", true),
        ("CREATE TABLE other (id int)", true),
        // The statement needs the token of every fence anyway.
        ("INSERT INTO jobs VALUES (1)", false),
        ("SELECT g()", true),
        ("INSERT INTO jobs VALUES (1); SELECT g()", true),
        // Another function may have been given this name.
        ("SELECT version()", true),
        ("SELECT 1", false),
    ] {
        let mut session = session_under(FUNCTIONS, "", PUBLIC());
        session.host.is_unread = true;
        let task = sends(&mut session, &query(sql));
        assert_eq!(matches!(task, Some(Task::CatchUp(..))), waits, "{sql}");
        assert_eq!(session.is_held_back(), waits, "{sql}");
    }
    // Unless a pending definition of others may lead there.
    let mut session = session_under(FUNCTIONS, "", PUBLIC());
    session.host.is_unread = true;
    session.host.looks = AtomicUsize::new(usize::MAX);
    assert!(matches!(sends(&mut session, &query("INSERT INTO jobs VALUES (1)")), Some(Task::CatchUp(..))));
}

/// Without a fenced table, no statement can write one: harmless definitions make no difference.
#[test]
fn an_opaque_statement_passes_after_harmless_definitions_without_fenced_tables() {
    for (sql, passes) in [("CREATE TABLE other (id int)", true), ("CREATE VIEW v AS SELECT * FROM jobs", false)] {
        let mut session = begun();
        session.host.catalog = Arc::default();
        sends(&mut session, &query(sql));
        replies(&mut session, &[completes("CREATE"), at_rest(Status::Transaction)].concat());
        session.server.output.clear();
        let opaque = query("DO 'BEGIN END'");
        sends(&mut session, &opaque);
        assert_eq!(session.server.output == opaque, passes, "{sql}");
    }
}

/// An error would roll back the transaction's settings.
#[test]
fn a_token_that_an_error_would_roll_back_waits_for_pending_replies() {
    for (sets, waits) in [(true, true), (false, false)] {
        let mut session = session_with("47", PUBLIC());
        let set = if sets { "SET lease.fence = '48'" } else { "SET work_mem = '1MB'" };
        for text in ["BEGIN", set] {
            sends(&mut session, &query(text));
            replies(&mut session, &[completes("SET"), at_rest(Status::Transaction)].concat());
        }
        sends(&mut session, &query("SELECT 1"));
        let task = sends(&mut session, &query("DELETE FROM jobs"));
        assert!(session.is_held_back());
        assert_eq!(admissions(task) == "none", waits);
    }
}

/// A pending response may report an error.
#[test]
fn an_unparsed_exempt_statement_waits_for_pending_replies() {
    let policies = POLICIES.to_owned() + "exempt_roles: [postgres]\n";
    let mut session = session_under(&policies, "", PUBLIC());
    sends(&mut session, &[query("SELECT 1"), query("SELEC 1")].concat());
    assert_eq!(session.server.output.split(), query("SELECT 1"));
    assert!(session.is_held_back());
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    assert_eq!(session.server.output, query("SELEC 1"));
}

#[test]
fn an_observed_write_of_a_portal_is_noted_once() {
    let policies = "version: 1\nresources:\n  - {name: trial, tables: [public.trials], mode: observe}\n";
    for (token, noted) in [("", "passed 1"), ("47", "observed trial=47")] {
        let mut session = session_under(policies, token, PUBLIC());
        sends(&mut session, &[parse("", "DELETE FROM trials RETURNING 1"), bind("", ""), execute("")].concat());
        replies(&mut session, &[parsed(), is_bound(), frame(backend::PORTAL_SUSPENDED, b"")].concat());
        assert_eq!(session.host.notifications(), format!("{noted}, query"));
        sends(&mut session, &execute(""));
        assert_eq!(session.host.notifications(), "query");
    }
}
