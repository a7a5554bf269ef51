//! The session's state machine with a scripted host. Input: bytes. Output: bytes and requests.

use super::parameter::{Parameter, ParameterValue};
use super::path::Path;
use super::*;
use bytes::{BufMut, BytesMut};
use fencegate_catalog::Catalog;
use fencegate_fence::FenceError;
use fencegate_fence::session::{Epoch, IdentityError, Token};
use fencegate_policy::join;
use fencegate_statement::Lexing;
use fencegate_wire::error::{ErrorText, Severity};
use fencegate_wire::frame::put_frame;
use fencegate_wire::message::{put_flush, put_parse, put_query, put_ready};
use fencegate_wire::tag::{backend, frontend};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod batches;
mod bindings;
mod bounds;
mod checked;
mod copies;
mod databases;
mod declared;
mod defining;
mod definitions;
mod held;
mod keyed;
mod kinds;
mod lengths;
mod messages;
mod named;
mod needs;
mod observed;
mod one_session;
mod outcomes;
mod questions;
mod raised;
mod rejections;
mod repeated;
mod schemas;
mod server_replies;
mod simple_queries;
mod surveys;
mod suspected;
mod unjudged;
mod unseen;

use messages::*;
use one_session::OneSession;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

fn session(token: &str) -> Session<OneSession> {
    session_with(token, Path::new(Some("public"), false))
}

fn session_with(token: &str, path: Path) -> Session<OneSession> {
    session_under(POLICIES, token, path)
}

/// A host with the usual policies.
pub(super) fn host() -> OneSession {
    host_under(POLICIES)
}

fn host_under(policies: &str) -> OneSession {
    let policies = join([("a.yaml".into(), Ok(policies.to_owned().into()))]).unwrap();
    let tables = policies.resources.iter().map(|resource| resource.tables[0].name.clone());
    let catalog = Arc::new(Catalog::of_tables(tables));
    let fence = Arc::new(SessionFence::new(Err(IdentityError::NoAnswer)));
    OneSession::new(policies, catalog, fence)
}

fn session_under(policies: &str, token: &str, path: Path) -> Session<OneSession> {
    let host = host_under(policies);
    let started = Settings {
        replicates: false,
        temporary: None,
        parameter: Parameter::new(ParameterValue::read(Some(token))),
        path,
        lexing: Lexing::USUAL,
        reported: None,
    };
    Session::new(host, Side::default(), Side::default(), started, now())
}

fn query(text: &str) -> BytesMut {
    let mut message = BytesMut::new();
    put_query(&mut message, &[text.as_bytes()]);
    message
}

fn ready() -> BytesMut {
    let mut message = BytesMut::new();
    put_ready(&mut message, Status::Idle);
    message
}

/// A fixed time, independent of the machine's load.
fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

/// Steps until nothing is left to handle. Returns the requested task, if any.
fn settle(session: &mut Session<OneSession>) -> Option<Task> {
    for _ in 0..10_000 {
        match session.step(now()) {
            Ok(Step::Wait) => return None,
            Ok(Step::Do(task)) => return Some(task),
            Ok(Step::GoOn) => {}
            Err(end) => panic!("{end}"),
        }
    }
    panic!("the session is in a busy loop");
}

fn sends(session: &mut Session<OneSession>, bytes: &[u8]) -> Option<Task> {
    session.client.input.extend_from_slice(bytes);
    settle(session)
}

fn replies(session: &mut Session<OneSession>, bytes: &[u8]) -> Option<Task> {
    session.server.input.extend_from_slice(bytes);
    settle(session)
}

#[test]
fn a_read_and_its_response_are_forwarded() {
    let mut session = session("");
    assert!(sends(&mut session, &query("SELECT 1")).is_none());
    assert_eq!(session.server.output, query("SELECT 1"));
    assert_eq!(session.fence().activity(), Activity::Busy);
    replies(&mut session, &ready());
    assert_eq!(session.client.output, ready());
    assert!(session.is_idle() && session.fence().activity() == Activity::Idle);
}

