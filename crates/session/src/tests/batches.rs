//! Messages forwarded before the server has answered the ones that they depend on: limits, and when their effects are
//! recorded.

use super::*;

const MIB: usize = 1024 * 1024;

/// The PREPARE may fail, and the name then keeps its earlier definition.
#[test]
fn a_name_from_a_string_that_is_rejected_waits_for_its_answer() {
    let mut session = session("");
    says(&mut session, &query("PREPARE p AS SELECT 1; DELETE FROM jobs"));
    assert!(text(&session.server.output.split()).contains("fencegate_lf002"));
    says(&mut session, &query("EXECUTE p"));
    assert!(session.server.output.is_empty() && session.is_held_back());
    let unknown = b"SERROR\0VERROR\0C42704\0Munrecognized configuration parameter \"fencegate_lf002\"\0\0";
    answers(&mut session, &[completes("PREPARE"), frame(backend::ERROR, unknown), ready()].concat());
    assert_eq!(session.server.output, query("EXECUTE p"));
}

/// Whether the call passes, or is rejected.
#[test]
fn a_name_from_before_a_function_call_waits_for_its_answer() {
    for (function, passes) in [(954_u32, true), (1, false)] {
        let mut session = session("");
        let call = frame(frontend::FUNCTION_CALL, &[&function.to_be_bytes()[..], &[0; 6]].concat());
        says(&mut session, &[&parse("s", "SELECT 1")[..], &call].concat());
        assert_eq!(session.server.output.split().ends_with(&call), passes);
        says(&mut session, &bind("", "s"));
        assert!(!session.server.output.ends_with(&bind("", "s")) && session.is_held_back(), "{function}");
        session.server.output.clear();
        let answer = if passes { ready() } else { answer_to_rejected_call() };
        answers(&mut session, &[parsed(), answer].concat());
        assert_eq!(session.server.output, bind("", "s"), "{function}");
    }
}

/// Text that the proxy can read has no error that the server must find first.
#[test]
fn what_passes_read_is_noted_at_once() {
    let policies = POLICIES.to_owned() + "exempt_roles: [postgres]\n";
    let mut session = session_under(&policies, "", Path::new(Some("public"), false));
    says(&mut session, &query("DELETE FROM jobs"));
    assert_eq!(session.server.output, query("DELETE FROM jobs"));
    assert!(session.host.told().contains("passed 1"));
    answers(&mut session, &ready());
    assert!(!session.host.told().contains("passed"), "once");
}

/// Its names end within 64 KiB: more than usual is not read for them.
#[test]
fn a_bind_whose_names_are_not_there_wants_no_more_than_usual() {
    let mut session = session("");
    let mut start = BytesMut::from(&[frontend::BIND][..]);
    start.put_u32(MIB as u32);
    start.put_slice(b"portal");
    says(&mut session, &start);
    assert_eq!(session.room_for_input(), HIGH_WATER);
}

#[test]
fn a_statement_of_16_mebibytes_is_read_and_a_longer_one_is_not() {
    for (body, is_read) in [(16 * MIB, true), (16 * MIB + 1, false)] {
        let mut session = session("");
        let mut start = BytesMut::from(&[frontend::QUERY][..]);
        start.put_u32(body as u32 + 4);
        start.put_bytes(b' ', MIB);
        let task = says(&mut session, &start);
        assert_eq!(matches!(task, Some(Task::Room { .. })), is_read, "{body}");
        assert_eq!(session.host.told(), if is_read { "" } else { "query, rejected unverifiable" });
    }
}
