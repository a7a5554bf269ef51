//! The server process's activity after each message and response, and the outcome of a terminated transaction.

use super::*;
use crate::rejection::CutOffOutcome;

/// A session in a transaction.
pub(super) fn begun() -> Session<OneSession> {
    let mut session = session("");
    sends(&mut session, &query("BEGIN"));
    replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    session
}

#[test]
fn a_session_is_idle_without_transaction_and_pending_replies() {
    let mut session = begun();
    assert_eq!(session.fence().activity(), Activity::Waiting);
    assert!(!session.is_idle() && !session.is_busy() && !session.is_in_flight());
    sends(&mut session, &query("COMMIT"));
    assert!(session.is_busy() && session.is_in_flight());
    replies(&mut session, &[completes("COMMIT"), ready()].concat());
    assert!(session.is_idle() && session.fence().activity() == Activity::Idle);
    // Messages without a Sync keep a transaction open, even if all are answered.
    sends(&mut session, &parse("", "SELECT 1"));
    replies(&mut session, &parsed());
    assert_eq!(session.fence().activity(), Activity::Waiting);
    sends(&mut session, &sync());
    replies(&mut session, &ready());
    assert_eq!(session.fence().activity(), Activity::Idle);
    // The beginning of a message that gets no reply.
    sends(&mut session, &frame(frontend::COPY_DATA, &[b'x'; 100])[..50]);
    assert!(session.is_busy() && session.is_in_flight() && session.fence().activity() == Activity::Busy);
}

#[test]
fn a_revoked_session_is_released_when_it_waits_and_again_when_it_is_idle() {
    let mut session = begun();
    let released = |session: &Session<OneSession>| session.host.released.swap(0, Relaxed);
    sends(&mut session, &query("SELECT 1"));
    session.revoked();
    assert_eq!(released(&session), 1);
    replies(&mut session, &at_rest(Status::Transaction));
    assert_eq!(released(&session), 1, "the session waits in its transaction");
    for (statement, status, times) in
        [("SELECT 1", Status::Transaction, 1), ("COMMIT", Status::Idle, 1), ("SELECT 1", Status::Idle, 0)]
    {
        sends(&mut session, &query(statement));
        assert_eq!(released(&session), 0);
        replies(&mut session, &at_rest(status));
        assert_eq!(released(&session), times, "{statement}");
    }
}

#[test]
fn the_outcome_is_unknown_only_if_a_commit_may_have_run() {
    let rolled_back = begun();
    assert_eq!(rolled_back.cut_off(), CutOffOutcome::RolledBack);
    assert_eq!(rolled_back.fence().activity(), Activity::CutOff);
    let mut in_flight = begun();
    sends(&mut in_flight, &query("SELECT 1"));
    assert_eq!(in_flight.cut_off(), CutOffOutcome::Unknown);
    let mut within = begun();
    sends(&mut within, &frame(frontend::COPY_DATA, &[b'x'; 100])[..50]);
    assert_eq!(within.cut_off(), CutOffOutcome::Unknown);
    // In a pipeline, a COMMIT completes before the Sync.
    for (statement, tag, outcome) in [
        ("COMMIT", "COMMIT", CutOffOutcome::Unknown),
        ("COMMIT", "ROLLBACK", CutOffOutcome::RolledBack),
        ("SELECT 1", "SELECT 1", CutOffOutcome::RolledBack),
    ] {
        let mut session = begun();
        sends(&mut session, &[parse("", statement), bind("", ""), execute("")].concat());
        replies(&mut session, &[parsed(), is_bound(), completes(tag)].concat());
        assert!(!session.is_in_flight());
        assert_eq!(session.cut_off(), outcome, "{tag}");
        let status = if statement == "COMMIT" { Status::Idle } else { Status::Transaction };
        sends(&mut session, &sync());
        replies(&mut session, &at_rest(status));
        assert_eq!(session.cut_off(), CutOffOutcome::RolledBack, "the client has received the outcome");
    }
}