#[test]
fn last_error_is_returned_once_complete() {
    let mut session = session("");
    let mut error = BytesMut::new();
    ErrorText::new("57P01", "terminating connection").put(&mut error, Severity::Fatal);
    session.server.input.extend_from_slice(&error[..error.len() - 1]);
    assert_eq!(session.last_error(), None);
    session.server.input.extend_from_slice(&error[error.len() - 1..]);
    assert_eq!(session.last_error().as_deref(), Some(&error[..]));
    assert!(session.server.input.is_empty());
    session.server.input.extend_from_slice(&ready());
    assert_eq!(session.last_error(), None, "not an error");
}

#[test]
fn an_idle_session_receives_a_rejection_at_once() {
    let cases = [("", "LF002"), ("39", "LF001"), ("x", "LF003")];
    for (token, code) in cases {
        let mut session = session(token);
        assert!(sends(&mut session, &query("DELETE FROM jobs")).is_none());
        assert!(session.server.output.is_empty(), "{token}: the server receives the write");
        let received = String::from_utf8_lossy(&session.client.output).into_owned();
        assert!(received.contains(code) && session.client.output.ends_with(&ready()), "{received}");
    }
}

#[test]
fn a_write_is_forwarded_unchanged_after_its_admission() {
    let mut session = session("47");
    let message = query("DELETE FROM jobs");
    let Some(Task::Admit(needs)) = sends(&mut session, &message) else { panic!("no task is requested") };
    assert_eq!((needs[0].0.resource.name.as_str(), needs[0].0.token), ("scheduler", 47));
    assert!(session.server.output.is_empty() && session.is_held_back() && !session.is_idle());
    // Later messages do not end the wait.
    assert!(sends(&mut session, &query("SELECT 1")).is_none());
    assert!(session.server.output.is_empty());
    assert!(session.fence().record_admission("scheduler", Epoch { generation: 1, token: 47 }, 0));
    session.done(Done::Admit(Ok(())));
    assert!(settle(&mut session).is_none());
    assert_eq!(session.server.output, [message, query("SELECT 1")].concat());
    assert!(session.fence().may_have_written("scheduler"));
    replies(&mut session, &ready());
    assert!(!session.fence().may_have_written("scheduler"));
}

#[test]
fn an_admission_revoked_meanwhile_is_requested_again() {
    let mut session = session("47");
    assert!(sends(&mut session, &query("DELETE FROM jobs")).is_some());
    assert!(session.fence().record_admission("scheduler", Epoch { generation: 1, token: 47 }, 0));
    session.fence().revoke("scheduler", Epoch { generation: 1, token: 48 });
    session.revoked();
    session.done(Done::Admit(Ok(())));
    assert!(matches!(settle(&mut session), Some(Task::Admit(_))));
    assert!(session.server.output.is_empty());
    assert_eq!(session.host.released.load(Relaxed), 1);
}

#[test]
fn in_a_transaction_the_server_raises_the_error() {
    let mut session = session("");
    sends(&mut session, &query("BEGIN"));
    let mut in_transaction = BytesMut::new();
    put_ready(&mut in_transaction, Status::Transaction);
    replies(&mut session, &in_transaction);
    session.server.output.clear();
    session.client.output.clear();
    sends(&mut session, &query("DELETE FROM jobs"));
    let sent = String::from_utf8_lossy(&session.server.output).into_owned();
    assert!(sent.contains("SET fencegate_lf002 = 1") && !sent.contains("DELETE"), "{sent}");
    assert!(session.client.output.is_empty());
    // The client receives the cause in place of the server's error. Other errors are forwarded.
    for (code, message, expected) in [
        ("42704", "unrecognized configuration parameter \"fencegate_lf002\"", "LF002"),
        ("57014", "canceling statement due to user request", "57014"),
        ("42704", "type \"nothing\" does not exist", "42704"),
        ("42601", "syntax error at \"fencegate_lf002\"", "42601"),
    ] {
        let mut session = self::session("");
        sends(&mut session, &query("BEGIN"));
        replies(&mut session, &in_transaction);
        sends(&mut session, &query("DELETE FROM jobs"));
        session.client.output.clear();
        let mut error = BytesMut::new();
        put_frame(&mut error, backend::ERROR, |out| {
            out.extend_from_slice(format!("SERROR\0VERROR\0C{code}\0M{message}\0\0").as_bytes());
        });
        replies(&mut session, &error);
        let received = String::from_utf8_lossy(&session.client.output).into_owned();
        assert!(received.contains(&format!("C{expected}\0")), "{received}");
    }
}

