//! Writes that only the guard sees, under a token that is not in force yet.

use super::*;
use fencegate_fence::Obstacle;
use fencegate_fence::{RequiredPrivilege, Role};
use fencegate_wire::tag::backend as tag;

const GUARD: &str = "token 47 for resource \"scheduler\" is not in force yet";

fn error(code: &str, detail: &str) -> BytesMut {
    frame(tag::ERROR, format!("SERROR\0VERROR\0C{code}\0M{GUARD}\0D{detail}\0Hthe guard's\0\0").as_bytes())
}

fn guards() -> BytesMut {
    error("LF004", "resource=scheduler presented=47 highest=46")
}

/// Parses, binds and runs the unnamed statement.
fn extended(sql: &str) -> BytesMut {
    BytesMut::from(&[parse("", sql), bound()].concat()[..])
}

fn bound() -> BytesMut {
    BytesMut::from(&[bind("", ""), execute(""), sync()].concat()[..])
}

fn description() -> BytesMut {
    frame(tag::ROW_DESCRIPTION, &[0, 0])
}

fn row() -> BytesMut {
    frame(tag::DATA_ROW, &[0, 0])
}

fn admitted(session: &mut Session<OneSession>) -> Option<Task> {
    session.done(Done::Admit(Ok(())));
    settle(session)
}

fn received(session: &Session<OneSession>) -> String {
    text(&session.client.output)
}

#[test]
fn a_query_is_resent_once_its_token_is_in_force() {
    let mut session = session("47");
    let sent = query("SELECT f()");
    sends(&mut session, &sent);
    assert!(replies(&mut session, &[description(), guards()].concat()).is_none());
    let Some(Task::Admit(needs)) = replies(&mut session, &ready()) else { panic!("no task is requested") };
    let (need, claim) = &needs[0];
    assert_eq!((needs.len(), need.resource.name.as_str(), need.token, need.may_raise), (1, "scheduler", 47, true));
    // A role that could not lock the table may not raise its fence.
    assert!(
        matches!(&claim.privileges[..], [RequiredPrivilege::Write(relation, fencegate_statement::Operation::Lock)] if relation.name == "jobs")
    );
    assert_eq!((&claim.role, claim.one_suffices), (&Some(Role::AnyOf("postgres".into())), true));
    assert!(session.client.output.is_empty() && session.is_held_back() && !session.is_idle());
    // Later messages are sent after it.
    sends(&mut session, &query("SELECT 2"));
    session.server.output.clear();
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, [sent, query("SELECT 2")].concat());
    let answer = [description(), row(), completes("SELECT 1"), ready()].concat();
    replies(&mut session, &answer);
    assert_eq!(session.client.output, answer);
}

#[test]
fn a_bound_statement_is_rebound_without_a_second_reply() {
    let mut session = session("47");
    sends(&mut session, &extended("SELECT f()"));
    session.server.output.clear();
    assert!(replies(&mut session, &[parsed(), is_bound(), guards(), ready()].concat()).is_some());
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, bound());
    replies(&mut session, &[is_bound(), row(), completes("SELECT 1"), ready()].concat());
    assert_eq!(session.client.output, [parsed(), is_bound(), row(), completes("SELECT 1"), ready()].concat());
    // The next execution needs no special treatment.
    session.client.output.clear();
    sends(&mut session, &bound());
    let answer = [is_bound(), row(), completes("SELECT 1"), ready()].concat();
    replies(&mut session, &answer);
    assert_eq!(session.client.output, answer);
}

/// The description of the portal remains valid for the repeated Bind.
#[test]
fn a_described_statement_is_rebound() {
    let mut session = session("47");
    let describe = frame(frontend::DESCRIBE, b"P\0");
    let run = [bind("", ""), describe, execute(""), sync()].concat();
    sends(&mut session, &[&parse("", "SELECT f()")[..], &run].concat());
    session.server.output.clear();
    let answer = [parsed(), is_bound(), description(), guards(), ready()].concat();
    assert!(replies(&mut session, &answer).is_some());
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, bound());
    replies(&mut session, &[is_bound(), row(), completes("SELECT 1"), ready()].concat());
    assert_eq!(
        session.client.output,
        [parsed(), is_bound(), description(), row(), completes("SELECT 1"), ready()].concat()
    );
}

/// The second error may come from a newer leader.
#[test]
fn a_query_is_resent_once_for_each_fence() {
    for (second, code) in [(error("LF001", "resource=scheduler presented=47 highest=48"), "LF001"), (guards(), "LF004")]
    {
        let mut session = session("47");
        sends(&mut session, &query("SELECT f()"));
        assert!(replies(&mut session, &[guards(), ready()].concat()).is_some());
        admitted(&mut session);
        let task = replies(&mut session, &[second, ready()].concat());
        session.server.output.clear();
        assert_eq!(task.is_some(), code == "LF004");
        if task.is_some() {
            admitted(&mut session);
        }
        assert!(session.server.output.is_empty() && session.client.output.ends_with(&ready()));
        assert_eq!(received(&session).matches("SERROR").count(), 1);
        assert!(received(&session).contains(code), "{}", received(&session));
    }
}