#[test]
fn only_a_cutoff_error_is_followed_by_ready_for_query() {
    let text = ErrorText::new("57P05", "bye");
    let end = |session: &Session<OneSession>| String::from_utf8_lossy(&session.client.output).into_owned();
    for (why, ends) in [(End::Shutdown, false), (End::Killed, false)] {
        let mut session = session("");
        session.send_last(&text, &why);
        assert!(end(&session).contains("FATAL") && session.client.output.ends_with(&at_rest(Status::Failed)) == ends);
    }
    let epoch = Epoch { generation: 1, token: 5 };
    let by = fencegate_fence::CutOff { resource: "scheduler".to_owned(), presented: epoch, highest: epoch };
    let mut session = session("");
    session.send_last(&text, &End::CutOff(by));
    assert!(session.client.output.ends_with(&at_rest(Status::Failed)));
    // The error is sent if the incomplete row is discarded.
    session.client.output.clear();
    (session.server.rest, session.server.discard) = (10, true);
    session.send_last(&text, &End::Shutdown);
    assert!(!session.client.output.is_empty());
}

#[test]
fn terminate_is_not_sent_within_a_message() {
    let mut session = session("");
    let goodbye = frame(frontend::TERMINATE, b"");
    sends(&mut session, &goodbye);
    assert!(session.is_terminating() && !session.is_idle() && session.server.output == goodbye);
    let mut session = self::session("");
    session.put_terminate();
    assert_eq!(session.server.output, goodbye);
    sends(&mut session, &frame(frontend::COPY_DATA, &[b'x'; 100])[..50]);
    let before = session.server.output.clone();
    session.put_terminate();
    assert_eq!(session.server.output, before);
    session.client.ended = true;
    assert!(!session.is_idle());
}

/// A fast-path call identifies its function by OID. The large-object functions write no table.
#[test]
fn only_large_object_function_calls_pass() {
    for (function, passes) in [(954_u32, true), (3172, true), (952, true), (1, false), (959, false)] {
        let mut session = session("");
        let call = frame(frontend::FUNCTION_CALL, &[&function.to_be_bytes()[..], &[0; 6]].concat());
        sends(&mut session, &call[..8]);
        assert!(session.server.output.is_empty(), "the number is incomplete");
        sends(&mut session, &call[8..]);
        assert_eq!(session.server.output == call, passes, "{function}");
        assert_eq!(session.host.notifications() == "query", passes);
        let (answer, received) = if passes { (ready(), ready()) } else { (answer_to_rejected_call(), failed_call()) };
        replies(&mut session, &answer);
        assert!(session.is_idle());
        assert_eq!(session.client.output, received, "{function}");
    }
    let mut session = session("");
    let short = frame(frontend::FUNCTION_CALL, &[1]);
    sends(&mut session, &short);
    assert!(!session.server.output.is_empty() && session.client.input.is_empty());
}

#[test]
fn an_unexpected_reply_is_a_protocol_violation() {
    for bytes in [ready(), at_rest(Status::Failed), frame(backend::READY, b"?"), BytesMut::from(&b"Z\0\0\0\x01"[..])] {
        let mut session = session("");
        session.server.input.extend_from_slice(&bytes);
        assert!(matches!(session.step(now()), Err(End::ServerFault(_))));
    }
    // A FATAL error ends the session. The text for the client depends on the cause.
    let mut session = session("");
    let mut fatal = BytesMut::new();
    ErrorText::new("57P01", "terminating").put(&mut fatal, Severity::Fatal);
    session.server.input.extend_from_slice(&fatal);
    assert!(matches!(session.step(now()), Err(End::Server)));
    assert_eq!(session.last_error().as_deref(), Some(&fatal[..]));
}

/// The server's reply to the query for the session's roles.
pub(super) fn roles(role: &str, session: &str) -> BytesMut {
    let answer = |value: &str| [frame(backend::ROW_DESCRIPTION, &[0, 0]), row_of(&[value]), completes("SHOW")].concat();
    BytesMut::from(&[&answer(role)[..], &answer(session), &ready()].concat()[..])
}

