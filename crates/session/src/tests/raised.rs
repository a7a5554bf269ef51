//! Errors that the server raises in place of rejected statements, and texts that the proxy cannot read.

use super::*;

fn error(code: &str, message: &str, position: &str) -> BytesMut {
    frame(backend::ERROR, format!("SERROR\0VERROR\0C{code}\0M{message}\0P{position}\0\0").as_bytes())
}

/// The server reports the error and its position in the client's own text.
#[test]
fn a_syntax_error_is_reported_by_the_server_and_not_rejected() {
    let mut session = session("");
    sends(&mut session, &query("SELEC 1"));
    let sent = text(&session.server.output.split());
    let (raise, own) = sent[5..].split_once("; SELEC 1").unwrap();
    assert!(raise.contains("fencegate_lf004") && own == "\0", "{sent}");
    assert_eq!(session.host.notifications(), "", "it may be a syntax error");
    let at = raise.len() + "; ".len() + 1;
    replies(&mut session, &[error("42601", "syntax error", &at.to_string()), ready()].concat());
    assert_eq!(session.client.output, [error("42601", "syntax error", "1"), ready()].concat());
    assert_eq!(session.host.notifications(), "query");
    // Text that the server can parse but the proxy cannot is rejected.
    session.client.output.clear();
    sends(&mut session, &query("SELEC 1"));
    replies(&mut session, &frame(backend::NOTICE, format!("SNOTICE\0Mfrom it\0P{at}\0\0").as_bytes()));
    assert!(text(&session.client.output).contains("P1\0"), "notices are corrected too");
    replies(&mut session, &error("42704", "unrecognized configuration parameter \"fencegate_lf004\"", "5"));
    assert!(text(&session.client.output).contains("CLF004\0"));
    assert_eq!(session.host.notifications(), "query, rejected unverifiable");
}

#[test]
fn an_unparsed_exempt_statement_is_noted_once_the_server_parses_it() {
    let policies = POLICIES.to_owned() + "exempt_roles: [postgres]\n";
    for (answer, noted) in
        [(error("42601", "syntax error", "1"), false), (ready(), true), (error("22012", "zero", "1"), true)]
    {
        let mut session = session_under(&policies, "", Path::new(Some("public"), false));
        sends(&mut session, &query("SELEC 1"));
        assert_eq!(session.server.output, query("SELEC 1"));
        assert!(!session.host.notifications().contains("passed"));
        replies(&mut session, &answer);
        assert_eq!(session.host.notifications().contains("passed"), noted);
    }
}

/// The client's own statements and portals remain unchanged.
#[test]
fn a_rejected_execute_is_replaced_in_its_pipeline() {
    let mut session = session("");
    let own = [parse("", "DELETE FROM jobs"), bind("", "")].concat();
    sends(&mut session, &[&own[..], &execute(""), &sync()].concat());
    let sent = session.server.output.split();
    assert!(sent.starts_with(&own));
    let sent = text(&sent[own.len()..]);
    assert!(sent.contains("fencegate_lf002") && sent.matches("fencegate reject").count() >= 5, "{sent}");
    let completes = |tags: &[u8]| tags.iter().flat_map(|tag| frame(*tag, b"")).collect::<Vec<u8>>();
    let (own, ours) = (
        [backend::PARSE_COMPLETE, backend::BIND_COMPLETE],
        [backend::CLOSE_COMPLETE, backend::PARSE_COMPLETE, backend::BIND_COMPLETE],
    );
    let raised = error("42704", "unrecognized configuration parameter \"fencegate_lf002\"", "1");
    let closed = [completes(&[backend::CLOSE_COMPLETE]), ready().to_vec()].concat();
    replies(&mut session, &[completes(&own), completes(&ours), raised.to_vec(), ready().to_vec(), closed].concat());
    let received = text(&session.client.output);
    assert!(session.client.output.starts_with(&completes(&own)) && received.contains("CLF002\0"), "{received}");
    assert!(session.client.output.ends_with(&ready()) && session.is_idle());
    assert_eq!(received.matches(&text(&ready())).count(), 1);
    assert_eq!(session.host.notifications(), "query, rejected missing");
    // The next Sync has nothing to close.
    sends(&mut session, &sync());
    assert_eq!(session.server.output, sync());
}

/// Statements before a rejected one in the same string run; later ones do not.
#[test]
fn in_a_string_the_error_replaces_the_rejected_statement() {
    let mut session = session("");
    sends(&mut session, &query("PREPARE p AS SELECT 1; DELETE FROM jobs; SELECT 2"));
    let sent = text(&session.server.output.split());
    assert!(sent.contains("PREPARE p AS SELECT 1; ") && sent.ends_with("; SELECT 2\0"), "{sent}");
    assert!(sent.contains("fencegate_lf002") && !sent.contains("DELETE"), "{sent}");
    assert_eq!(session.host.notifications(), "query, rejected missing");
    let done = frame(backend::COMMAND_COMPLETE, b"PREPARE\0");
    let raised = error("42704", "unrecognized configuration parameter \"fencegate_lf002\"", "25");
    replies(&mut session, &[done.clone(), raised, ready()].concat());
    assert!(session.client.output.starts_with(&done) && session.is_idle());
    sends(&mut session, &query("EXECUTE p"));
    assert_eq!(session.server.output, query("EXECUTE p"), "the prepared statement is known");
}

/// An error in a pipeline skips the rest up to its Sync, and skipped definitions have no meaning.
#[test]
fn messages_skipped_by_an_error_are_not_owed_and_define_no_name() {
    let mut session = session("");
    sends(&mut session, &[parse("one", "SELECT 1"), parse("two", "SELECT 2"), sync(), query("SELECT 3")].concat());
    replies(&mut session, &[error("42P05", "it is there", "1"), ready()].concat());
    assert!(session.is_busy(), "the reply to the next query is pending");
    replies(&mut session, &ready());
    assert!(session.is_idle());
    session.server.output.clear();
    sends(&mut session, &[bind("", "two"), execute("")].concat());
    assert!(text(&session.server.output).contains("fencegate_lf004"), "the statement is unknown");
}

/// A failed PREPARE defines nothing, so no message waits for it.
#[test]
fn a_name_whose_prepare_failed_has_no_meaning() {
    let mut session = session("");
    sends(&mut session, &query("PREPARE p AS SELECT 1"));
    replies(&mut session, &[error("42P05", "it is there", "1"), ready()].concat());
    session.server.output.clear();
    session.client.output.clear();
    sends(&mut session, &query("EXECUTE p"));
    assert!(session.client.input.is_empty() && !session.is_held_back());
}
