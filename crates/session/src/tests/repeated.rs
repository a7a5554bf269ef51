//! Resending after a refusal by the guard: which statements, which responses are sent in the meantime, and which data
//! is kept.

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

/// The messages that the client receives if this reply raises the fence and the statement is not resent.
fn received_after(session: &mut Session<OneSession>, answer: &[u8]) -> String {
    assert!(replies(session, answer).is_some(), "the fence is raised");
    session.server.output.clear();
    admitted(session);
    assert!(session.server.output.is_empty(), "the statement was resent");
    text(&session.client.output.split())
}

#[test]
fn a_long_query_is_not_resent() {
    for (length, again) in [(60_000, true), (70_000, false)] {
        let mut session = session("47");
        let sent = query(&format!("SELECT f() /* {} */", "x".repeat(length)));
        sends(&mut session, &sent);
        assert!(replies(&mut session, &[guards("scheduler"), ready()].concat()).is_some());
        session.server.output.clear();
        admitted(&mut session);
        assert_eq!(session.server.output == sent, again, "{length}");
        assert_eq!(text(&session.client.output).contains("HThe token is now in force"), !again, "{length}");
    }
}

/// The second BEGIN may request another kind of transaction.
#[test]
fn a_transaction_begun_twice_is_not_restarted() {
    let mut session = session("47");
    for text in ["BEGIN", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        sends(&mut session, &query(text));
        replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    }
    sends(&mut session, &query("SELECT f()"));
    let received = received_after(&mut session, &[guards("scheduler"), at_rest(Status::Failed)].concat());
    assert!(received.contains("HThe token is now in force. Nothing was written"), "{received}");
}

/// The earlier statement completed before the error, in the same pipeline.
#[test]
fn the_hint_mentions_earlier_commits_if_there_may_be_any() {
    for (first, stays) in [("COMMIT", true), ("SELECT 1", false)] {
        let mut session = session("47");
        let run = |sql| [parse("", sql), bind("", ""), execute("")].concat();
        sends(&mut session, &[run(first), run("SELECT f()"), sync().to_vec()].concat());
        replies(&mut session, &[parsed(), is_bound(), completes(first), parsed(), is_bound()].concat());
        let received = received_after(&mut session, &[guards("scheduler"), ready()].concat());
        assert_eq!(received.contains("Earlier commits are unaffected"), stays, "{received}");
    }
}

#[test]
fn a_query_is_resent_for_at_most_eight_fences() {
    let names: Vec<String> = (0..9).map(|number| format!("r{number}")).collect();
    let resources = names.iter().map(|name| format!("  - {{name: {name}, tables: [public.{name}]}}\n"));
    let policies = format!("version: 1\nresources:\n{}", resources.collect::<String>());
    let mut session = session_under(&policies, "47", Path::new(Some("public"), true));
    let sent = query("SELECT f()");
    sends(&mut session, &sent);
    for name in &names[..8] {
        session.server.output.clear();
        assert!(replies(&mut session, &[guards(name), ready()].concat()).is_some());
        admitted(&mut session);
        assert_eq!((&session.server.output, session.client.output.len()), (&sent, 0), "{name}");
    }
    let received = received_after(&mut session, &[guards("r8"), ready()].concat());
    assert!(received.contains("HThe token is now in force"), "{received}");
}

#[test]
fn a_later_query_is_also_resent() {
    let mut session = session("47");
    sends(&mut session, &query("SELECT 1"));
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    let sent = query("SELECT f()");
    sends(&mut session, &sent);
    assert!(replies(&mut session, &[guards("scheduler"), ready()].concat()).is_some());
    session.server.output.clear();
    admitted(&mut session);
    assert_eq!(session.server.output, sent);
}

#[test]
fn a_row_description_precedes_its_rows() {
    for next in [frame(backend::DATA_ROW, &[0, 0]), completes("SELECT 0"), cancelled(), frame(backend::NOTICE, b"\0")] {
        let mut session = session("47");
        sends(&mut session, &query("SELECT f()"));
        replies(&mut session, &description());
        replies(&mut session, &next);
        assert_eq!(session.client.output, [description(), next].concat());
    }
}

/// A response need not be held back if its message is not resent.
#[test]
fn a_row_description_is_sent_at_once_if_no_resend_is_possible() {
    let mut without = session("");
    sends(&mut without, &query("SELECT f()"));
    replies(&mut without, &description());
    assert_eq!(without.client.output, description());
    // Queries overlap, so that another is pending whenever one is answered.
    let mut session = session("47");
    sends(&mut session, &[query("SELECT 1"), query("SELECT 2")].concat());
    replies(&mut session, &[completes("SELECT 1"), ready()].concat());
    sends(&mut session, &query("SELECT 3"));
    session.client.output.clear();
    replies(&mut session, &description());
    assert_eq!(session.client.output, description());
}

/// The admission belongs to the next message. The guard's earlier refusal is reported in order.
#[test]
fn an_admission_belongs_to_the_message_that_waits_for_it() {
    let mut session = session("47");
    let (first, write) = (query("INSERT INTO free VALUES (1)"), query("DELETE FROM jobs"));
    sends(&mut session, &first);
    assert_eq!(admissions(sends(&mut session, &write)), "scheduler=47");
    assert!(replies(&mut session, &guards("scheduler")).is_none());
    admit(&session, "scheduler", 47);
    admitted(&mut session);
    assert_eq!(session.server.output, [first, write].concat());
    replies(&mut session, &ready());
    assert_eq!(session.client.output, [guards("scheduler"), ready()].concat());
}
