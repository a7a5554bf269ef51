//! A session's catalog changes: which sessions they concern, and until when.

use super::*;

fn completes(tag: &str, status: Status) -> BytesMut {
    let mut message = BytesMut::new();
    put_frame(&mut message, backend::COMMAND_COMPLETE, |out| out.put_slice(format!("{tag}\0").as_bytes()));
    put_ready(&mut message, status);
    message
}

/// The host's notifications when the statement is sent, and when it has been answered.
fn notified(session: &mut Session<OneSession>, statement: &str, status: Status) -> [String; 2] {
    sends(session, &query(statement));
    let sent = session.host.notifications();
    replies(session, &completes(statement.split(' ').next().unwrap_or_default(), status));
    [sent, session.host.notifications()]
}

#[test]
fn a_view_of_a_fenced_table_is_published_until_it_is_committed() {
    let mut session = session("");
    let way = "CREATE VIEW v AS SELECT * FROM jobs";
    assert_eq!(notified(&mut session, way, Status::Idle), ["publish, query", "changed, withdraw"]);
    assert_eq!(notified(&mut session, "SELECT 1", Status::Idle), ["query", ""]);
    // In a transaction, a definition counts until the end.
    assert_eq!(notified(&mut session, "BEGIN", Status::Transaction), ["query", ""]);
    assert_eq!(notified(&mut session, way, Status::Transaction), ["publish, query", ""]);
    assert!(session.defines_after_its_end());
    assert_eq!(notified(&mut session, "SELECT 1", Status::Transaction), ["query", ""]);
    assert_eq!(notified(&mut session, "COMMIT", Status::Idle), ["query", "changed, withdraw"]);
    assert!(!session.defines_after_its_end());
}

#[test]
fn a_definition_unrelated_to_fences_is_not_published() {
    let mut session = session("");
    let harmless = "CREATE TABLE other (id int)";
    assert_eq!(notified(&mut session, harmless, Status::Idle), ["query", "harmless"]);
    // The definition may use concurrent definitions of others.
    session.host.looks = AtomicUsize::new(usize::MAX);
    sends(&mut session, &query(harmless));
    assert!(session.host.notifications().contains("publish") || session.server.output.is_empty());
    // DROP INDEX does not name the table, which may be any. It counts once it has completed.
    let mut session = self::session("");
    let [sent, done] = notified(&mut session, "DROP INDEX i", Status::Idle);
    assert_eq!((sent.contains("publish"), done.contains("changed")), (false, true), "{sent} | {done}");
}

#[test]
fn a_session_lost_during_a_definition_leaves_the_catalog_in_doubt() {
    let mut session = session("");
    notified(&mut session, "BEGIN", Status::Transaction);
    notified(&mut session, "CREATE VIEW v AS SELECT * FROM jobs", Status::Transaction);
    assert!(session.defines_after_its_end());
    session.server_gone();
    assert_eq!(session.host.notifications(), "changed, withdraw");
    // If the server closes the connection, the transaction may have been committed.
    let mut session = self::session("");
    notified(&mut session, "BEGIN", Status::Transaction);
    notified(&mut session, "CREATE VIEW v AS SELECT * FROM jobs", Status::Transaction);
    session.server.ended = true;
    session.definitions_ended();
    assert_eq!(session.host.notifications(), "changed, withdraw");
    assert!(!session.defines_after_its_end());
    let mut idle = self::session("");
    idle.server.ended = true;
    idle.definitions_ended();
    assert_eq!(idle.host.notifications(), "");
}

/// A message forwarded after a COMMIT may contain more definitions until it is answered.
#[test]
fn definitions_after_a_commit_stay_published() {
    let mut session = session("");
    notified(&mut session, "BEGIN", Status::Transaction);
    notified(&mut session, "CREATE VIEW v AS SELECT * FROM jobs", Status::Transaction);
    sends(&mut session, &[query("COMMIT"), query("CREATE VIEW w AS SELECT * FROM jobs")].concat());
    session.host.notifications();
    replies(&mut session, &completes("COMMIT", Status::Idle));
    assert_eq!(session.host.notifications(), "changed", "the second definition is pending");
    replies(&mut session, &completes("CREATE VIEW", Status::Idle));
    assert_eq!(session.host.notifications(), "changed, withdraw");
}