#[test]
fn the_role_is_queried_only_if_a_token_would_be_raised() {
    for (role, acts_as) in [("none", "app"), ("admin", "admin")] {
        let mut session = session("47");
        let write = query("DELETE FROM jobs");
        let Some(Task::Admit(needs)) = sends(&mut session, &write) else { panic!() };
        assert_eq!(needs[0].1.role, None);
        let unknown = FenceError::RoleUnknown { resource: "scheduler".to_owned() };
        session.done(Done::Admit(Err(unknown)));
        assert!(settle(&mut session).is_none());
        let asked = String::from_utf8_lossy(&session.server.output.split()).into_owned();
        assert!(asked.contains("SHOW role; SHOW session_authorization"), "{asked}");
        let Some(Task::Admit(needs)) = replies(&mut session, &roles(role, "app")) else { panic!() };
        assert_eq!(needs[0].1.role, Some(fencegate_fence::Role::Current(acts_as.to_owned())));
        assert!(session.client.output.is_empty(), "the client receives nothing of it");
        assert!(session.fence().record_admission("scheduler", Epoch { generation: 1, token: 47 }, 0));
        session.done(Done::Admit(Ok(())));
        settle(&mut session);
        assert_eq!(session.server.output, write);
    }
    // If a cancel aborts the proxy's query, its error is the reply to the client's query.
    let mut session = session("47");
    sends(&mut session, &query("DELETE FROM jobs"));
    session.done(Done::Admit(Err(FenceError::RoleUnknown { resource: "scheduler".to_owned() })));
    settle(&mut session);
    replies(&mut session, &[cancelled(), ready()].concat());
    assert_eq!(session.client.output, [cancelled(), ready()].concat());
    assert!(session.is_idle() && session.client.input.is_empty());
}

#[test]
fn a_role_that_cannot_be_queried_may_be_any() {
    let any = || Some(fencegate_fence::Role::AnyOf("postgres".to_owned()));
    let alter = "ALTER TABLE jobs ADD x int";
    for (sql, in_pipeline, role) in [
        // The server does not run some forms of ALTER TABLE in a pipeline.
        (alter, true, any()),
        (alter, false, None),
        ("DELETE FROM jobs", true, None),
        ("SET ROLE admin; DELETE FROM jobs", false, any()),
    ] {
        let mut session = session("47");
        let pipeline = [parse("", sql), bind("", ""), execute("")].concat();
        let sent = if in_pipeline { pipeline } else { query(sql).to_vec() };
        let Some(Task::Admit(needs)) = sends(&mut session, &sent) else { panic!("{sql}: no task is requested") };
        assert_eq!(needs[0].1.role, role, "{sql}, {in_pipeline}");
    }
}

#[test]
fn a_role_in_an_unknown_encoding_may_be_any() {
    use fencegate_fence::Role;
    use fencegate_statement::Encoding;
    for (encoding, acts_as) in
        [(Encoding::Utf8, Role::Current("été".to_owned())), (Encoding::AsciiSafe, Role::AnyOf("postgres".to_owned()))]
    {
        let mut session = session("47");
        session.settings.lexing.encoding = encoding;
        sends(&mut session, &query("DELETE FROM jobs"));
        session.done(Done::Admit(Err(FenceError::RoleUnknown { resource: "scheduler".to_owned() })));
        settle(&mut session);
        let Some(Task::Admit(needs)) = replies(&mut session, &roles("été", "app")) else { panic!() };
        assert_eq!(needs[0].1.role, Some(acts_as));
    }
}

#[test]
fn unsent_output_is_discarded_while_the_server_is_busy() {
    let mut session = session("");
    session.put_terminate();
    assert!(!session.take_back_unsent() && !session.server.output.is_empty(), "the session is idle");
    session.server.output.clear();
    sends(&mut session, &query("SELECT 1"));
    assert!(session.take_back_unsent() && session.server.output.is_empty());
    assert!(!session.take_back_unsent(), "nothing is left to discard");
}
