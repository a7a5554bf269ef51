//! A server process whose identity or termination is uncertain is not admitted.

use super::{APPLICATION_ROLE, CONTROL_ROLE, with_ordinary_roles};
use crate::support::ticks::{self, POLICIES, WRITE, ok, refused, session_of};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, ProxyOptions, wait_until};

/// Not even if one server was copied from the other, so that both have the same system identifier.
#[test]
fn a_process_of_another_server_than_the_control_connections() {
    let (server, other) = (ticks::server(), ticks::server());
    let options = ProxyOptions::default().policies(POLICIES).control(&other.control_url());
    let proxy = Proxy::start_with(&server, &options);
    let error = refused(&mut ticks::session(&proxy.address(), 1), WRITE, "LF006");
    assert!(error.message().contains("cannot be fenced"), "{error:?}");
    for postgres in [&server, &other] {
        assert_eq!(postgres.value("SELECT count(*) FROM fencegate_state.epoch"), "0");
    }
    assert_eq!(server.value("SELECT count(*) FROM ticks"), "0");
}

#[test]
fn a_superusers_process_that_the_control_role_may_not_end() {
    let (postgres, proxy) = with_ordinary_roles();
    let error = refused(&mut session_of(&proxy.address(), "postgres", 1), WRITE, "LF006");
    assert!(error.message().contains("a superuser's session needs a superuser as control role"), "{error:?}");
    assert_eq!(postgres.value("SELECT count(*) FROM ticks"), "0");
    ok(&mut session_of(&proxy.address(), APPLICATION_ROLE, 1), WRITE);
}

/// Without pg_read_all_stats, the start of a process is null, and a live process would count as dead.
#[test]
fn a_control_role_that_does_not_see_when_processes_started() {
    let (postgres, proxy) = with_ordinary_roles();
    postgres.sql(&format!("REVOKE pg_read_all_stats FROM {CONTROL_ROLE}"));
    let mut session = session_of(&proxy.address(), APPLICATION_ROLE, 1);
    let error = refused(&mut session, WRITE, "LF006");
    assert!(error.message().contains("GRANT pg_read_all_stats"), "{error:?}");
    // Only the log names the control role.
    assert!(![error.message(), error.detail(), error.hint()].concat().contains(CONTROL_ROLE), "{error:?}");
    assert!(proxy.log().contains("GRANT pg_read_all_stats TO fencer"));
    // The error does not name the role either if the role cannot log in, although the server's message does.
    postgres.sql(&format!("GRANT pg_read_all_stats TO {CONTROL_ROLE}; ALTER ROLE {CONTROL_ROLE} NOLOGIN"));
    postgres.sql(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{CONTROL_ROLE}'"));
    let error = refused(&mut session, WRITE, "LF006");
    assert!(![error.message(), error.detail(), error.hint()].concat().contains(CONTROL_ROLE), "{error:?}");
    postgres.sql(&format!("ALTER ROLE {CONTROL_ROLE} LOGIN"));
    postgres.sql(&format!("GRANT pg_read_all_stats TO {CONTROL_ROLE}"));
    wait_until("the session is served", DEADLINE, || error_in(&session.query(WRITE)).is_none());
}

/// A promotion ends no session: a standby's process becomes a process of the primary.
#[test]
fn a_process_of_a_standby_that_was_promoted_since() {
    let mut postgres = ticks::server();
    postgres.restart_as_standby();
    let proxy = ticks::proxy(&postgres);
    let (mut tried, mut silent) = (ticks::session(&proxy.address(), 1), ticks::session(&proxy.address(), 1));
    refused(&mut tried, WRITE, "LF006");
    postgres.sql("SELECT pg_promote()");
    wait_until("it is served", DEADLINE, || error_in(&tried.query(WRITE)).is_none());
    ok(&mut silent, WRITE);
    // The session is admitted like any other, and a newer leader shuts it out.
    ok(&mut ticks::session(&proxy.address(), 2), WRITE);
    refused(&mut tried, WRITE, "LF001");
}
