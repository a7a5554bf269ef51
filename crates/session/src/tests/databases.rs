//! Statements that need a database without other connections. The proxy checks the owner, and closes its control
//! connections only for statements that can run.

use super::outcomes::{begun, roles};
use super::*;
use fencegate_fence::Role;
use std::collections::HashSet;

const RENAME: &str = "ALTER DATABASE other RENAME TO another";

/// Reports these databases as owned by other roles.
fn checked(session: &mut Session<OneSession>, foreign: &[&str]) -> Option<Task> {
    session.server.output.clear();
    session.done(Done::CheckedOwner(foreign.iter().map(|it| (*it).to_owned()).collect()));
    settle(session)
}

/// The databases and the role to check.
fn to_check(task: Option<Task>) -> (HashSet<String>, Role) {
    let Some(Task::CheckOwner(databases, role)) = task else { panic!("no owner is checked") };
    (databases.into_iter().collect(), role)
}

fn names(databases: &[&str]) -> HashSet<String> {
    databases.iter().map(|it| (*it).to_owned()).collect()
}

fn current() -> Role {
    Role::Current("postgres".to_owned())
}

fn any() -> Role {
    Role::AnyOf("postgres".to_owned())
}

#[test]
fn a_dropped_database_is_disconnected_and_forgotten() {
    let mut session = session("");
    let dropped = query("DROP DATABASE other WITH (FORCE)");
    assert!(sends(&mut session, &dropped).is_none());
    assert!(text(&session.server.output).contains("SHOW role"));
    let task = replies(&mut session, &roles("none", "postgres"));
    assert_eq!(to_check(task), (names(&["other"]), current()));
    let Some(Task::VacateDatabase(wanted, role)) = checked(&mut session, &[]) else {
        panic!("no connection is closed")
    };
    assert_eq!((wanted.database.as_str(), wanted.by_force, role), ("other", true, current()));
    session.done(Done::VacatedDatabase);
    assert!(settle(&mut session).is_none());
    assert_eq!(session.server.output, dropped);
    session.host.notifications();
    replies(&mut session, &completes("DROP DATABASE"));
    assert!(session.host.notifications().contains("database other"));
}

/// Any role with CREATEDB may copy a template database. The server checks the privilege.
#[test]
fn a_template_is_disconnected_whichever_role_owns_it() {
    let mut session = session("");
    let copied = query("CREATE DATABASE another TEMPLATE other");
    sends(&mut session, &copied);
    let task = replies(&mut session, &roles("none", "postgres"));
    assert!(matches!(task, Some(Task::VacateDatabase(wanted, _)) if wanted.is_copied));
    for mut session in [begun(), super::session("")] {
        session.server.output.clear();
        let copied =
            if session.is_idle() { query("SELECT 1; CREATE DATABASE another TEMPLATE other") } else { copied.clone() };
        assert!(sends(&mut session, &copied).is_none());
        assert_eq!(session.server.output, copied, "the server rejects it");
    }
}

/// The proxy does not query the role: its query would begin a pipeline, in which the server drops no database.
#[test]
fn the_role_is_unknown_for_a_drop_database_by_execute() {
    let mut session = session("");
    prepare(&mut session, "s", "DROP DATABASE other");
    sends(&mut session, &bind("", "s"));
    replies(&mut session, &is_bound());
    session.server.output.clear();
    let task = sends(&mut session, &execute(""));
    assert_eq!(to_check(task), (names(&["other"]), any()));
    assert!(session.server.output.is_empty());
    let Some(Task::VacateDatabase(_, role)) = checked(&mut session, &[]) else { panic!("no connection is closed") };
    assert_eq!(role, any());
}

/// The server would wait for a lock first.
#[test]
fn the_proxy_rejects_a_drop_database_by_a_non_owner() {
    for (sql, database) in [("DROP DATABASE other", "other"), ("DROP DATABASE postgres", "postgres"), (RENAME, "other")]
    {
        let mut session = session("");
        sends(&mut session, &query(sql));
        let task = replies(&mut session, &roles("none", "postgres"));
        assert_eq!(to_check(task), (names(&[database]), current()), "{sql}");
        assert!(checked(&mut session, &[database]).is_none());
        assert!(session.server.output.is_empty(), "{sql}");
        let received = text(&session.client.output);
        assert!(
            received.contains("C42501\0Mmust be owner of database ") && received.contains("SERROR"),
            "{sql}: {received}"
        );
    }
}

