//! Queries to the server that a verdict needs.

use super::*;

const WRITE: &str = "INSERT INTO jobs VALUES (1)";

#[test]
fn the_path_is_queried_after_pending_replies() {
    for (path, passes) in [("other", true), ("public", false)] {
        let mut session = session_with("", Path::new(Some("other"), false));
        sends(&mut session, &query("SELECT 1"));
        session.server.output.clear();
        sends(&mut session, &query(WRITE));
        assert!(session.server.output.is_empty() && session.is_held_back());
        replies(&mut session, &ready());
        assert_eq!(session.server.output.split(), query("SHOW search_path"));
        assert_eq!(session.client.output.split(), ready());
        replies(&mut session, &reply_in_query(&[path]));
        assert_eq!(session.server.output == query(WRITE), passes, "{path}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf002"), !passes, "{path}");
    }
}

/// A function may have set the path and the token.
#[test]
fn the_path_and_the_token_are_queried_together() {
    for (token, expected) in [("48", "scheduler=48"), ("", "none")] {
        let mut session = session_with("47", Path::new(Some("other"), false));
        sends(&mut session, &query("SELECT f()"));
        replies(&mut session, &[completes("SELECT 1"), ready()].concat());
        session.server.output.clear();
        sends(&mut session, &query(WRITE));
        let asked = text(&session.server.output.split());
        assert!(asked.contains("'lease.fence', true") && asked.contains("'search_path'"), "{asked}");
        let task = replies(&mut session, &reply_in_query(&[token, "on", "UTF8", "{pg_catalog,public}", "public"]));
        assert_eq!(admissions(task), expected);
        assert_eq!(text(&session.server.output).contains("fencegate_lf002"), token.is_empty());
    }
}

#[test]
fn a_canceled_internal_query_fails_the_waiting_statement() {
    let mut session = session_with("47", Path::new(Some("public"), true));
    sends(&mut session, &query("SELECT f()"));
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.server.output.clear();
    session.client.output.clear();
    sends(&mut session, &query(WRITE));
    assert!(text(&session.server.output.split()).contains("'lease.fence', true"));
    replies(&mut session, &[cancelled(), ready()].concat());
    assert_eq!(session.client.output, [cancelled(), ready()].concat());
    assert!(session.is_idle() && session.server.output.is_empty());
}

#[test]
fn a_text_waits_until_its_lexing_is_known() {
    let mut session = session("");
    sends(&mut session, &query("SELECT 1"));
    session.server.output.clear();
    sends(&mut session, &query(r"SELECT '\'"));
    assert!(session.server.output.is_empty() && session.is_held_back());
    replies(&mut session, &ready());
    assert_eq!(session.server.output, query(r"SELECT '\'"), "the server has reported its settings");
}

/// The server reports changed settings only with ReadyForQuery, so within a pipeline it must be queried.
#[test]
fn in_a_pipeline_the_lexing_is_queried() {
    for (conforming, notified) in [("on", "query"), ("off", "query, rejected unverifiable")] {
        let mut session = session("");
        sends(&mut session, &[parse("", "SELECT f()"), bind("", ""), execute("")].concat());
        replies(&mut session, &[parsed(), is_bound(), completes("SELECT 1")].concat());
        session.server.output.clear();
        session.host.notifications();
        let unclear = parse("", r"SELECT '\'");
        sends(&mut session, &unclear);
        let asked = session.server.output.split();
        assert!(text(&asked).contains("'standard_conforming_strings'") && asked.ends_with(&flush()));
        assert!(session.is_held_back());
        replies(&mut session, &reply_in_pipeline(&["", conforming, "UTF8", "{pg_catalog,public}", "public"]));
        assert_eq!(session.server.output, unclear);
        sends(&mut session, &[bind("", ""), execute("")].concat());
        replies(&mut session, &[parsed(), is_bound()].concat());
        assert_eq!(session.host.notifications(), notified);
    }
}

/// Returns true if these messages query the token.
fn queries_token(sent: &[u8]) -> bool {
    text(sent).contains("'lease.fence', true")
}

/// The server may refuse a statement that commits by itself unless it is first in its pipeline.
#[test]
fn a_statement_that_must_come_first_is_bound_after_a_separate_query() {
    let alter = "ALTER TABLE jobs DETACH PARTITION jobs_1 CONCURRENTLY";
    let mut session = session("47");
    sends(&mut session, &query("SELECT f()"));
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.client.output.clear();
    session.server.output.clear();
    sends(&mut session, &parse("", alter));
    replies(&mut session, &parsed());
    assert_eq!((session.server.output.split(), session.client.output.split()), (parse("", alter), parsed()));
    sends(&mut session, &[bind("", ""), execute(""), sync()].concat());
    let asked = session.server.output.split();
    assert!(queries_token(&asked) && asked.ends_with(&sync()), "{}", text(&asked));
    let answer = reply_in_pipeline(&["47", "on", "UTF8", "{pg_catalog,public}", "public"]);
    let task = replies(&mut session, &[&answer[..], &ready()].concat());
    assert_eq!(session.server.output.split(), bind("", ""));
    assert!(session.client.output.is_empty(), "the client did not send that query");
    assert_eq!(admissions(task), "scheduler=47");
}

/// The client's messages up to its Sync are skipped, as after any error.
#[test]
fn a_canceled_separate_query_skips_the_clients_pipeline() {
    let mut session = session("47");
    sends(&mut session, &query("SELECT f()"));
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.client.output.clear();
    sends(&mut session, &[parse("", "DROP TABLE jobs"), bind("", ""), execute("")].concat());
    replies(&mut session, &parsed());
    assert!(queries_token(&session.server.output.split()));
    replies(&mut session, &[cancelled(), ready()].concat());
    assert!(session.server.output.is_empty(), "the pipeline is skipped");
    assert_eq!(session.client.output.split(), [parsed(), cancelled()].concat());
    sends(&mut session, &[parse("", "SELECT 1"), sync()].concat());
    assert_eq!(session.server.output.split(), sync());
    replies(&mut session, &ready());
    assert_eq!(session.client.output, ready());
    assert!(session.is_idle());
}

#[test]
fn a_canceled_internal_query_fails_the_waiting_call() {
    let require = POLICIES.to_owned() + "opaque: require_token\n";
    let call = frame(frontend::FUNCTION_CALL, &[&1u32.to_be_bytes()[..], &[0; 6]].concat());
    for in_pipeline in [false, true] {
        let mut session = session_under(&require, "47", Path::new(Some("public"), true));
        let (first, answer) = match in_pipeline {
            true => (
                [parse("", "SELECT f()"), bind("", ""), execute("")].concat(),
                [parsed(), is_bound(), completes("SELECT 1")].concat(),
            ),
            false => (query("SELECT f()").to_vec(), [completes("SELECT 1"), ready()].concat()),
        };
        sends(&mut session, &first);
        replies(&mut session, &answer);
        session.client.output.clear();
        session.server.output.clear();
        sends(&mut session, &call);
        let asked = session.server.output.split();
        assert!(queries_token(&asked) && asked.ends_with(&if in_pipeline { flush() } else { sync() }));
        replies(&mut session, &cancelled());
        if in_pipeline {
            assert_eq!(session.server.output.split(), sync());
        }
        replies(&mut session, &ready());
        assert_eq!(session.client.output, [cancelled(), ready()].concat(), "in a pipeline: {in_pipeline}");
        assert!(session.is_idle() && session.client.input.is_empty());
    }
}
