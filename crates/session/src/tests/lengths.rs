//! Messages that are long or arrive in parts: which parts the session waits for.

use super::*;
use crate::task::{HeldRoom, Room};

const MIB: usize = 1024 * 1024;

/// Room that counts as overdue until this many bytes have arrived.
struct UntilThen(usize);

impl HeldRoom for UntilThen {
    fn is_overdue(&mut self, there: usize) -> bool {
        there < self.0
    }
}

fn room(overdue_before: usize) -> Done {
    let room: Room = Box::new(UntilThen(overdue_before));
    Done::Room(Some(room))
}

/// A query whose message has this many bytes after its header.
fn long_query(body: usize) -> BytesMut {
    query(&format!("SELECT '{}'", "x".repeat(body - "SELECT ''".len() - 1)))
}

#[test]
fn a_message_longer_than_a_mebibyte_waits_for_room() {
    let mut session = session("");
    let message = long_query(MIB);
    assert!(sends(&mut session, &message).is_none());
    assert_eq!(session.server.output, message);

    let mut session = self::session("");
    let message = long_query(MIB + 1);
    assert!(sends(&mut session, &message[..MIB - 1]).is_none(), "any session may buffer this much");
    assert_eq!(session.room_for_input(), MIB);
    let Some(Task::Room { bytes, there, behind }) = sends(&mut session, &message[MIB - 1..MIB]) else { panic!() };
    assert_eq!((bytes, there, behind), (message.len(), MIB, false));
    assert!(session.is_held_back() && !session.keeps_room());
    session.done(room(0));
    assert!(settle(&mut session).is_none());
    assert!(session.keeps_room() && session.server.output.is_empty() && !session.is_held_back());
    assert_eq!(session.room_for_input(), message.len());
    assert!(sends(&mut session, &message[MIB..]).is_none());
    assert_eq!(session.server.output, message);
    assert!(!session.keeps_room() && session.is_held_up(), "the room is kept until the server has most of it");
    session.server.output.clear();
    replies(&mut session, &ready());
    assert!(!session.is_held_up());
}

#[test]
fn a_long_message_without_room_is_rejected() {
    for (done, code) in [(Done::Room(None), "LF006"), (room(usize::MAX), "LF006")] {
        let mut session = session("");
        let message = long_query(2 * MIB);
        assert!(matches!(sends(&mut session, &message[..MIB]), Some(Task::Room { .. })));
        session.done(done);
        sends(&mut session, &message[MIB..MIB + 1]);
        sends(&mut session, &message[MIB + 1..]);
        let sent = String::from_utf8_lossy(&session.server.output).into_owned();
        assert!(sent.contains("fencegate_lf006") && sent.len() < MIB, "{code}: {}", sent.len());
        assert!(session.client.input.is_empty());
    }
    // The message is complete, so the session does not wait for it.
    let mut session = session("");
    let message = long_query(2 * MIB);
    assert!(matches!(sends(&mut session, &message), Some(Task::Room { .. })));
    session.done(room(usize::MAX));
    settle(&mut session);
    assert_eq!(session.server.output, message);
}

#[test]
fn a_query_longer_than_16_mebibytes_is_unverifiable() {
    let mut session = session("");
    let message = long_query(16 * MIB + 1);
    sends(&mut session, &message[..MIB]);
    assert_eq!(session.host.notifications(), "query, rejected unverifiable");
    assert!(session.client.input.is_empty(), "the message is discarded");
    sends(&mut session, &message[MIB..]);
    let sent = String::from_utf8_lossy(&session.server.output).into_owned();
    assert!(sent.contains("fencegate_lf004") && sent.len() < MIB);
}

/// While messages are pending, the room may be in use for a long time.
#[test]
fn a_room_request_reports_whether_messages_are_pending() {
    let mut session = session("");
    sends(&mut session, &query("SELECT 1"));
    let Some(Task::Room { behind, .. }) = sends(&mut session, &long_query(2 * MIB)) else { panic!() };
    assert!(behind);
}

fn long_bind(portal: &str, statement: &str, values: usize) -> BytesMut {
    let mut message = BytesMut::new();
    put_frame(&mut message, frontend::BIND, |out| {
        out.put_slice(format!("{portal}\0{statement}\0").as_bytes());
        out.put_bytes(b'x', values);
    });
    message
}

#[test]
fn a_bind_is_forwarded_once_its_names_have_arrived() {
    let mut session = session("");
    sends(&mut session, &parse("s", "SELECT 1"));
    let message = long_bind("portal", "s", 500_000);
    let names = 5 + "portal\0s\0".len();
    session.server.output.clear();
    for at in [5 + "portal\0".len(), names - 1] {
        let there = session.client.input.len();
        sends(&mut session, &message[there..at]);
        assert!(session.server.output.is_empty(), "one name is incomplete");
    }
    sends(&mut session, &message[names - 1..names]);
    assert_eq!(session.server.output, message[..names]);
    assert!(session.is_busy() && session.fence().activity() == Activity::Busy);
    sends(&mut session, &message[names..]);
    assert_eq!(session.server.output, message);
}

