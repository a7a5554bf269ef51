//! After outages, the proxy's state is lost or unreadable, but no lower token is admitted.

use super::{APPLICATION_ROLE, CONTROL_ROLE, with_ordinary_roles};
use crate::support::ticks::{self, WRITE, ok, refused, session_of};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Postgres, Wire, wait_until};

/// Admitted sessions continue. Sessions that have yet to be admitted receive an error that advises a retry, until there
/// is a control connection.
#[test]
fn control_connections_that_are_killed_and_cannot_come_back() {
    let (postgres, proxy) = with_ordinary_roles();
    let session = |token| session_of(&proxy.address(), APPLICATION_ROLE, token);
    let (mut admitted, mut late, mut stale) = (session(2), session(2), session(1));
    ok(&mut admitted, WRITE);
    refused(&mut stale, WRITE, "LF001");
    postgres.sql(&format!("ALTER ROLE {CONTROL_ROLE} NOLOGIN"));
    kill_control_connections(&postgres);
    refused(&mut late, WRITE, "LF006");
    wait_until("memory alone refuses no session", DEADLINE, || {
        error_in(&stale.query(WRITE)).expect("it is refused").code() == "LF006"
    });
    ok(&mut admitted, WRITE);
    postgres.sql(&format!("ALTER ROLE {CONTROL_ROLE} LOGIN"));
    wait_until_served(&mut late);
    refused(&mut stale, WRITE, "LF001");
    // Each control connection is retried at its own time.
    wait_until_served(&mut session(3));
    refused(&mut late, WRITE, "LF001");
}

#[test]
fn control_connections_that_are_killed() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut admitted = ticks::session(&proxy.address(), 2);
    ok(&mut admitted, WRITE);
    kill_control_connections(&postgres);
    ok(&mut admitted, WRITE);
    wait_until_served(&mut ticks::session(&proxy.address(), 2));
    refused(&mut ticks::session(&proxy.address(), 1), WRITE, "LF001");
}

#[test]
fn a_crash_of_the_server() {
    let mut postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    ok(&mut ticks::session(&proxy.address(), 2), WRITE);
    postgres.crash_restart();
    assert_eq!(postgres.value("SELECT token FROM fencegate_state.epoch"), "2");
    assert_eq!(postgres.value("SELECT count(*) FROM fencegate_state.admission"), "0");
    wait_until_served(&mut ticks::session(&proxy.address(), 2));
    refused(&mut ticks::session(&proxy.address(), 1), WRITE, "LF001");
}

#[test]
fn a_proxy_that_is_killed_and_started_again() {
    let postgres = ticks::server();
    let mut proxy = ticks::proxy(&postgres);
    ok(&mut ticks::session(&proxy.address(), 2), WRITE);
    proxy.kill9();
    let again = ticks::proxy(&postgres);
    let error = refused(&mut ticks::session(&again.address(), 1), WRITE, "LF001");
    assert_eq!(error.detail(), "resource=scheduler presented=1 highest=2");
    ok(&mut ticks::session(&again.address(), 2), WRITE);
}

/// Any role may send a notification. A notification only makes the proxy read its state again.
#[test]
fn forged_notifications() {
    let (postgres, proxy) = with_ordinary_roles();
    let session = |token| session_of(&proxy.address(), APPLICATION_ROLE, token);
    let mut leader = session(1);
    ok(&mut leader, WRITE);
    let mut anybody = Wire::login(&postgres.address(), APPLICATION_ROLE, "postgres");
    for payload in ["scheduler", "scheduler=99", "scheduler 1 99", "{\"resource\": \"scheduler\", \"token\": 99}", ""] {
        ok(&mut anybody, &format!("NOTIFY fencegate, '{payload}'"));
    }
    ok(&mut leader, WRITE);
    ok(&mut session(1), WRITE);
    // The same connection has then received all earlier notifications.
    ok(&mut session(2), WRITE);
    ok(&mut session(2), WRITE);
    assert_eq!(postgres.value("SELECT token FROM fencegate_state.epoch"), "2");
}

/// Returns when the control connections have ended. New ones may have been opened.
fn kill_control_connections(postgres: &Postgres) {
    let kill =
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencegate control'";
    let killed: Vec<String> = postgres.sql(kill).into_iter().filter_map(|row| row[0].clone()).collect();
    assert!(!killed.is_empty());
    let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid IN ({})", killed.join(", "));
    wait_until("the control connections have ended", DEADLINE, || postgres.value(&left) == "0");
}

/// LF006 advises a retry. No other error is allowed until the write succeeds.
#[track_caller]
fn wait_until_served(session: &mut Wire) {
    wait_until("the session is served", DEADLINE, || match error_in(&session.query(WRITE)) {
        None => true,
        Some(error) => {
            assert_eq!((error.severity(), error.code()), ("ERROR", "LF006"), "{error:?}");
            false
        }
    });
}
