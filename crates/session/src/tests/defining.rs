//! Definitions in an open transaction: their effect on the session's own writes and on other sessions.

use super::keyed::{UPDATE, keyed};
use super::*;

/// Has these statements run in a transaction.
fn run(session: &mut Session<OneSession>, statements: &[&str]) {
    for sql in ["BEGIN"].iter().chain(statements) {
        says(session, &query(sql));
        let tag = sql.split(' ').next().unwrap_or_default();
        answers(session, &[completes(tag), at_rest(Status::Transaction)].concat());
    }
    session.server.output.clear();
    session.client.output.clear();
    session.host.told();
}

/// The host hears of it when it is sent, and when the server has committed it.
fn told_of(session: &mut Session<OneSession>, sql: &str) -> [String; 2] {
    says(session, &query(sql));
    let sent = session.host.told();
    answers(session, &[completes("DONE"), ready()].concat());
    [sent, session.host.told()]
}

const WAY: &str = "CREATE VIEW v AS SELECT * FROM jobs";

#[test]
fn what_a_transaction_makes_a_way_is_one_for_its_own_writes() {
    let mut session = session("47");
    run(&mut session, &[WAY]);
    assert!(says(&mut session, &query("INSERT INTO v VALUES (1)")).is_none());
    assert!(text(&session.server.output).contains("fencegate_lf004"));
    assert_eq!(session.host.told(), "query, rejected unverifiable");
}

#[test]
fn what_a_fenced_table_is_made_by_may_hide_in_the_rest_of_the_transaction() {
    for (sql, passes) in [("CREATE TABLE other (id int)", true), ("CREATE TABLE jobs (id int)", false)] {
        let mut session = session("47");
        // No fenced table exists yet.
        session.host.catalog = Arc::new(Catalog::default());
        run(&mut session, &[sql]);
        says(&mut session, &query("DO 'BEGIN END'"));
        assert_eq!(session.server.output == query("DO 'BEGIN END'"), passes, "{sql}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf004"), !passes, "{sql}");
    }
}

#[test]
fn what_defines_a_fenced_table_is_told_to_others() {
    let mut session = session("47");
    session.host.catalog = Arc::new(Catalog::default());
    assert_eq!(told_of(&mut session, "CREATE TABLE jobs (id int)"), ["publish, query", "changed, withdraw"]);
    assert_eq!(told_of(&mut session, "CREATE TABLE other (id int)"), ["query", "harmless"]);
}

#[test]
fn operators_and_types_concern_fences_where_keys_are_told_by_them() {
    let [makes, harmless] = ["CREATE DOMAIN int8 AS int", "CREATE TABLE other (id int)"];
    for makes in [
        makes,
        "CREATE TYPE s.text AS ENUM ('3')",
        "CREATE TYPE uuid AS (n int)",
        "CREATE TYPE int4 AS RANGE (SUBTYPE = int)",
        "CREATE TYPE many AS RANGE (SUBTYPE = int, MULTIRANGE_TYPE_NAME = s.int4)",
        "CREATE TYPE shell",
        "CREATE OPERATOR s.= (LEFTARG = int, RIGHTARG = int, FUNCTION = f)",
        "ALTER TYPE e RENAME TO int8",
        "CREATE TABLE int8 (n int)",
    ] {
        let [sent, done] = told_of(&mut keyed(), makes);
        assert!(sent.contains("publish") && done.contains("withdraw"), "{makes}: {sent} | {done}");
    }
    for harmless in [
        harmless,
        "CREATE DOMAIN d AS int8",
        "CREATE TYPE mood AS ENUM ('int8')",
        "CREATE TYPE pair AS (int8 int8)",
        "CREATE TYPE many AS RANGE (SUBTYPE = int8)",
        "DROP TYPE mood",
    ] {
        assert_eq!(told_of(&mut keyed(), harmless), ["query", "harmless"], "{harmless}");
    }
    let [sent, done] = told_of(&mut session(""), makes);
    assert!(!sent.contains("publish") && !done.contains("withdraw"), "{sent} | {done}");

    for made in [&[][..], &[makes], &[makes, "CREATE DOMAIN text AS int"], &[makes, harmless]] {
        let mut session = keyed();
        run(&mut session, made);
        let task = says(&mut session, &query(UPDATE));
        assert_eq!(admissions(task) == "shard/3=47", made.is_empty(), "{made:?}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf004"), !made.is_empty(), "{made:?}");
    }
}

/// Others may have defined something since that this builds on.
#[test]
fn a_change_is_harmless_as_of_the_first_definition_of_its_transaction() {
    for (later, expected) in [(0, "query, harmless"), (1, "query, changed")] {
        let mut session = session("");
        run(&mut session, &["CREATE TABLE other (id int)"]);
        session.host.doubts.store(later, Relaxed);
        says(&mut session, &query("CREATE TABLE another (id int)"));
        answers(&mut session, &[completes("CREATE TABLE"), at_rest(Status::Transaction)].concat());
        session.host.told();
        says(&mut session, &query("COMMIT"));
        answers(&mut session, &[completes("COMMIT"), ready()].concat());
        assert_eq!(session.host.told(), expected);
    }
    // Its first one came when that had been seen.
    let mut session = session("");
    session.host.doubts.store(1, Relaxed);
    assert_eq!(told_of(&mut session, "CREATE TABLE other (id int)"), ["query", "harmless"]);
}

#[test]
fn a_definition_counts_from_when_it_is_sent() {
    let mut session = session("");
    assert!(!session.defines_after_its_end());
    says(&mut session, &query(WAY));
    assert!(session.defines_after_its_end(), "the server may commit it, though it was left");
    session.server.ended = true;
    assert!(!session.defines_after_its_end());
}

#[test]
fn a_server_that_ends_within_a_definition_leaves_a_doubt() {
    for sql in ["DROP INDEX i", WAY] {
        let mut session = session("");
        says(&mut session, &query(sql));
        session.host.told();
        session.server.ended = true;
        session.definitions_ended();
        assert!(session.host.told().contains("changed"), "{sql}");
    }
}

#[test]
fn a_session_that_is_dropped_while_it_defines_leaves_a_doubt() {
    for (sql, expected) in [(WAY, "forget, withdraw"), ("DROP INDEX i", "forget"), ("SELECT 1", "")] {
        let mut session = session("");
        says(&mut session, &query(sql));
        session.host.told();
        let told = session.host.told.clone();
        drop(session);
        assert_eq!(told.lock().join(", "), expected, "{sql}");
    }
}
