//! Timeouts of the server that run while a write waits for its admission.

use super::*;
use std::time::Duration;

const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const SECOND: Duration = Duration::from_secs(1);

/// Lets the session handle its next deadline. Returns the requested task.
fn wakes(session: &mut Session<OneSession>) -> Option<Task> {
    let at = session.wakes_at().expect("the session has a deadline");
    step_at(session, at)
}

fn step_at(session: &mut Session<OneSession>, at: Instant) -> Option<Task> {
    match session.step(at) {
        Ok(Step::Do(task)) => Some(task),
        Ok(_) => None,
        Err(end) => panic!("{end}"),
    }
}

/// The reply to a SHOW for each of these values.
fn shown(values: &[&str], status: Status) -> Vec<u8> {
    let row = |value: &&str| [frame(backend::ROW_DESCRIPTION, &[0, 0]), row_of(&[value]), completes("SHOW")].concat();
    [values.iter().flat_map(row).collect(), at_rest(status).to_vec()].concat()
}

/// A session that waits to be admitted, in a transaction or outside, and has queried its timeouts.
fn held(begins: bool) -> Session<OneSession> {
    let mut session = session("47");
    if begins {
        sends(&mut session, &query("BEGIN"));
        replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
        session.server.output.clear();
        session.client.output.clear();
    }
    assert_eq!(admissions(sends(&mut session, &query(WRITE))), "scheduler=47");
    assert!(session.server.output.is_empty(), "no query is sent immediately");
    assert!(wakes(&mut session).is_none());
    let idle = if begins { "idle_in_transaction_session_timeout" } else { "idle_session_timeout" };
    assert_eq!(session.server.output.split(), query(&format!("SHOW {idle}; SHOW transaction_timeout")));
    let activity = if begins { Activity::Waiting } else { Activity::Idle };
    assert_eq!(session.fence().activity(), activity, "an Admit that makes room for others needs an idle process");
    session
}

#[test]
fn an_admit_is_abandoned_before_the_first_timeout() {
    // The idle timeout, transaction_timeout, the duration of the wait, and the timeout that ends it.
    let cases = [
        (true, ["2s", "0"], 1800, "idle_in_transaction_session_timeout (2s)"),
        (true, ["1min", "30s"], 29_800, "transaction_timeout (30s)"),
        (true, ["500ms", "1h"], 450, "idle_in_transaction_session_timeout (500ms)"),
        // No transaction is open.
        (false, ["1min", "1s"], 59_800, "idle_session_timeout (1min)"),
    ];
    for (begins, values, waits, reason) in cases {
        let began = now();
        let mut session = held(begins);
        let status = if begins { Status::Transaction } else { Status::Idle };
        replies(&mut session, &shown(&values, status));
        assert_eq!(session.server.output.split(), flush(), "the idle timeout stops");
        let at = session.wakes_at().expect("the Admit has a deadline");
        let waited = at - began;
        assert!(waited >= Duration::from_millis(waits) && waited < Duration::from_millis(waits) + SECOND, "{waited:?}");
        assert!(wakes(&mut session).is_none());
        // The server raises the error, which restarts its timeout.
        assert_eq!(session.server.output.split(), query("SET fencegate_lf006 = 1"));
        let error = b"SERROR\0VERROR\0C42704\0Munrecognized configuration parameter \"fencegate_lf006\"\0\0";
        let status = if begins { Status::Failed } else { Status::Idle };
        replies(&mut session, &[frame(backend::ERROR, error), at_rest(status)].concat());
        let received = text(&session.client.output);
        assert!(received.contains("CLF006\0") && received.contains(reason), "{received}");
    }
}

#[test]
fn without_a_timeout_no_admit_is_abandoned() {
    for values in [&["0", "0"][..], &["", "x"], &[]] {
        let mut session = held(true);
        replies(&mut session, &shown(values, Status::Transaction));
        assert_eq!(session.server.output.split(), flush());
        assert_eq!(session.wakes_at(), None, "{values:?}");
        admit(&session, "scheduler", 47);
        session.done(Done::Admit(Ok(())));
        settle(&mut session);
        assert_eq!(session.server.output, query(WRITE));
    }
}