#[test]
fn every_statement_of_a_string_is_checked() {
    for (before, asks, role) in [
        ("SELECT 1; ", true, current()),
        ("BEGIN; ", true, current()),
        ("SET ROLE other; ", false, any()),
        ("SELECT set_config('role', 'other', false); ", false, any()),
        ("BEGIN; COMMIT; ", false, any()),
    ] {
        let mut session = session("");
        let mut task = sends(&mut session, &query(&format!("{before}{RENAME}; DROP DATABASE third")));
        assert_eq!(task.is_none(), asks, "{before}");
        if asks {
            task = replies(&mut session, &roles("none", "postgres"));
        }
        assert_eq!(to_check(task), (names(&["other", "third"]), role), "{before}");
        session.client.output.clear();
        assert!(checked(&mut session, &["third"]).is_none());
        let sent = text(&session.server.output);
        assert!(sent.contains(&format!("{before}{RENAME}; ")) && !sent.contains("third"), "{sent}");
    }
}

#[test]
fn statements_before_a_rejected_one_are_judged() {
    let mut session = session("47");
    sends(&mut session, &query(&format!("DELETE FROM jobs; {RENAME}")));
    replies(&mut session, &roles("none", "postgres"));
    assert!(matches!(checked(&mut session, &["other"]), Some(Task::Admit(_))));
}

#[test]
fn a_permitted_string_is_forwarded_unchanged() {
    let mut session = session("");
    let string = query(&format!("SELECT 1; {RENAME}"));
    sends(&mut session, &string);
    replies(&mut session, &roles("none", "postgres"));
    assert!(checked(&mut session, &[]).is_none(), "the server rejects it, so control connections stay open");
    assert_eq!(session.server.output, string);
}

#[test]
fn a_statement_in_a_transaction_is_checked() {
    let mut session = begun();
    session.server.output.clear();
    sends(&mut session, &query(RENAME));
    let reports =
        [&roles("none", "postgres")[..roles("none", "postgres").len() - ready().len()], &at_rest(Status::Transaction)]
            .concat();
    let task = replies(&mut session, &reports);
    assert_eq!(to_check(task), (names(&["other"]), current()));
    assert!(checked(&mut session, &["other"]).is_none());
    let sent = text(&session.server.output);
    assert!(sent.contains("fencegate_42501") && !sent.contains(RENAME), "the transaction fails: {sent}");
    // Statements in a transaction close no control connection: the server drops no database there.
    let mut session = begun();
    sends(&mut session, &query("DROP DATABASE other"));
    replies(&mut session, &reports);
    assert!(checked(&mut session, &[]).is_none());
    assert_eq!(session.server.output, query("DROP DATABASE other"));
    // In a failed transaction the server accepts only its end.
    let mut session = begun();
    sends(&mut session, &query("SELECT 1"));
    replies(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    session.server.output.clear();
    assert!(sends(&mut session, &query(RENAME)).is_none());
    assert_eq!(session.server.output, query(RENAME));
    replies(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    let task = sends(&mut session, &query(&format!("ROLLBACK; {RENAME}")));
    assert_eq!(to_check(task), (names(&["other"]), any()));
}

#[test]
fn a_statement_in_a_pipeline_is_checked() {
    let mut session = session("");
    let first = [parse("", "SELECT 1"), bind("", ""), execute("")].concat();
    let second = [parse("", RENAME), bind("", ""), execute("")].concat();
    assert!(sends(&mut session, &[first, second, sync().to_vec()].concat()).is_none());
    let bound = || [parsed(), is_bound()].concat();
    let task = replies(&mut session, &[bound(), completes("SELECT 1").to_vec(), bound()].concat());
    assert_eq!(to_check(task), (names(&["other"]), any()));
    assert!(checked(&mut session, &["other"]).is_none());
    let sent = text(&session.server.output);
    assert!(sent.contains("fencegate_42501"), "{sent}");
}

#[test]
fn an_exempt_role_is_also_checked() {
    let exempt = format!("{POLICIES}exempt_roles: [postgres]\n");
    let mut session = session_under(&exempt, "", Path::new(Some("public"), false));
    sends(&mut session, &query(&format!("DELETE FROM jobs; {RENAME}")));
    replies(&mut session, &roles("none", "postgres"));
    assert!(checked(&mut session, &["other"]).is_none());
    let sent = text(&session.server.output);
    assert!(sent.contains("DELETE FROM jobs; ") && !sent.contains(RENAME), "{sent}");
}
