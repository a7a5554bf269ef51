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

/// The unnamed statement, to be planned, bound and run.
fn extended(sql: &str) -> BytesMut {
    BytesMut::from(&[parse("", sql), bound()].concat()[..])
}

fn bound() -> BytesMut {
    BytesMut::from(&[bind("", ""), execute(""), sync()].concat()[..])
}

/// The server's description of rows, and their number.
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

fn told(session: &Session<OneSession>) -> String {
    text(&session.client.output)
}

#[test]
fn a_query_is_sent_again_once_its_token_is_in_force() {
    let mut session = session("47");
    let sent = query("SELECT f()");
    says(&mut session, &sent);
    assert!(answers(&mut session, &[description(), guards()].concat()).is_none());
    let Some(Task::Admit(needs)) = answers(&mut session, &ready()) else { panic!("nothing is asked for") };
    let (need, claim) = &needs[0];
    assert_eq!((needs.len(), need.resource.name.as_str(), need.token, need.may_raise), (1, "scheduler", 47, true));
    // A role that could not lock the table may not raise its fence.
    assert!(
        matches!(&claim.privileges[..], [RequiredPrivilege::Write(relation, fencegate_statement::Operation::Lock)] if relation.name == "jobs")
    );
    assert_eq!((&claim.role, claim.one_suffices), (&Some(Role::AnyOf("postgres".into())), true));
    assert!(session.client.output.is_empty() && session.is_held_back() && !session.is_idle());
    // Later messages follow it.
    says(&mut session, &query("SELECT 2"));
    session.server.output.clear();
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, [sent, query("SELECT 2")].concat());
    let answer = [description(), row(), completes("SELECT 1"), ready()].concat();
    answers(&mut session, &answer);
    assert_eq!(session.client.output, answer);
}

#[test]
fn what_was_bound_is_bound_again_unseen() {
    let mut session = session("47");
    says(&mut session, &extended("SELECT f()"));
    session.server.output.clear();
    assert!(answers(&mut session, &[parsed(), is_bound(), guards(), ready()].concat()).is_some());
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, bound());
    answers(&mut session, &[is_bound(), row(), completes("SELECT 1"), ready()].concat());
    assert_eq!(session.client.output, [parsed(), is_bound(), row(), completes("SELECT 1"), ready()].concat());
    // And the next one is an ordinary one.
    session.client.output.clear();
    says(&mut session, &bound());
    let answer = [is_bound(), row(), completes("SELECT 1"), ready()].concat();
    answers(&mut session, &answer);
    assert_eq!(session.client.output, answer);
}

/// The description of the first statement also holds for the next one.
#[test]
fn what_was_described_is_bound_again() {
    let mut session = session("47");
    let describe = frame(frontend::DESCRIBE, b"P\0");
    let run = [bind("", ""), describe, execute(""), sync()].concat();
    says(&mut session, &[&parse("", "SELECT f()")[..], &run].concat());
    session.server.output.clear();
    let answer = [parsed(), is_bound(), description(), guards(), ready()].concat();
    assert!(answers(&mut session, &answer).is_some());
    assert!(admitted(&mut session).is_none());
    assert_eq!(session.server.output, bound());
    answers(&mut session, &[is_bound(), row(), completes("SELECT 1"), ready()].concat());
    assert_eq!(
        session.client.output,
        [parsed(), is_bound(), description(), row(), completes("SELECT 1"), ready()].concat()
    );
}

/// A newer leader came meanwhile, say.
#[test]
fn it_is_sent_again_once_for_each_fence() {
    for (second, told_once) in
        [(error("LF001", "resource=scheduler presented=47 highest=48"), "LF001"), (guards(), "LF004")]
    {
        let mut session = session("47");
        says(&mut session, &query("SELECT f()"));
        assert!(answers(&mut session, &[guards(), ready()].concat()).is_some());
        admitted(&mut session);
        let task = answers(&mut session, &[second, ready()].concat());
        session.server.output.clear();
        assert_eq!(task.is_some(), told_once == "LF004");
        if task.is_some() {
            admitted(&mut session);
        }
        assert!(session.server.output.is_empty() && session.client.output.ends_with(&ready()));
        assert_eq!(told(&session).matches("SERROR").count(), 1);
        assert!(told(&session).contains(told_once), "{}", told(&session));
    }
}

