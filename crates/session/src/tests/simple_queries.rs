//! Responses to a simple query that are sent immediately, and messages that wait for it.

use super::*;

/// The server need not look for a syntax error in such text.
#[test]
fn text_that_is_too_complex_or_not_sql_is_rejected_at_once() {
    let complex = "/*".repeat(64_000) + &"*/".repeat(64_000);
    for (replicates, text) in [(false, complex.as_str()), (true, "IDENTIFY_SYSTEM")] {
        let mut session = session("");
        session.settings.replicates = replicates;
        sends(&mut session, &query(text));
        assert!(session.server.output.is_empty(), "{replicates}");
        let received = self::text(&session.client.output);
        assert!(received.contains("CLF004\0") && session.client.output.ends_with(&ready()), "{received}");
    }
}

/// A client that does not read receives the error from the server, after its unread responses.
#[test]
fn a_rejection_is_sent_at_once_only_if_the_output_has_room() {
    for (unread, at_once) in [(HIGH_WATER - 1, true), (HIGH_WATER, false), (HIGH_WATER + 1, false)] {
        let mut session = session("");
        session.client.output.put_bytes(b'x', unread);
        sends(&mut session, &query("DELETE FROM jobs"));
        assert_eq!(session.client.output.len() > unread, at_once, "{unread}");
        assert_eq!(text(&session.server.output).contains("fencegate_lf002"), !at_once, "{unread}");
    }
}

/// A query or call ends the batch: an error in it skips no later message.
#[test]
fn a_bind_after_a_query_or_call_waits_for_its_statement() {
    let call = frame(frontend::FUNCTION_CALL, &[&954_u32.to_be_bytes()[..], &[0; 6]].concat());
    for between in [query("SELECT 1"), call] {
        let mut session = session("");
        let before = [parse("s", "SELECT 1"), between].concat();
        sends(&mut session, &[&before[..], &bind("", "s")].concat());
        assert_eq!(session.server.output.split(), before);
        assert!(session.is_held_back());
        replies(&mut session, &[parsed(), ready()].concat());
        assert_eq!(session.server.output, bind("", "s"));
    }
}