#[test]
fn an_unterminated_name_ends_the_session() {
    const LONGEST: usize = 64 * 1024;
    for (first, fits) in [(LONGEST - 3, true), (LONGEST - 2, false), (LONGEST + 10, false)] {
        let mut session = session("");
        let mut message = long_bind(&"p".repeat(first), "s", 100);
        sends(&mut session, &message.split_to(5 + LONGEST));
        assert_eq!(session.client_fault().is_none(), fits, "{first}");
        if !fits {
            let why = ClientFault::Unjudged("a name longer than 64 KiB");
            assert_eq!(session.client_fault(), Some(why));
        }
    }
    // The server rejects a Bind without a terminated name.
    let mut session = session("");
    let mut message = BytesMut::new();
    put_frame(&mut message, frontend::BIND, |out| out.put_slice(b"portal\0s"));
    sends(&mut session, &message);
    assert_eq!((session.server.output.clone(), session.client_fault()), (message, None));
}

#[test]
fn incomplete_messages_are_left_to_the_server() {
    for (tag, body) in [(frontend::QUERY, &b"SELECT 1"[..]), (frontend::PARSE, b"s"), (frontend::PARSE, b"")] {
        let (mut session, mut message) = (session(""), BytesMut::new());
        put_frame(&mut message, tag, |out| out.put_slice(body));
        sends(&mut session, &message);
        assert_eq!(session.server.output, message, "{tag}");
        assert!(session.is_in_flight() && session.client_fault().is_none());
    }
    for tag in [frontend::SYNC, frontend::FLUSH] {
        let (mut session, mut message) = (session(""), BytesMut::new());
        put_frame(&mut message, tag, |out| out.put_slice(b"x"));
        sends(&mut session, &message);
        assert_eq!(session.client_fault(), Some(ClientFault::Unjudged("Sync or Flush that is not empty")));
        assert!(session.server.output.is_empty());
    }
}

/// A full buffer accepts no more input, on either side.
#[test]
fn a_side_that_does_not_read_stops_the_other() {
    let mut session = session("");
    let message = long_query(HIGH_WATER);
    sends(&mut session, &[&message[..], &query("SELECT 1")].concat());
    assert_eq!(session.server.output, message);
    assert!(session.is_held_up() && session.client.input == query("SELECT 1"));
    session.server.output.clear();
    settle(&mut session);
    assert_eq!(session.server.output, query("SELECT 1"));
    assert!(!session.is_held_up());
    // The client does not read its rows.
    session.client.output.put_bytes(b'x', HIGH_WATER);
    session.server.input.extend_from_slice(&ready());
    settle(&mut session);
    assert!(session.is_held_up() && session.server.input == ready());
    session.server.ended = true;
    assert!(session.step(now()).is_ok(), "the output is not written yet");
    session.client.output.clear();
    assert!(matches!(session.step(now()), Err(End::Server)));
    assert_eq!(session.client.output, ready());
}

/// The proxy inserts no error into a partially sent notice.
#[test]
fn no_error_is_inserted_into_a_server_message() {
    let (mut session, mut notice) = (session(""), BytesMut::new());
    put_frame(&mut notice, backend::NOTICE, |out| out.put_bytes(b'x', 100_000));
    replies(&mut session, &notice[..50_000]);
    assert!(!session.is_held_back());
    sends(&mut session, &query("DELETE FROM jobs"));
    assert_eq!(session.client.output, notice[..50_000]);
    assert!(session.is_held_back() && session.server.output.is_empty());
    let mut last = BytesMut::new();
    last.extend_from_slice(&session.client.output);
    session.send_last(&ErrorText::new("57P01", "bye"), &End::Shutdown);
    assert_eq!(session.client.output, last, "no final error either");
    replies(&mut session, &notice[50_000..]);
    assert!(session.client.output.starts_with(&notice) && text(&session.client.output).contains("LF002"));
    assert!(!session.is_held_back());
}

#[test]
fn an_execute_of_an_unknown_statement_is_rejected() {
    // A portal of an unknown statement is opaque.
    let mut session = session("");
    sends(&mut session, &bind("", "unknown"));
    assert_eq!(session.server.output.split(), bind("", "unknown"));
    sends(&mut session, &execute(""));
    let sent = text(&session.server.output);
    assert!(sent.contains("fencegate_lf004"), "{sent}");
}

/// The session discards the text and keeps only the name.
#[test]
fn a_parse_longer_than_16_mebibytes_is_forwarded_once_its_name_has_arrived() {
    let (mut session, mut message) = (session(""), BytesMut::from(&b"P"[..]));
    message.put_u32(16 * MIB as u32 + 100);
    message.put_slice(b"s");
    sends(&mut session, &message);
    assert!(session.server.output.is_empty() && session.client_fault().is_none());
    sends(&mut session, b"\0");
    assert_eq!(session.server.output, [&message[..], b"\0"].concat());
}

#[test]
fn bytes_received_with_the_handshake_are_handled_first() {
    let mut session = session("");
    session.client = Side::new(query("SELECT 1"), false, ready());
    session.server = Side::new(BytesMut::new(), false, query("SELECT 0"));
    settle(&mut session);
    assert_eq!(session.server.output, [query("SELECT 0"), query("SELECT 1")].concat());
    assert_eq!(session.client.output, ready());
    session.server = Side::new(ready(), true, BytesMut::new());
    assert!(matches!(session.step(now()), Err(End::Server)));
    assert_eq!(session.client.output, [ready(), ready()].concat());
}