/// If the path leads elsewhere, the session queries it after each write, so that no statement waits for the reply.
#[test]
fn no_statement_waits_for_a_path_queried_ahead() {
    let write = query("INSERT INTO jobs VALUES (1)");
    let mut complete = BytesMut::new();
    put_frame(&mut complete, backend::COMMAND_COMPLETE, |out| out.extend_from_slice(b"INSERT 0 1\0"));
    let mut session = session_with("", Path::new(Some("other"), false));
    for _ in 0..3 {
        assert!(sends(&mut session, &write).is_none());
        assert_eq!(session.server.output, write);
        session.server.output.clear();
        replies(&mut session, &[&complete[..], &ready()].concat());
        let asked = String::from_utf8_lossy(&session.server.output.split()).into_owned();
        assert!(asked.contains("SHOW search_path") && session.client.output.ends_with(&ready()), "{asked}");
        session.client.output.clear();
        replies(&mut session, &answer_of("other"));
        assert!(session.client.output.is_empty() && session.is_idle());
    }
    // The reply shows a path that contains the fenced table.
    sends(&mut session, &write);
    replies(&mut session, &[&complete[..], &ready(), &answer_of("public")].concat());
    session.server.output.clear();
    session.client.output.clear();
    sends(&mut session, &write);
    assert!(session.server.output.is_empty() && String::from_utf8_lossy(&session.client.output).contains("LF002"));
}

#[test]
fn a_reported_path_is_not_queried() {
    let write = query("INSERT INTO jobs VALUES (1)");
    let report = |path: &[u8]| {
        let mut message = BytesMut::new();
        put_frame(&mut message, backend::PARAMETER_STATUS, |out| {
            out.extend_from_slice(&[b"search_path\0", path, b"\0"].concat());
        });
        message
    };
    let mut session = session_with("", Path::new(Some("other"), true));
    for _ in 0..3 {
        sends(&mut session, &write);
        assert_eq!(session.server.output.split(), write);
        replies(&mut session, &ready());
        assert!(session.server.output.is_empty());
    }
    // The value may be in the client's encoding or long: an unreadable value may be any path.
    let long = [b"other".as_slice(), &[b' '; 70_000]].concat();
    for path in [b"public".as_slice(), b"other, \xe9", &long] {
        let mut session = session_with("", Path::new(Some("other"), true));
        sends(&mut session, &write);
        session.server.output.clear();
        replies(&mut session, &[report(path), ready()].concat());
        session.client.output.clear();
        sends(&mut session, &write);
        let received = String::from_utf8_lossy(&session.client.output);
        assert!(received.contains("LF002"), "{}: {received}", String::from_utf8_lossy(path));
    }
}

/// A late cancel request may abort the proxy's query and with it the transaction, so the client must not continue.
#[test]
fn an_internal_query_that_ends_the_transaction_ends_the_session() {
    let mut error = BytesMut::new();
    put_frame(&mut error, backend::ERROR, |out| out.extend_from_slice(b"SERROR\0VERROR\0C57014\0Mcanceled\0\0"));
    for (status, ends) in [(Status::Idle, false), (Status::Transaction, true)] {
        let mut session = session_with("", Path::new(Some("other"), false));
        sends(&mut session, &query("INSERT INTO jobs VALUES (1)"));
        let mut at_rest = BytesMut::new();
        put_ready(&mut at_rest, status);
        replies(&mut session, &at_rest);
        session.client.output.clear();
        session.server.input.extend_from_slice(&error);
        assert_eq!(session.step(now()).is_err(), ends);
        assert!(session.client.output.is_empty(), "the client receives no reply to the proxy's query");
    }
}