#[test]
fn a_refusal_replaces_the_guards_error() {
    let resource = || "scheduler".to_owned();
    let highest = Epoch { generation: 1, token: 48 };
    for (refusal, code, hint) in [
        (FenceError::Stale { resource: resource(), presented: 47, highest }, "LF001", "A newer leader"),
        (FenceError::unavailable("scheduler", Obstacle::NotAdmitted), "LF006", "Nothing was written"),
        (FenceError::Denied { resource: resource(), presented: 47, what: "table jobs".into() }, "LF004", "the guard's"),
    ] {
        let mut session = session("47");
        sends(&mut session, &query("SELECT f()"));
        replies(&mut session, &[description(), guards(), ready()].concat());
        session.server.output.clear();
        session.done(Done::Admit(Err(refusal)));
        assert!(settle(&mut session).is_none() && session.server.output.is_empty());
        assert!(session.client.output.starts_with(&description()) && session.client.output.ends_with(&ready()));
        assert!(received(&session).contains(&format!("C{code}\0")) && received(&session).contains(&format!("H{hint}")));
    }
}

/// The client has received part of the result, or an effect remains. The client decides whether to retry.
#[test]
fn a_statement_that_may_have_had_an_effect_is_not_resent() {
    let cases: [(&str, BytesMut, Vec<u8>); 9] = [
        ("a row", query("SELECT f()"), [description(), row(), guards(), ready()].concat()),
        ("a notice", query("SELECT f()"), [frame(tag::NOTICE, b"SNOTICE\0\0"), guards(), ready()].concat()),
        ("two statements", query("SELECT 1; SELECT f()"), [guards(), ready()].concat()),
        ("a lasting lock", query("SELECT pg_advisory_lock(1), f()"), [guards(), ready()].concat()),
        ("a definition", query("CREATE TABLE t AS SELECT f()"), [guards(), ready()].concat()),
        ("a transaction", query("SELECT f()"), [guards(), at_rest(Status::Failed)].concat()),
        (
            "at the Sync",
            extended("SELECT f()"),
            [parsed(), is_bound(), completes("SELECT 1"), guards(), ready()].concat(),
        ),
        ("two runs", [&extended("SELECT 1")[..], &extended("SELECT f()")].concat()[..].into(), Vec::new()),
        ("in its planning", extended("SELECT f()"), [parsed(), guards(), ready()].concat()),
    ];
    for (case, sent, mut answer) in cases {
        let mut session = session("47");
        if case == "two runs" {
            // Both end with the same Sync.
            let mut both = extended("SELECT 1");
            both.truncate(both.len() - 5);
            let both = [&both[..], &extended("SELECT f()")].concat();
            sends(&mut session, &both);
            answer =
                [parsed(), is_bound(), row(), completes("SELECT 1"), parsed(), is_bound(), guards(), ready()].concat();
        } else {
            sends(&mut session, &sent);
        }
        session.server.output.clear();
        assert!(replies(&mut session, &answer).is_some(), "{case}: the fence is raised");
        assert!(!received(&session).contains("SERROR"), "{case}: no error before it is raised");
        assert!(admitted(&mut session).is_none() && session.server.output.is_empty(), "{case}");
        assert!(
            received(&session).contains("CLF004\0") && received(&session).contains("HThe token is now in force"),
            "{case}"
        );
    }
}

/// The text of an error cannot raise another fence or token, and other errors raise none.
#[test]
fn only_the_sessions_own_token_is_raised() {
    let other = |detail| error("LF004", detail);
    for (token, error) in [
        ("47", other("resource=scheduler presented=48")),
        ("47", other("resource=scheduler presented=9223372036854775807")),
        ("47", other("resource=scheduler presented=99999999999999999999")),
        ("47", other("resource=scheduler")),
        ("47", other("resource=nothing presented=47")),
        ("47", other("presented=47 resource=scheduler")),
        ("47", other("")),
        ("47", error("LF001", "resource=scheduler presented=47 highest=48")),
        ("47", error("P0001", "resource=scheduler presented=47")),
        ("other=47", guards()),
        ("", guards()),
        ("x", guards()),
    ] {
        let mut session = session(token);
        sends(&mut session, &query("SELECT f()"));
        assert!(replies(&mut session, &[error.clone(), ready()].concat()).is_none(), "{token}: {error:?}");
        assert_eq!(session.client.output, [error, ready()].concat());
    }
}

/// Later messages may concern the same fence; no session is admitted in between.
#[test]
fn no_token_is_raised_while_messages_are_pending() {
    let mut session = session("47");
    sends(&mut session, &[extended("SELECT f()"), extended("SELECT f()")].concat());
    let answer = [parsed(), is_bound(), guards(), ready()].concat();
    assert!(replies(&mut session, &answer).is_none());
    assert_eq!(session.client.output, answer);
    assert!(replies(&mut session, &answer).is_some());
}

