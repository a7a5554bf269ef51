//! Sessions without verdicts, and their state once fences exist.

use super::*;

fn unjudged() -> Session<OneSession> {
    let mut session = session("");
    session.host.fenced = false;
    session
}

#[test]
fn without_fences_messages_are_forwarded_and_await_their_replies() {
    let describe = || frame(frontend::DESCRIBE, b"Ss\0");
    for (message, answer) in [
        (query("DELETE FROM jobs"), ready()),
        (parse("s", "DELETE FROM jobs"), parsed()),
        (bind("p", "s"), is_bound()),
        (describe(), frame(backend::NO_DATA, b"")),
        (describe(), frame(backend::ROW_DESCRIPTION, &[0, 0])),
        (execute("p"), completes("DELETE 1")),
        (execute("p"), frame(backend::EMPTY_QUERY, b"")),
        (execute("p"), frame(backend::PORTAL_SUSPENDED, b"")),
        (frame(frontend::CLOSE, b"Ss\0"), closed()),
        (sync(), ready()),
        (frame(frontend::FUNCTION_CALL, &[0; 10]), ready()),
    ] {
        let mut session = unjudged();
        let (head, rest) = message.split_at(message.len().min(6));
        sends(&mut session, head);
        assert_eq!(session.server.output, head);
        sends(&mut session, rest);
        assert_eq!(session.server.output, message);
        assert!(session.is_in_flight(), "{message:?}");
        replies(&mut session, &answer);
        assert_eq!(session.client.output, answer);
        assert!(!session.is_in_flight(), "{message:?}");
    }
}

/// Such a portal may run any statement. In a session that was always judged, an unknown portal comes from a DECLARE,
/// which was judged.
#[test]
fn a_portal_from_before_the_fences_is_opaque() {
    for message in [execute("c"), query("FETCH 1 FROM c")] {
        for (is_late, passes) in [(false, true), (true, false)] {
            let mut session = session("");
            session.host.fenced = !is_late;
            sends(&mut session, &query("BEGIN"));
            replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
            session.host.takes_up = is_late;
            session.server.output.clear();
            sends(&mut session, &message);
            assert_eq!(session.server.output == message, passes, "{message:?}");
            assert_eq!(text(&session.server.output).contains("fencegate_lf004"), is_late, "{message:?}");
        }
    }
}

/// The server answers the Sync because the COPY has already failed, and does not skip later messages.
#[test]
fn a_sync_after_a_failed_copy_is_answered() {
    let mut session = unjudged();
    sends(&mut session, &execute("p"));
    replies(&mut session, &copies_in());
    sends(&mut session, &sync());
    session.server.output.clear();
    replies(&mut session, &cancelled());
    sends(&mut session, &query("SELECT 1"));
    assert!(session.server.output.is_empty(), "the query is skipped");
    replies(&mut session, &ready());
    sends(&mut session, &query("SELECT 1"));
    assert_eq!(session.server.output, query("SELECT 1"));
    // The session ends because it cannot determine which message the server has answered.
    session.host.takes_up = true;
    assert!(matches!(session.step(now()), Err(End::ClientFault(ClientFault::Unjudged(_)))));
}
