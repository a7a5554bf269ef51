//! Names of statements and portals: their meaning, and from when on.

use super::outcomes::begun;
use super::*;

#[test]
fn a_closed_name_has_no_meaning() {
    for (closes, answer, is_known) in [
        ([frame(frontend::CLOSE, b"Ss\0"), sync()].concat(), [closed(), ready()].concat(), false),
        ([frame(frontend::CLOSE, b"Ps\0"), sync()].concat(), [closed(), ready()].concat(), true),
        (query("DEALLOCATE s").to_vec(), [completes("DEALLOCATE"), ready()].concat(), false),
        (query("DEALLOCATE ALL").to_vec(), [completes("DEALLOCATE ALL"), ready()].concat(), false),
        (query("DEALLOCATE other").to_vec(), [completes("DEALLOCATE"), ready()].concat(), true),
    ] {
        let mut session = session("");
        prepare(&mut session, "s", "SELECT 1");
        sends(&mut session, &closes[..7]);
        assert!(session.server.output.is_empty(), "the message is incomplete");
        sends(&mut session, &closes[7..]);
        assert_eq!(session.server.output.split(), closes);
        replies(&mut session, &answer);
        assert_eq!(session.client.output.split(), answer);
        sends(&mut session, &query("EXECUTE s"));
        assert_eq!(session.server.output == query("EXECUTE s"), is_known, "{closes:?}");
        assert_eq!(text(&session.client.output).contains("LF004"), !is_known, "{closes:?}");
    }
}

#[test]
fn a_bind_after_a_sync_waits_for_its_statement() {
    let mut session = session("");
    let parse = [parse("s", "SELECT 1"), sync()].concat();
    sends(&mut session, &[&parse[..], &bind("", "s")].concat());
    assert_eq!(session.server.output.split(), parse);
    assert!(session.is_held_back());
    replies(&mut session, &[parsed(), ready()].concat());
    assert_eq!(session.server.output, bind("", "s"));
    assert!(!session.is_held_back());
}

/// Like a query, a call ends the batch: an error in it skips no later message.
#[test]
fn a_bind_after_a_function_call_waits_for_its_statement() {
    let policies = POLICIES.to_owned() + "opaque: allow\n";
    let mut session = session_under(&policies, "", Path::new(Some("public"), false));
    let before = [parse("s", "SELECT 1"), frame(frontend::FUNCTION_CALL, &[0; 10])].concat();
    sends(&mut session, &[&before[..], &bind("", "s")].concat());
    assert_eq!(session.server.output.split(), before);
    assert!(session.is_held_back());
    replies(&mut session, &[parsed(), frame(b'V', &[0; 4]), ready()].concat());
    assert_eq!(session.server.output, bind("", "s"));
}

#[test]
fn a_full_name_table_waits_for_pending_replies() {
    for (message, answer, is_portal) in
        [(parse("new", "SELECT 1"), parsed(), false), (bind("new", "s"), is_bound(), true)]
    {
        let mut session = session("");
        prepare(&mut session, "s", "SELECT 1");
        let names = if is_portal { &mut session.names.portals } else { &mut session.names.statements };
        let mut number = 0;
        while !names.is_full() {
            names.define(number.to_string().as_bytes(), Arc::default(), 0);
            number += 1;
        }
        sends(&mut session, &message);
        assert_eq!(session.server.output.split(), message, "no reply is pending");
        sends(&mut session, &message);
        assert_eq!(session.server.output.split(), flush());
        assert!(session.is_held_back());
        replies(&mut session, &answer);
        assert_eq!(session.server.output, message);
    }
}

#[test]
fn a_fetch_has_the_writes_of_its_portal() {
    let mut session = begun();
    session.server.output.clear();
    let portal = [parse("", "DELETE FROM jobs RETURNING 1"), bind("p", ""), sync()].concat();
    sends(&mut session, &[&portal[..], &query("FETCH 1 FROM p")].concat());
    assert_eq!(session.server.output.split(), portal);
    assert!(session.is_held_back(), "the portal may not exist");
    replies(&mut session, &[parsed(), is_bound(), at_rest(Status::Transaction)].concat());
    assert!(text(&session.server.output).contains("fencegate_lf002"));
    assert_eq!(session.host.notifications(), "query, query, rejected missing");
}

#[test]
fn a_prepare_skipped_by_an_error_defines_no_name() {
    let mut session = session("");
    let prepare = [parse("", "PREPARE p AS SELECT 1"), bind("", ""), execute(""), sync()].concat();
    sends(&mut session, &prepare);
    assert_eq!(session.server.output.split(), prepare);
    replies(&mut session, &[parsed(), cancelled(), ready()].concat());
    sends(&mut session, &query("EXECUTE p"));
    assert!(text(&session.server.output).contains("fencegate_lf004") && !session.is_held_back());
}

/// A declared cursor may be any query, and may set the token when it runs.
#[test]
fn the_token_is_unknown_after_an_unknown_portal() {
    let mut session = session_with("47", Path::new(Some("public"), true));
    sends(&mut session, &query("BEGIN"));
    replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    session.server.output.clear();
    sends(&mut session, &[execute("c"), sync()].concat());
    assert_eq!(session.server.output.split(), [execute("c"), flush()].concat(), "the portal may run a COPY");
    assert!(session.is_held_back());
    replies(&mut session, &completes("SELECT 1"));
    assert_eq!(session.server.output.split(), sync());
    replies(&mut session, &at_rest(Status::Transaction));
    assert!(sends(&mut session, &query("DELETE FROM jobs")).is_none());
    assert!(text(&session.server.output).contains("current_setting('lease.fence', true)"));
}