/// The client may wait for the error before it sends the Sync.
#[test]
fn an_error_before_the_sync_is_sent_at_once() {
    let mut session = session("47");
    let all = extended("SELECT f()");
    let (run, sync) = all.split_at(all.len() - 5);
    sends(&mut session, run);
    replies(&mut session, &[parsed(), is_bound(), guards()].concat());
    assert!(received(&session).contains("the guard's"));
    sends(&mut session, sync);
    session.client.output.clear();
    assert!(replies(&mut session, &ready()).is_some());
    admitted(&mut session);
    assert_eq!(session.client.output, ready());
}

#[test]
fn a_session_cut_off_before_the_resend_has_an_unknown_outcome() {
    let mut session = session("47");
    sends(&mut session, &query("SELECT f()"));
    replies(&mut session, &[guards(), ready()].concat());
    assert!(session.is_in_flight());
    assert_eq!(session.cut_off(), rejection::CutOffOutcome::Unknown);
    // Nothing is resent for a client that has disconnected.
    session.client.ended = true;
    session.server.output.clear();
    admitted(&mut session);
    assert!(session.server.output.is_empty());
}

/// The output is independent of the fragmentation of the server's bytes.
#[test]
fn fragmented_replies_do_not_change_the_output() {
    for (sent, first, second) in [
        (
            query("SELECT f()"),
            [description(), guards(), ready()].concat(),
            [description(), row(), completes("SELECT 1"), ready()].concat(),
        ),
        (
            extended("SELECT f()"),
            [parsed(), is_bound(), guards(), ready()].concat(),
            [is_bound(), row(), completes("SELECT 1"), ready()].concat(),
        ),
    ] {
        let run = |at: usize| {
            let mut session = session("47");
            sends(&mut session, &sent);
            let (early, late) = first.split_at(at.min(first.len()));
            assert!(replies(&mut session, early).is_none() || late.is_empty());
            if !late.is_empty() {
                assert!(replies(&mut session, late).is_some());
            }
            admitted(&mut session);
            let (early, late) = second.split_at(at.min(second.len()));
            replies(&mut session, early);
            replies(&mut session, late);
            (session.server.output.clone(), session.client.output.clone())
        };
        let whole = run(usize::MAX);
        (0..first.len().max(second.len())).for_each(|at| assert_eq!(run(at), whole, "cut at {at}"));
    }
}

/// The proxy restarts a transaction that has done nothing else, and resends the query only if the restart succeeds.
#[test]
fn the_first_query_of_a_transaction_is_resent_in_a_new_one() {
    let ran = |tag| [parsed(), is_bound(), completes(tag), closed(), closed()].concat();
    let restarted = [ran("ROLLBACK"), ready().to_vec(), ran("BEGIN"), at_rest(Status::Transaction).to_vec()].concat();
    let not_begun =
        [ran("ROLLBACK"), ready().to_vec(), parsed().to_vec(), cancelled().to_vec(), ready().to_vec()].concat();
    let not_ended = [&cancelled()[..], &at_rest(Status::Failed), &cancelled(), &at_rest(Status::Failed)].concat();
    for (answer, is_begun, left) in
        [(restarted, true, Status::Transaction), (not_begun, false, Status::Idle), (not_ended, false, Status::Failed)]
    {
        let mut session = session("47");
        sends(&mut session, &query("BEGIN ISOLATION LEVEL SERIALIZABLE"));
        replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
        sends(&mut session, &extended("SELECT f()"));
        session.client.output.clear();
        let failed = [parsed(), is_bound(), guards(), at_rest(Status::Failed)].concat();
        assert!(replies(&mut session, &failed).is_some());
        session.server.output.clear();
        admitted(&mut session);
        let sent = String::from_utf8_lossy(&session.server.output).into_owned();
        assert!(sent.contains("ROLLBACK\0") && sent.contains("BEGIN ISOLATION LEVEL SERIALIZABLE\0"), "{sent}");
        assert!(!sent.contains("SELECT") && session.is_in_flight(), "{sent}");
        session.server.output.clear();
        replies(&mut session, &answer);
        if is_begun {
            assert_eq!(session.server.output, bound());
            replies(&mut session, &[is_bound(), row(), completes("SELECT 1"), at_rest(left)].concat());
            assert_eq!(
                session.client.output,
                [parsed(), is_bound(), row(), completes("SELECT 1"), at_rest(left)].concat()
            );
        } else {
            assert!(session.server.output.is_empty(), "nothing runs outside the transaction");
            assert_eq!(session.client.output, [parsed(), is_bound(), guards(), at_rest(left)].concat());
        }
    }
    // A transaction with earlier statements is not restarted.
    let mut session = session("47");
    for text in ["BEGIN", "SELECT 1"] {
        sends(&mut session, &query(text));
        replies(&mut session, &[completes("SELECT 1"), at_rest(Status::Transaction)].concat());
    }
    sends(&mut session, &query("SELECT f()"));
    assert!(replies(&mut session, &[guards(), at_rest(Status::Failed)].concat()).is_some());
    session.server.output.clear();
    admitted(&mut session);
    assert!(session.server.output.is_empty() && received(&session).contains("HThe token is now in force"));
}
