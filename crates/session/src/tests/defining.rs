//! Definitions in an open transaction: their effect on the session's own writes and on other sessions.

use super::keyed::{UPDATE, keyed};
use super::*;

/// Runs these statements in a transaction.
fn run(session: &mut Session<OneSession>, statements: &[&str]) {
    for sql in ["BEGIN"].iter().chain(statements) {
        sends(session, &query(sql));
        let tag = sql.split(' ').next().unwrap_or_default();
        replies(session, &[completes(tag), at_rest(Status::Transaction)].concat());
    }
    session.server.output.clear();
    session.client.output.clear();
    session.host.notifications();
}

/// The host's notifications when the statement is sent, and when the server has committed it.
fn notified_by(session: &mut Session<OneSession>, sql: &str) -> [String; 2] {
    sends(session, &query(sql));
    let sent = session.host.notifications();
    replies(session, &[completes("DONE"), ready()].concat());
    [sent, session.host.notifications()]
}

const WAY: &str = "CREATE VIEW v AS SELECT * FROM jobs";

#[test]
fn a_write_through_a_view_created_in_the_transaction_is_rejected() {
    let mut session = session("47");
    run(&mut session, &[WAY]);
    assert!(sends(&mut session, &query("INSERT INTO v VALUES (1)")).is_none());
    assert!(text(&session.server.output).contains("fencegate_lf004"));
    assert_eq!(session.host.notifications(), "query, rejected unverifiable");
}

#[test]
fn an_opaque_statement_is_rejected_after_a_fenced_table_is_created() {
    for (sql, passes) in [("CREATE TABLE other (id int)", true), ("CREATE TABLE jobs (id int)", false)] {
        let mut session = session("47");
        // No fenced table exists yet.
        session.host.catalog = Arc::new(Catalog::default());
        run(&mut session, &[sql]);
        sends(&mut session, &query("DO 'BEGIN END'"));
        assert_eq!(session.server.output == query("DO 'BEGIN END'"), passes, "{sql}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf004"), !passes, "{sql}");
    }
}

#[test]
fn the_creation_of_a_fenced_table_is_published() {
    let mut session = session("47");
    session.host.catalog = Arc::new(Catalog::default());
    assert_eq!(notified_by(&mut session, "CREATE TABLE jobs (id int)"), ["publish, query", "changed, withdraw"]);
    assert_eq!(notified_by(&mut session, "CREATE TABLE other (id int)"), ["query", "harmless"]);
}

#[test]
fn operators_and_types_are_published_only_if_keys_depend_on_them() {
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
        let [sent, done] = notified_by(&mut keyed(), makes);
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
        assert_eq!(notified_by(&mut keyed(), harmless), ["query", "harmless"], "{harmless}");
    }
    let [sent, done] = notified_by(&mut session(""), makes);
    assert!(!sent.contains("publish") && !done.contains("withdraw"), "{sent} | {done}");

    for made in [&[][..], &[makes], &[makes, "CREATE DOMAIN text AS int"], &[makes, harmless]] {
        let mut session = keyed();
        run(&mut session, made);
        let task = sends(&mut session, &query(UPDATE));
        assert_eq!(admissions(task) == "shard/3=47", made.is_empty(), "{made:?}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf004"), !made.is_empty(), "{made:?}");
    }
}

/// Other sessions may since have defined objects that this change uses.
#[test]
fn a_change_is_harmless_only_if_no_doubt_follows_its_first_definition() {
    for (later, expected) in [(0, "query, harmless"), (1, "query, changed")] {
        let mut session = session("");
        run(&mut session, &["CREATE TABLE other (id int)"]);
        session.host.doubts.store(later, Relaxed);
        sends(&mut session, &query("CREATE TABLE another (id int)"));
        replies(&mut session, &[completes("CREATE TABLE"), at_rest(Status::Transaction)].concat());
        session.host.notifications();
        sends(&mut session, &query("COMMIT"));
        replies(&mut session, &[completes("COMMIT"), ready()].concat());
        assert_eq!(session.host.notifications(), expected);
    }
    // The session's first definition came after the change was noticed.
    let mut session = session("");
    session.host.doubts.store(1, Relaxed);
    assert_eq!(notified_by(&mut session, "CREATE TABLE other (id int)"), ["query", "harmless"]);
}

#[test]
fn a_definition_counts_once_it_is_sent() {
    let mut session = session("");
    assert!(!session.defines_after_its_end());
    sends(&mut session, &query(WAY));
    assert!(session.defines_after_its_end(), "the server may still commit it");
    session.server.ended = true;
    assert!(!session.defines_after_its_end());
}

#[test]
fn a_server_that_ends_during_a_definition_leaves_the_catalog_in_doubt() {
    for sql in ["DROP INDEX i", WAY] {
        let mut session = session("");
        sends(&mut session, &query(sql));
        session.host.notifications();
        session.server.ended = true;
        session.definitions_ended();
        assert!(session.host.notifications().contains("changed"), "{sql}");
    }
}

#[test]
fn a_session_dropped_during_a_definition_leaves_the_catalog_in_doubt() {
    for (sql, expected) in [(WAY, "forget, withdraw"), ("DROP INDEX i", "forget"), ("SELECT 1", "")] {
        let mut session = session("");
        sends(&mut session, &query(sql));
        session.host.notifications();
        let notifications = session.host.notifications.clone();
        drop(session);
        assert_eq!(notifications.lock().join(", "), expected, "{sql}");
    }
}
