//! Messages forwarded before the server has answered the ones that they depend on: limits, and when their effects are
//! recorded.

use super::*;

const MIB: usize = 1024 * 1024;

/// The PREPARE may fail, and the name then keeps its earlier definition.
#[test]
fn a_name_defined_in_a_rejected_string_waits_for_the_response() {
    let mut session = session("");
    sends(&mut session, &query("PREPARE p AS SELECT 1; DELETE FROM jobs"));
    assert!(text(&session.server.output.split()).contains("fencegate_lf002"));
    sends(&mut session, &query("EXECUTE p"));
    assert!(session.server.output.is_empty() && session.is_held_back());
    let unknown = b"SERROR\0VERROR\0C42704\0Munrecognized configuration parameter \"fencegate_lf002\"\0\0";
    replies(&mut session, &[completes("PREPARE"), frame(backend::ERROR, unknown), ready()].concat());
    assert_eq!(session.server.output, query("EXECUTE p"));
}

/// A rejected call also ends the batch.
#[test]
fn a_name_defined_before_a_function_call_waits_for_the_response() {
    for (function, passes) in [(954_u32, true), (1, false)] {
        let mut session = session("");
        let call = frame(frontend::FUNCTION_CALL, &[&function.to_be_bytes()[..], &[0; 6]].concat());
        sends(&mut session, &[&parse("s", "SELECT 1")[..], &call].concat());
        assert_eq!(session.server.output.split().ends_with(&call), passes);
        sends(&mut session, &bind("", "s"));
        assert!(!session.server.output.ends_with(&bind("", "s")) && session.is_held_back(), "{function}");
        session.server.output.clear();
        let answer = if passes { ready() } else { answer_to_rejected_call() };
        replies(&mut session, &[parsed(), answer].concat());
        assert_eq!(session.server.output, bind("", "s"), "{function}");
    }
}

/// Text that the proxy can parse has no syntax error, so the server need not check it first.
#[test]
fn a_parsed_exempt_write_is_noted_at_once() {
    let policies = POLICIES.to_owned() + "exempt_roles: [postgres]\n";
    let mut session = session_under(&policies, "", Path::new(Some("public"), false));
    sends(&mut session, &query("DELETE FROM jobs"));
    assert_eq!(session.server.output, query("DELETE FROM jobs"));
    assert!(session.host.notifications().contains("passed 1"));
    replies(&mut session, &ready());
    assert!(!session.host.notifications().contains("passed"), "a write is noted once");
}

/// The names end within 64 KiB, so the usual room suffices.
#[test]
fn a_bind_without_its_names_needs_no_extra_room() {
    let mut session = session("");
    let mut start = BytesMut::from(&[frontend::BIND][..]);
    start.put_u32(MIB as u32);
    start.put_slice(b"portal");
    sends(&mut session, &start);
    assert_eq!(session.room_for_input(), HIGH_WATER);
}

#[test]
fn a_statement_longer_than_16_mebibytes_is_not_read() {
    for (body, is_read) in [(16 * MIB, true), (16 * MIB + 1, false)] {
        let mut session = session("");
        let mut start = BytesMut::from(&[frontend::QUERY][..]);
        start.put_u32(body as u32 + 4);
        start.put_bytes(b' ', MIB);
        let task = sends(&mut session, &start);
        assert_eq!(matches!(task, Some(Task::Room { .. })), is_read, "{body}");
        assert_eq!(session.host.notifications(), if is_read { "" } else { "query, rejected unverifiable" });
    }
}