#[test]
fn a_refusal_takes_the_place_of_the_guards_error() {
    let resource = || "scheduler".to_owned();
    let highest = Epoch { generation: 1, token: 48 };
    for (refusal, code, hint) in [
        (FenceError::Stale { resource: resource(), presented: 47, highest }, "LF001", "A newer leader"),
        (FenceError::unavailable("scheduler", Obstacle::NotAdmitted), "LF006", "Nothing was written"),
        (FenceError::Denied { resource: resource(), presented: 47, what: "table jobs".into() }, "LF004", "the guard's"),
    ] {
        let mut session = session("47");
        says(&mut session, &query("SELECT f()"));
        answers(&mut session, &[description(), guards(), ready()].concat());
        session.server.output.clear();
        session.done(Done::Admit(Err(refusal)));
        assert!(settle(&mut session).is_none() && session.server.output.is_empty());
        assert!(session.client.output.starts_with(&description()) && session.client.output.ends_with(&ready()));
        assert!(told(&session).contains(&format!("C{code}\0")) && told(&session).contains(&format!("H{hint}")));
    }
}

/// Something was told, was left, or goes on: the client does it again, or not.
#[test]
fn what_may_have_left_something_is_not_sent_again() {
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
            // Up to one Sync.
            let mut both = extended("SELECT 1");
            both.truncate(both.len() - 5);
            let both = [&both[..], &extended("SELECT f()")].concat();
            says(&mut session, &both);
            answer =
                [parsed(), is_bound(), row(), completes("SELECT 1"), parsed(), is_bound(), guards(), ready()].concat();
        } else {
            says(&mut session, &sent);
        }
        session.server.output.clear();
        assert!(answers(&mut session, &answer).is_some(), "{case}: the fence is raised");
        assert!(!told(&session).contains("SERROR"), "{case}: not told before it is raised");
        assert!(admitted(&mut session).is_none() && session.server.output.is_empty(), "{case}");
        assert!(told(&session).contains("CLF004\0") && told(&session).contains("HThe token is now in force"), "{case}");
    }
}

/// Nothing that anybody writes into an error raises another fence, or another token; nor does an error of other means.
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
        says(&mut session, &query("SELECT f()"));
        assert!(answers(&mut session, &[error.clone(), ready()].concat()).is_none(), "{token}: {error:?}");
        assert_eq!(session.client.output, [error, ready()].concat());
    }
}

/// Later messages may concern the same fence; no session is admitted in between.
#[test]
fn nothing_is_raised_while_more_is_under_way() {
    let mut session = session("47");
    says(&mut session, &[extended("SELECT f()"), extended("SELECT f()")].concat());
    let answer = [parsed(), is_bound(), guards(), ready()].concat();
    assert!(answers(&mut session, &answer).is_none());
    assert_eq!(session.client.output, answer);
    assert!(answers(&mut session, &answer).is_some());
}

/// The client may wait for the error before it sends the Sync.
#[test]
fn an_error_before_the_sync_is_told_at_once() {
    let mut session = session("47");
    let all = extended("SELECT f()");
    let (run, sync) = all.split_at(all.len() - 5);
    says(&mut session, run);
    answers(&mut session, &[parsed(), is_bound(), guards()].concat());
    assert!(told(&session).contains("the guard's"));
    says(&mut session, sync);
    session.client.output.clear();
    assert!(answers(&mut session, &ready()).is_some());
    admitted(&mut session);
    assert_eq!(session.client.output, ready());
}