/// The session would mistake the reply to a later message for the query's reply.
#[test]
fn an_admitted_write_waits_for_the_pending_timeout_query() {
    let mut session = held(true);
    admit(&session, "scheduler", 47);
    session.done(Done::Admit(Ok(())));
    settle(&mut session);
    assert!(session.server.output.is_empty() && session.is_held_back());
    replies(&mut session, &shown(&["1s", "1s"], Status::Transaction));
    assert_eq!(session.server.output, [flush(), query(WRITE)].concat());
    assert!(session.client.output.is_empty());
}

#[test]
fn a_canceled_timeout_query_abandons_the_admit() {
    let mut session = held(true);
    replies(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    assert_eq!(session.client.output, [cancelled(), at_rest(Status::Failed)].concat());
    assert!(session.process.has_abandoned_admit() && session.wakes_at().is_none() && !session.is_held_back());
}

/// The Admit relies on the session not writing in the meantime.
#[test]
fn no_code_runs_until_an_abandoned_admit_has_ended() {
    let mut session = held(false);
    replies(&mut session, &shown(&["1s", "0"], Status::Idle));
    wakes(&mut session);
    replies(&mut session, &[cancelled(), ready()].concat());
    session.server.output.clear();
    for harmless in
        ["SHOW lease.fence", "BEGIN", "SET lease.fence = 48", "SELECT * FROM jobs", "ROLLBACK", "DISCARD ALL"]
    {
        assert!(sends(&mut session, &query(harmless)).is_none());
        assert_eq!(session.server.output.split(), query(harmless));
        replies(&mut session, &[completes("X"), ready()].concat());
    }
    for waits in [&query("INSERT INTO others VALUES (1)"), &query("SELECT f()"), &query("DO $$$$"), &bind("", "s")] {
        let mut session = held(false);
        replies(&mut session, &shown(&["1s", "0"], Status::Idle));
        wakes(&mut session);
        replies(&mut session, &[cancelled(), ready()].concat());
        sends(&mut session, &[parse("s", "SELECT f()"), sync()].concat());
        replies(&mut session, &[parsed(), ready()].concat());
        (session.server.output, session.client.output) = Default::default();
        assert!(sends(&mut session, waits).is_none());
        assert!(session.server.output.is_empty() && session.is_held_back(), "{waits:?}");
        session.done(Done::Admit(Ok(())));
        settle(&mut session);
        let is_judged = !session.server.output.is_empty() || !session.client.output.is_empty();
        assert!((is_judged || session.is_held_back()) && !session.process.has_abandoned_admit(), "{waits:?}");
    }
}

/// The wait for an abandoned Admit does not outlast a timeout either.
#[test]
fn the_wait_for_an_abandoned_admit_is_abandoned_too() {
    let mut session = held(false);
    replies(&mut session, &shown(&["1s", "0"], Status::Idle));
    wakes(&mut session);
    replies(&mut session, &[cancelled(), ready()].concat());
    session.server.output.clear();
    assert!(sends(&mut session, &query(WRITE)).is_none());
    wakes(&mut session);
    assert_eq!(session.server.output.split(), query("SHOW idle_session_timeout; SHOW transaction_timeout"));
    replies(&mut session, &shown(&["1s", "0"], Status::Idle));
    session.server.output.clear();
    wakes(&mut session);
    assert_eq!(session.server.output, query("SET fencegate_lf006 = 1"));
    assert!(session.process.has_abandoned_admit());
}

/// While a message waits for anything else, the session stops the idle timeout without a query.
#[test]
fn the_idle_timeout_stops_while_the_catalog_is_read() {
    let mut session = session("47");
    session.host.is_unread = true;
    assert!(matches!(sends(&mut session, &query("INSERT INTO others VALUES (1)")), Some(Task::CatchUp(..))));
    wakes(&mut session);
    assert_eq!(session.server.output.split(), flush());
    assert_eq!(session.wakes_at(), None);
    assert!(session.is_held_back() && session.fence().activity() == Activity::Idle);
}
