//! Queries to the server that a verdict needs.

use super::*;

const WRITE: &str = "INSERT INTO jobs VALUES (1)";

#[test]
fn the_path_is_asked_for_once_nothing_is_owed() {
    for (path, passes) in [("other", true), ("public", false)] {
        let mut session = session_with("", Path::new(Some("other"), false));
        says(&mut session, &query("SELECT 1"));
        session.server.output.clear();
        says(&mut session, &query(WRITE));
        assert!(session.server.output.is_empty() && session.is_held_back());
        answers(&mut session, &ready());
        assert_eq!(session.server.output.split(), query("SHOW search_path"));
        assert_eq!(session.client.output.split(), ready());
        answers(&mut session, &told_in_query(&[path]));
        assert_eq!(session.server.output == query(WRITE), passes, "{path}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf002"), !passes, "{path}");
    }
}

/// A function may have set both.
#[test]
fn the_path_and_the_token_are_asked_for_together() {
    for (token, expected) in [("48", "scheduler=48"), ("", "none")] {
        let mut session = session_with("47", Path::new(Some("other"), false));
        says(&mut session, &query("SELECT f()"));
        answers(&mut session, &[completes("SELECT 1"), ready()].concat());
        session.server.output.clear();
        says(&mut session, &query(WRITE));
        let asked = text(&session.server.output.split());
        assert!(asked.contains("'lease.fence', true") && asked.contains("'search_path'"), "{asked}");
        let task = answers(&mut session, &told_in_query(&[token, "on", "UTF8", "{pg_catalog,public}", "public"]));
        assert_eq!(admissions(task), expected);
        assert_eq!(text(&session.server.output).contains("fencegate_lf002"), token.is_empty());
    }
}

#[test]
fn a_question_that_is_cancelled_answers_what_it_was_asked_for() {
    let mut session = session_with("47", Path::new(Some("public"), true));
    says(&mut session, &query("SELECT f()"));
    answers(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.server.output.clear();
    session.client.output.clear();
    says(&mut session, &query(WRITE));
    assert!(text(&session.server.output.split()).contains("'lease.fence', true"));
    answers(&mut session, &[cancelled(), ready()].concat());
    assert_eq!(session.client.output, [cancelled(), ready()].concat());
    assert!(session.is_idle() && session.server.output.is_empty());
}

#[test]
fn a_text_waits_until_it_is_known_how_it_is_read() {
    let mut session = session("");
    says(&mut session, &query("SELECT 1"));
    session.server.output.clear();
    says(&mut session, &query(r"SELECT '\'"));
    assert!(session.server.output.is_empty() && session.is_held_back());
    answers(&mut session, &ready());
    assert_eq!(session.server.output, query(r"SELECT '\'"), "the server has reported what has changed");
}

/// The server reports changed settings only with ReadyForQuery, so within a pipeline it must be queried.
#[test]
fn in_a_pipeline_it_is_asked_how_a_text_is_read() {
    for (conforming, told) in [("on", "query"), ("off", "query, rejected unverifiable")] {
        let mut session = session("");
        says(&mut session, &[parse("", "SELECT f()"), bind("", ""), execute("")].concat());
        answers(&mut session, &[parsed(), is_bound(), completes("SELECT 1")].concat());
        session.server.output.clear();
        session.host.told();
        let unclear = parse("", r"SELECT '\'");
        says(&mut session, &unclear);
        let asked = session.server.output.split();
        assert!(text(&asked).contains("'standard_conforming_strings'") && asked.ends_with(&flush()));
        assert!(session.is_held_back());
        answers(&mut session, &told_in_pipeline(&["", conforming, "UTF8", "{pg_catalog,public}", "public"]));
        assert_eq!(session.server.output, unclear);
        says(&mut session, &[bind("", ""), execute("")].concat());
        answers(&mut session, &[parsed(), is_bound()].concat());
        assert_eq!(session.host.told(), told);
    }
}

/// The messages that ask for the token.
fn asks_for_token(sent: &[u8]) -> bool {
    text(sent).contains("'lease.fence', true")
}

/// The server may run nothing behind it in the same pipeline that commits by itself.
#[test]
fn what_may_have_to_come_first_is_bound_behind_a_question_of_its_own() {
    let alter = "ALTER TABLE jobs DETACH PARTITION jobs_1 CONCURRENTLY";
    let mut session = session("47");
    says(&mut session, &query("SELECT f()"));
    answers(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.client.output.clear();
    session.server.output.clear();
    says(&mut session, &parse("", alter));
    answers(&mut session, &parsed());
    assert_eq!((session.server.output.split(), session.client.output.split()), (parse("", alter), parsed()));
    says(&mut session, &[bind("", ""), execute(""), sync()].concat());
    let asked = session.server.output.split();
    assert!(asks_for_token(&asked) && asked.ends_with(&sync()), "{}", text(&asked));
    let answer = told_in_pipeline(&["47", "on", "UTF8", "{pg_catalog,public}", "public"]);
    let task = answers(&mut session, &[&answer[..], &ready()].concat());
    assert_eq!(session.server.output.split(), bind("", ""));
    assert!(session.client.output.is_empty(), "the client has asked for nothing of that");
    assert_eq!(admissions(task), "scheduler=47");
}

/// The client's messages up to its Sync are skipped, as after any error.
#[test]
fn a_question_of_its_own_that_is_cancelled_has_its_pipeline_skipped() {
    let mut session = session("47");
    says(&mut session, &query("SELECT f()"));
    answers(&mut session, &[completes("SELECT 1"), ready()].concat());
    session.client.output.clear();
    says(&mut session, &[parse("", "DROP TABLE jobs"), bind("", ""), execute("")].concat());
    answers(&mut session, &parsed());
    assert!(asks_for_token(&session.server.output.split()));
    answers(&mut session, &[cancelled(), ready()].concat());
    assert!(session.server.output.is_empty(), "nothing of it is passed on");
    assert_eq!(session.client.output.split(), [parsed(), cancelled()].concat());
    says(&mut session, &[parse("", "SELECT 1"), sync()].concat());
    assert_eq!(session.server.output.split(), sync());
    answers(&mut session, &ready());
    assert_eq!(session.client.output, ready());
    assert!(session.is_idle());
}

#[test]
fn a_question_for_a_call_that_is_cancelled_answers_the_call() {
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
        says(&mut session, &first);
        answers(&mut session, &answer);
        session.client.output.clear();
        session.server.output.clear();
        says(&mut session, &call);
        let asked = session.server.output.split();
        assert!(asks_for_token(&asked) && asked.ends_with(&if in_pipeline { flush() } else { sync() }));
        answers(&mut session, &cancelled());
        if in_pipeline {
            assert_eq!(session.server.output.split(), sync());
        }
        answers(&mut session, &ready());
        assert_eq!(session.client.output, [cancelled(), ready()].concat(), "in a pipeline: {in_pipeline}");
        assert!(session.is_idle() && session.client.input.is_empty());
    }
}