#[test]
fn a_session_that_ends_meanwhile_is_told_nothing_wrong() {
    let mut session = session("47");
    says(&mut session, &query("SELECT f()"));
    answers(&mut session, &[guards(), ready()].concat());
    assert!(session.is_in_flight());
    assert_eq!(session.cut_off(), rejection::CutOffOutcome::Unknown);
    // A client that has gone does not wait for it: nothing is run for it.
    session.client.ended = true;
    session.server.output.clear();
    admitted(&mut session);
    assert!(session.server.output.is_empty());
}

/// The output is independent of the fragmentation of the server's bytes.
#[test]
fn its_answers_are_cut_anywhere() {
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
            says(&mut session, &sent);
            let (early, late) = first.split_at(at.min(first.len()));
            assert!(answers(&mut session, early).is_none() || late.is_empty());
            if !late.is_empty() {
                assert!(answers(&mut session, late).is_some());
            }
            admitted(&mut session);
            let (early, late) = second.split_at(at.min(second.len()));
            answers(&mut session, early);
            answers(&mut session, late);
            (session.server.output.clone(), session.client.output.clone())
        };
        let whole = run(usize::MAX);
        (0..first.len().max(second.len())).for_each(|at| assert_eq!(run(at), whole, "cut at {at}"));
    }
}

/// The transaction in which nothing else was done is begun again, whatever is in the way meanwhile: only then is it sent again.
#[test]
fn the_first_query_of_a_transaction_is_sent_again_in_another() {
    let ran = |tag| [parsed(), is_bound(), completes(tag), closed(), closed()].concat();
    let anew = [ran("ROLLBACK"), ready().to_vec(), ran("BEGIN"), at_rest(Status::Transaction).to_vec()].concat();
    let not_begun =
        [ran("ROLLBACK"), ready().to_vec(), parsed().to_vec(), cancelled().to_vec(), ready().to_vec()].concat();
    let not_ended = [&cancelled()[..], &at_rest(Status::Failed), &cancelled(), &at_rest(Status::Failed)].concat();
    for (answer, is_begun, left) in
        [(anew, true, Status::Transaction), (not_begun, false, Status::Idle), (not_ended, false, Status::Failed)]
    {
        let mut session = session("47");
        says(&mut session, &query("BEGIN ISOLATION LEVEL SERIALIZABLE"));
        answers(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
        says(&mut session, &extended("SELECT f()"));
        session.client.output.clear();
        let failed = [parsed(), is_bound(), guards(), at_rest(Status::Failed)].concat();
        assert!(answers(&mut session, &failed).is_some());
        session.server.output.clear();
        admitted(&mut session);
        let sent = String::from_utf8_lossy(&session.server.output).into_owned();
        assert!(sent.contains("ROLLBACK\0") && sent.contains("BEGIN ISOLATION LEVEL SERIALIZABLE\0"), "{sent}");
        assert!(!sent.contains("SELECT") && session.is_in_flight(), "{sent}");
        session.server.output.clear();
        answers(&mut session, &answer);
        if is_begun {
            assert_eq!(session.server.output, bound());
            answers(&mut session, &[is_bound(), row(), completes("SELECT 1"), at_rest(left)].concat());
            assert_eq!(
                session.client.output,
                [parsed(), is_bound(), row(), completes("SELECT 1"), at_rest(left)].concat()
            );
        } else {
            assert!(session.server.output.is_empty(), "nothing runs outside of the transaction");
            assert_eq!(session.client.output, [parsed(), is_bound(), guards(), at_rest(left)].concat());
        }
    }
    // Not where something was done in it.
    let mut session = session("47");
    for text in ["BEGIN", "SELECT 1"] {
        says(&mut session, &query(text));
        answers(&mut session, &[completes("SELECT 1"), at_rest(Status::Transaction)].concat());
    }
    says(&mut session, &query("SELECT f()"));
    assert!(answers(&mut session, &[guards(), at_rest(Status::Failed)].concat()).is_some());
    session.server.output.clear();
    admitted(&mut session);
    assert!(session.server.output.is_empty() && told(&session).contains("HThe token is now in force"));
}
