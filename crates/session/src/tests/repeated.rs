//! Resending after a refusal by the guard: which statements, which responses are sent meanwhile, and which data is
//! kept.

use super::*;

/// The guard's error about one resource.
fn guards(resource: &str) -> BytesMut {
    let detail = format!("resource={resource} presented=47 highest=46");
    frame(backend::ERROR, format!("SERROR\0VERROR\0CLF004\0Mno\0D{detail}\0Hthe guard's\0\0").as_bytes())
}

fn description() -> BytesMut {
    frame(backend::ROW_DESCRIPTION, &[0, 0])
}

fn admitted(session: &mut Session<OneSession>) {
    session.done(Done::Admit(Ok(())));
    assert!(settle(session).is_none());
}

/// The client's messages if the fence is raised after this response and the statement is not resent.
fn told_after(session: &mut Session<OneSession>, answer: &[u8]) -> String {
    assert!(answers(session, answer).is_some(), "the fence is raised");
    session.server.output.clear();
    admitted(session);
    assert!(session.server.output.is_empty(), "it is sent again");
    text(&session.client.output.split())
}

#[test]
fn a_long_query_is_not_sent_again() {
    for (length, again) in [(60_000, true), (70_000, false)] {
        let mut session = session("47");
        let sent = query(&format!("SELECT f() /* {} */", "x".repeat(length)));
        says(&mut session, &sent);
        assert!(answers(&mut session, &[guards("scheduler"), ready()].concat()).is_some());
        session.server.output.clear();
        admitted(&mut session);
        assert_eq!(session.server.output == sent, again, "{length}");
        assert_eq!(text(&session.client.output).contains("HThe token is now in force"), !again, "{length}");
    }
}

/// The second may be another kind of transaction.
#[test]
fn a_transaction_that_was_begun_twice_is_not_begun_anew() {
    let mut session = session("47");
    for text in ["BEGIN", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        says(&mut session, &query(text));
        answers(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    }
    says(&mut session, &query("SELECT f()"));
    let told = told_after(&mut session, &[guards("scheduler"), at_rest(Status::Failed)].concat());
    assert!(told.contains("HThe token is now in force. Nothing was written"), "{told}");
}

/// The earlier statement completed before the error, in the same pipeline.
#[test]
fn what_may_have_been_committed_before_is_said_to_stay() {
    for (first, stays) in [("COMMIT", true), ("SELECT 1", false)] {
        let mut session = session("47");
        let run = |sql| [parse("", sql), bind("", ""), execute("")].concat();
        says(&mut session, &[run(first), run("SELECT f()"), sync().to_vec()].concat());
        answers(&mut session, &[parsed(), is_bound(), completes(first), parsed(), is_bound()].concat());
        let told = told_after(&mut session, &[guards("scheduler"), ready()].concat());
        assert_eq!(told.contains("Earlier commits are unaffected"), stays, "{told}");
    }
}

#[test]
fn a_query_is_sent_again_for_eight_fences_at_most() {
    let names: Vec<String> = (0..9).map(|number| format!("r{number}")).collect();
    let resources = names.iter().map(|name| format!("  - {{name: {name}, tables: [public.{name}]}}\n"));
    let policies = format!("version: 1\nresources:\n{}", resources.collect::<String>());
    let mut session = session_under(&policies, "47", Path::new(Some("public"), true));
    let sent = query("SELECT f()");
    says(&mut session, &sent);
    for name in &names[..8] {
        session.server.output.clear();
        assert!(answers(&mut session, &[guards(name), ready()].concat()).is_some());
        admitted(&mut session);
        assert_eq!((&session.server.output, session.client.output.len()), (&sent, 0), "{name}");
    }
    let told = told_after(&mut session, &[guards("r8"), ready()].concat());
    assert!(told.contains("HThe token is now in force"), "{told}");
}

#[test]
fn also_a_later_query_is_sent_again() {
    let mut session = session("47");
    says(&mut session, &query("SELECT 1"));
    answers(&mut session, &[completes("SELECT 1"), ready()].concat());
    let sent = query("SELECT f()");
    says(&mut session, &sent);
    assert!(answers(&mut session, &[guards("scheduler"), ready()].concat()).is_some());
    session.server.output.clear();
    admitted(&mut session);
    assert_eq!(session.server.output, sent);
}

#[test]
fn the_description_of_rows_stands_before_them() {
    for next in [frame(backend::DATA_ROW, &[0, 0]), completes("SELECT 0"), cancelled(), frame(backend::NOTICE, b"\0")] {
        let mut session = session("47");
        says(&mut session, &query("SELECT f()"));
        answers(&mut session, &description());
        answers(&mut session, &next);
        assert_eq!(session.client.output, [description(), next].concat());
    }
}

/// A response need not be held back if its message is not resent.
#[test]
fn the_description_of_rows_is_told_at_once_where_nothing_is_sent_again() {
    let mut without = session("");
    says(&mut without, &query("SELECT f()"));
    answers(&mut without, &description());
    assert_eq!(without.client.output, description());
    // One behind the other, so that more is under way whenever one is answered.
    let mut session = session("47");
    says(&mut session, &[query("SELECT 1"), query("SELECT 2")].concat());
    answers(&mut session, &[completes("SELECT 1"), ready()].concat());
    says(&mut session, &query("SELECT 3"));
    session.client.output.clear();
    answers(&mut session, &description());
    assert_eq!(session.client.output, description());
}

/// The admission is the next message's. The guard's earlier refusal is reported in order.
#[test]
fn an_admission_meanwhile_is_that_of_the_message_that_waits_for_it() {
    let mut session = session("47");
    let (first, write) = (query("INSERT INTO free VALUES (1)"), query("DELETE FROM jobs"));
    says(&mut session, &first);
    assert_eq!(admissions(says(&mut session, &write)), "scheduler=47");
    assert!(answers(&mut session, &guards("scheduler")).is_none());
    admit(&session, "scheduler", 47);
    admitted(&mut session);
    assert_eq!(session.server.output, [first, write].concat());
    answers(&mut session, &ready());
    assert_eq!(session.client.output, [guards("scheduler"), ready()].concat());
}