/// The server's reply to a query for the path that is sent ahead.
fn answer_of(path: &str) -> BytesMut {
    let mut answer = BytesMut::new();
    put_frame(&mut answer, backend::PARSE_COMPLETE, |_| {});
    put_frame(&mut answer, backend::BIND_COMPLETE, |_| {});
    put_frame(&mut answer, backend::DATA_ROW, |out| {
        out.extend_from_slice(&1_u16.to_be_bytes());
        out.extend_from_slice(&(path.len() as u32).to_be_bytes());
        out.extend_from_slice(path.as_bytes());
    });
    put_frame(&mut answer, backend::COMMAND_COMPLETE, |out| out.extend_from_slice(b"SHOW\0"));
    put_frame(&mut answer, backend::CLOSE_COMPLETE, |_| {});
    put_frame(&mut answer, backend::CLOSE_COMPLETE, |_| {});
    answer.extend_from_slice(&ready());
    answer
}

/// The output is independent of the fragmentation of either side's bytes.
#[test]
fn fragmented_messages_do_not_change_the_output() {
    let sent = [query("SELECT 1"), query("INSERT INTO free VALUES (1)"), query("DELETE FROM jobs")].concat();
    let answered = [ready(), ready()].concat();
    let run = |at: usize, then: usize| {
        let mut session = session("");
        sends(&mut session, &sent[..at]);
        replies(&mut session, &answered[..then]);
        sends(&mut session, &sent[at..]);
        replies(&mut session, &answered[then..]);
        (session.server.output.clone(), session.client.output.clone())
    };
    let whole = run(sent.len(), answered.len());
    for at in 0..sent.len() {
        assert_eq!(run(at, 0), whole, "the client's bytes are cut at {at}");
    }
    for then in 0..answered.len() {
        assert_eq!(run(sent.len(), then), whole, "the server's bytes are cut at {then}");
    }
}

/// The catalog already contains the definitions, and decides the verdict.
#[test]
fn a_definition_that_has_just_ended_rejects_no_write() {
    for looks in 1..3 {
        let mut session = session("");
        session.host.looks = AtomicUsize::new(looks);
        sends(&mut session, &query("INSERT INTO free VALUES (1)"));
        assert_eq!(session.server.output, query("INSERT INTO free VALUES (1)"), "{:?}", session.client.output);
    }
    let mut session = session("");
    session.host.looks = AtomicUsize::new(usize::MAX);
    sends(&mut session, &query("INSERT INTO free VALUES (1)"));
    assert!(session.server.output.is_empty());
}

/// The server buffers its replies until a Flush, and the session reads no more messages until it receives some.
#[test]
fn the_session_sends_flush_once_the_pipeline_is_full() {
    let (mut messages, mut flush, mut last) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    put_parse(&mut messages, "", "SELECT 1");
    (0..10_000).for_each(|_| put_frame(&mut messages, frontend::COPY_DONE, |_| {}));
    put_flush(&mut flush);
    let mut asked = session("");
    sends(&mut asked, &messages);
    assert!(asked.server.output.ends_with(&flush) && !asked.client.input.is_empty());

    // The Flush cannot be sent within a message, so the rest of the message is forwarded first.
    put_frame(&mut last, frontend::COPY_FAIL, |body| body.put_bytes(b'x', 1000));
    let (head, rest) = last.split_at(100);
    let mut asked = session("");
    sends(&mut asked, &[&messages[..messages.len() - 5 * 2], head].concat());
    assert!(asked.server.output.ends_with(head));
    sends(&mut asked, rest);
    assert!(asked.server.output.ends_with(&[rest, &flush].concat()));
}

#[test]
fn a_step_returns_before_many_messages_are_handled() {
    let mut session = session("");
    session.client.input.extend_from_slice(&query("SELECT 1").repeat(100));
    assert!(matches!(session.step(now()), Ok(Step::GoOn)));
    assert!(settle(&mut session).is_none());
    assert_eq!(session.server.output, query("SELECT 1").repeat(100));
}

#[test]
fn a_protocol_violation_ends_the_session_after_pending_replies() {
    let mut session = session("");
    sends(&mut session, &query("SELECT 1"));
    sends(&mut session, b"Q\0\0\0\x01");
    assert!(session.client.ended && session.client_fault().is_some());
    session.server.ended = true;
    assert!(matches!(session.step(now()), Err(End::Server)));
}
