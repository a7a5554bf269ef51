//! Names without a schema: when the search path determines their meaning, and when the server is queried for it.

use super::*;

const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const ASKS: &str = "SHOW search_path";

/// A session whose server has last reported another path.
fn elsewhere() -> Session<OneSession> {
    session_with("", Path::new(Some("other"), false))
}

/// Sends a statement and the server's reply. Returns the messages that the proxy then sends to the server.
fn written(session: &mut Session<OneSession>, sql: &str) -> String {
    sends(session, &query(sql));
    session.server.output.clear();
    replies(session, &[completes("INSERT 0 1"), ready()].concat());
    text(&session.server.output.split())
}

#[test]
fn the_path_is_queried_only_if_possible_and_relevant() {
    let unasked = |policies: &str| session_under(policies, "", Path::new(None, false));
    let mut asked = unasked(POLICIES);
    sends(&mut asked, &query(WRITE));
    assert_eq!(asked.server.output, query(ASKS));

    let mut failed = unasked(POLICIES);
    sends(&mut failed, &query("BEGIN"));
    replies(&mut failed, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    sends(&mut failed, &query("SELECT 1"));
    replies(&mut failed, &[cancelled(), at_rest(Status::Failed)].concat());
    failed.server.output.clear();
    sends(&mut failed, &query(WRITE));
    assert_eq!(failed.server.output, query(WRITE), "the server rejects it");

    let mut replicates = unasked(POLICIES);
    replicates.settings.replicates = true;
    sends(&mut replicates, &query(WRITE));
    assert!(replicates.server.output.is_empty() && text(&replicates.client.output).contains("LF002"));

    let mut exempt = unasked(&(POLICIES.to_owned() + "exempt_roles: [postgres]\n"));
    sends(&mut exempt, &query(WRITE));
    assert_eq!(exempt.server.output, query(WRITE));
}

#[test]
fn a_path_that_contains_the_table_is_not_queried_again() {
    let mut session = session("");
    assert_eq!(written(&mut session, "INSERT INTO free VALUES (1)"), "");
    assert!(sends(&mut session, &query(WRITE)).is_none());
    assert!(session.server.output.is_empty() && text(&session.client.output).contains("LF002"));
}

/// The server resolves the name later than the proxy judges it, so the path may have changed.
#[test]
fn a_definition_by_a_bare_name_may_mean_any_schema() {
    for (sql, passes) in [(WRITE, true), ("TRUNCATE jobs", true), ("DROP TABLE jobs", false)] {
        let mut session = session_with("", Path::new(Some("other"), true));
        sends(&mut session, &query(sql));
        assert_eq!(session.server.output == query(sql), passes, "{sql}");
    }
    for (sql, passes) in [(WRITE, true), ("DROP TABLE jobs", false)] {
        let mut session = session_with("", Path::new(Some("other"), true));
        let all = [parse("", sql), bind("", ""), execute(""), sync()].concat();
        sends(&mut session, &all);
        assert_eq!(session.server.output == all, passes, "{sql}");
    }
    // TRUNCATE resolves the table when it runs, and the path may have changed since the Bind.
    let mut session = elsewhere();
    let bound = [parse("", "TRUNCATE jobs"), bind("", "")].concat();
    sends(&mut session, &[&query("INSERT INTO free VALUES (1)")[..], &bound].concat());
    assert!(session.server.output.ends_with(&bound), "no query at the Bind");
}

/// PostgreSQL searches these schemas even if the path does not name them.
#[test]
fn a_bare_name_may_mean_a_temporary_or_system_relation() {
    for (view, path, sql, passes) in [
        ("other.none", "other", WRITE, true),
        ("other.jobs", "other", WRITE, false),
        ("pg_temp_3.jobs", "other", WRITE, false),
        ("pg_temp_3.jobs", "other, pg_temp", WRITE, false),
        ("pg_temp_3.v", "other", "INSERT INTO v VALUES (1)", false),
        ("pg_catalog.v", "other", "INSERT INTO v VALUES (1)", false),
        ("third.v", "other", "INSERT INTO v VALUES (1)", true),
    ] {
        let mut session = session_with("", Path::new(Some(path), true));
        let table = session.host.policies.resources[0].tables[0].name.clone();
        let view_on_it = (view.to_owned(), table.clone());
        session.host.catalog = Arc::new(Catalog::with_views([(table, false)], [view_on_it]));
        sends(&mut session, &query(sql));
        assert_eq!(session.server.output == query(sql), passes, "{view} by {path}");
        assert_eq!(text(&session.client.output).contains("LF002"), !passes, "{view} by {path}");
    }
}

/// The proxy cannot send a query within a message.
#[test]
fn no_query_is_sent_ahead_within_a_message() {
    let mut session = elsewhere();
    assert!(written(&mut session, WRITE).contains(ASKS));
    let mut session = elsewhere();
    sends(&mut session, &query(WRITE));
    let data = frame(frontend::COPY_DATA, &[b'x'; 100]);
    sends(&mut session, &data[..50]);
    session.server.output.clear();
    replies(&mut session, &[completes("INSERT 0 1"), ready()].concat());
    assert!(session.server.output.is_empty());
    sends(&mut session, &data[50..]);
    assert_eq!(session.server.output, data[50..]);
}

#[test]
fn no_query_is_sent_ahead_if_the_client_terminates_or_has_sent_more() {
    for more in [frame(frontend::TERMINATE, b""), query("SELECT 1")] {
        let mut session = elsewhere();
        sends(&mut session, &[query(WRITE), more].concat());
        session.server.output.clear();
        replies(&mut session, &[completes("INSERT 0 1"), ready()].concat());
        assert!(session.server.output.is_empty());
    }
}

#[test]
fn a_failed_query_ahead_is_repeated_before_a_write() {
    let mut session = elsewhere();
    assert!(written(&mut session, WRITE).contains(ASKS));
    replies(&mut session, &[cancelled(), ready()].concat());
    session.server.output.clear();
    sends(&mut session, &query(WRITE));
    assert_eq!(session.server.output, query(ASKS));
}

/// A session that no longer writes by the path is not worth the query.
#[test]
fn the_path_is_queried_ahead_for_some_time_after_the_last_write() {
    let mut session = elsewhere();
    let free = "INSERT INTO free VALUES (1)";
    assert!(is_queried_ahead(&mut session, WRITE));
    for _ in 0..2 {
        let times = (0..40).filter(|_| is_queried_ahead(&mut session, free)).count();
        assert_eq!(times, 15);
        // The next write waits for the path, which is then queried ahead again.
        sends(&mut session, &query(WRITE));
        replies(&mut session, &reply_in_query(&["other"]));
        session.server.output.clear();
        replies(&mut session, &[completes("INSERT 0 1"), ready()].concat());
        assert!(text(&session.server.output).contains(ASKS));
        replies(&mut session, &answer_of("other"));
    }
}

/// Sends a statement and the server's reply. Returns true if the session then queries the path.
fn is_queried_ahead(session: &mut Session<OneSession>, sql: &str) -> bool {
    let is_asked = written(session, sql).contains(ASKS);
    if is_asked {
        replies(session, &answer_of("other"));
    }
    is_asked
}

/// After an Execute without a Sync, the implicit transaction is open, and a simple query would end it.
#[test]
fn an_internal_query_joins_the_pipeline_only_if_one_is_open() {
    for (sent, answer, in_pipeline) in [
        (parse("", "SELECT 1").to_vec(), parsed().to_vec(), false),
        (
            [parse("", "SELECT 1"), bind("", ""), execute("")].concat(),
            [parsed(), is_bound(), completes("SELECT 1")].concat(),
            true,
        ),
    ] {
        let mut session = session_with("", Path::new(None, false));
        sends(&mut session, &sent);
        replies(&mut session, &answer);
        session.server.output.clear();
        sends(&mut session, &query(WRITE));
        assert_eq!(session.server.output == query(ASKS), !in_pipeline);
        assert!(text(&session.server.output).contains(ASKS));
        assert_eq!(session.server.output.ends_with(&flush()), in_pipeline);
    }
}

/// The proxy rejects a statement whose names the path may resolve to fencegate's own objects. Other names cost nothing.
#[test]
fn a_bare_name_of_fencegates_own_objects_is_rejected() {
    let asks = query("SHOW search_path; SHOW role; SHOW session_authorization");
    for (path, sql, passes) in [
        (Some("public"), "DELETE FROM epoch", true),
        (Some("\"$user\", public"), "DELETE FROM free", true),
        (None, "DELETE FROM free", true),
        (Some("fencegate"), "DELETE FROM free", true),
        (Some("fencegate"), "DELETE FROM epoch", false),
        (Some("public, fencegate_state"), "DELETE FROM epoch", false),
    ] {
        let mut session = session_with("", Path::new(path, true));
        sends(&mut session, &query(sql));
        assert_eq!(session.server.output == query(sql), passes, "{sql} by {path:?}");
        assert_eq!(text(&session.client.output).contains("LF004"), !passes, "{sql} by {path:?}");
    }
    for (path, answer, passes) in [
        (None, ["public", "none", "postgres"], true),
        (None, ["\"$user\"", "fencegate", "postgres"], false),
        (Some("\"$user\", public"), ["\"$user\", public", "none", "postgres"], true),
        (Some("\"$user\", public"), ["\"$user\", public", "none", "fencegate"], false),
        (Some("\"$user\", public"), ["\"$user\", public", "fencegate_state", "postgres"], false),
    ] {
        let mut session = session_with("", Path::new(path, false));
        sends(&mut session, &query("DELETE FROM epoch"));
        assert_eq!(session.server.output.split(), asks, "{path:?}");
        let reply = answer.map(|value| [row_of(&[value]), completes("SHOW")].concat()).concat();
        replies(&mut session, &[&reply[..], &ready()].concat());
        assert_eq!(session.server.output == query("DELETE FROM epoch"), passes, "{answer:?}");
    }
}
