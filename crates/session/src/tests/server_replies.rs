//! Long messages of the server, its reports, and the effects of its responses.

use super::outcomes::begun;
use super::*;
use crate::rejection::CutOffOutcome;

/// Longer than messages that are forwarded as a whole.
const LONG: usize = 70_000;

/// A long error of this severity.
fn long_error(severity: &str) -> BytesMut {
    let head = format!("S{severity}\0V{severity}\0C57014\0M");
    frame(backend::ERROR, &[head.as_bytes(), &[b'x'; LONG], b"\0\0"].concat())
}

#[test]
fn a_long_message_is_forwarded_in_parts() {
    let messages = [
        frame(backend::DATA_ROW, &[0; LONG]),
        frame(backend::ROW_DESCRIPTION, &[0; LONG]),
        frame(backend::COMMAND_COMPLETE, &[b'x'; LONG]),
        long_error("ERROR"),
    ];
    for message in messages {
        let mut session = session("47");
        sends(&mut session, &query("SELECT f()"));
        let (start, rest) = message.split_at(100);
        replies(&mut session, start);
        assert_eq!(session.client.output, start, "{:?}", message[0] as char);
        replies(&mut session, &[rest, &ready()].concat());
        assert_eq!(session.client.output, [&message[..], &ready()].concat());
        assert!(session.is_idle());
    }
}

#[test]
fn a_fatal_error_ends_the_session_once_it_is_complete_or_long() {
    let mut last = BytesMut::new();
    ErrorText::new("57P01", "terminating connection").put(&mut last, Severity::Fatal);
    for (error, much) in [(long_error("FATAL"), 5 + 64 * 1024), (last.clone(), last.len())] {
        for (at, ends) in [(much - 1, false), (much, true)] {
            let mut session = session("");
            session.server.input.extend_from_slice(&error[..at]);
            let step = session.step(now());
            assert_eq!(matches!(step, Err(End::Server)), ends, "{at} of {}", error.len());
        }
    }
    // Later messages have no effect.
    let mut session = session("");
    session.server.input.extend_from_slice(&[last, ready()].concat());
    assert!(matches!(session.step(now()), Err(End::Server)));
}

/// Only a report of the search path changes the path.
#[test]
fn a_report_of_another_setting_keeps_the_path() {
    let write = query("INSERT INTO jobs VALUES (1)");
    for (report, passes) in [
        (&b"application_name\0x\0"[..], true),
        (b"application_name\0\xe9\0", true),
        (b"search_path\0other\0", true),
        (b"search_path\0public\0", false),
    ] {
        let mut session = session_with("", Path::new(Some("other"), true));
        let report = frame(backend::PARAMETER_STATUS, report);
        replies(&mut session, &report);
        assert_eq!(session.client.output, report);
        sends(&mut session, &query("SELECT 1"));
        replies(&mut session, &ready());
        session.server.output.clear();
        sends(&mut session, &write);
        assert_eq!(session.server.output == write, passes, "{report:?}");
    }
}

/// In a pipeline each COMMIT completes before the Sync.
#[test]
fn the_outcome_stays_unknown_after_several_commits() {
    let mut session = begun();
    sends(&mut session, &parse("", "COMMIT"));
    replies(&mut session, &parsed());
    for _ in 0..2 {
        sends(&mut session, &[bind("", ""), execute("")].concat());
        replies(&mut session, &[is_bound(), completes("COMMIT")].concat());
        assert!(!session.is_in_flight());
        assert_eq!(session.cut_off(), CutOffOutcome::Unknown);
    }
}

/// CALL may commit before it fails, and before it returns a row to a client with a row limit.
#[test]
fn the_outcome_of_a_procedure_is_unknown_whatever_its_answer() {
    for answer in [frame(backend::PORTAL_SUSPENDED, b""), cancelled()] {
        let mut session = session_under(&(POLICIES.to_owned() + "opaque: allow\n"), "", Path::default());
        sends(&mut session, &[parse("", "CALL f(1)"), bind("", ""), execute("")].concat());
        replies(&mut session, &[parsed(), is_bound(), answer].concat());
        assert!(!session.is_in_flight());
        assert_eq!(session.cut_off(), CutOffOutcome::Unknown);
        sends(&mut session, &sync());
        replies(&mut session, &ready());
        assert!(session.host.notifications().contains("changed"));
    }
}

#[test]
fn all_definitions_of_a_transaction_count_until_its_end() {
    let mut session = begun();
    for view in ["v", "w"] {
        sends(&mut session, &query(&format!("CREATE VIEW {view} AS SELECT * FROM jobs")));
        replies(&mut session, &[completes("CREATE VIEW"), at_rest(Status::Transaction)].concat());
    }
    assert!(!session.host.notifications().contains("withdraw"));
    sends(&mut session, &query("COMMIT"));
    replies(&mut session, &[completes("COMMIT"), ready()].concat());
    assert_eq!(session.host.notifications(), "query, changed, withdraw");
}

/// No message waits for the portal: the server rejects its execution.
#[test]
fn an_execute_does_not_wait_for_a_skipped_bind() {
    let mut session = begun();
    sends(&mut session, &[parse("", "SELECT 1"), bind("p", ""), sync()].concat());
    replies(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    session.server.output.clear();
    sends(&mut session, &execute("p"));
    assert_eq!(session.server.output, execute("p"));
}

#[test]
fn an_early_ready_for_query_is_a_protocol_violation() {
    for sent in [parse("", "SELECT 1"), bind("", ""), execute("p")] {
        let mut session = session("");
        session.host.fenced = false;
        sends(&mut session, &sent);
        session.server.input.extend_from_slice(&ready());
        assert!(matches!(session.step(now()), Err(End::ServerFault(_))), "{sent:?}");
    }
}

/// Messages without a Sync keep a transaction open, also after a query that is answered later.
#[test]
fn a_parse_after_a_query_keeps_a_transaction_open() {
    let mut session = session("");
    sends(&mut session, &[query("SELECT 1"), parse("", "SELECT 1")].concat());
    replies(&mut session, &[completes("SELECT 1"), ready(), parsed()].concat());
    assert_eq!(session.fence().activity(), Activity::Waiting);
}
