//! KILL, PAUSE and RESUME.

use super::world::{World, console};
use crate::support::fenced::{code, ok};
use crate::support::message::{self, query};
use crate::support::ticks::{self, WRITE};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Wire, wait_until};

const ROWS: &str = "SELECT count(*) FROM ticks";

/// The value of the SHOW command in this column, for the client or database with this name.
fn shown(console: &mut Wire, command: &str, name: &str, column: usize) -> Option<String> {
    let rows = console.rows(command).unwrap();
    rows.into_iter().find(|row| row.iter().flatten().any(|value| value == name))?.swap_remove(column)
}

fn client(world: &World, name: &str) -> Wire {
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let parameters =
        [("user", "postgres"), ("database", "postgres"), ("application_name", name), ("options", "-c lease.fence=47")];
    assert_eq!(error_in(&wire.start(&parameters, "")), None);
    wire
}

fn number(console: &mut Wire, name: &str) -> String {
    shown(console, "SHOW CLIENTS", name, 9).unwrap()
}

#[test]
fn a_killed_session_receives_an_error_and_is_rolled_back() {
    let world = World::start();
    let mut console = world.console();
    let (mut open, mut busy, mut other) = (client(&world, "open"), client(&world, "busy"), client(&world, "other"));
    ok(&mut open, "BEGIN");
    ok(&mut open, WRITE);
    busy.send(&query("SELECT pg_sleep(600)"));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("it sleeps", DEADLINE, || world.postgres.value(sleeping) == "1");
    for name in ["open", "busy"] {
        let kill = format!("KILL {}", number(&mut console, name));
        assert_eq!(error_in(&console.query(&kill)), None);
    }
    for wire in [&mut open, &mut busy] {
        let last = error_in(&wire.read_to_end()).unwrap();
        assert_eq!((last.severity(), last.code()), ("FATAL", "57P01"));
        assert!(last.hint().contains("KILL"), "{last:?}");
    }
    wait_until("the server has ended its statement", DEADLINE, || world.postgres.value(sleeping) == "0");
    assert_eq!(world.postgres.value(ROWS), "0", "rolled back");
    ok(&mut other, WRITE);
    assert_eq!(code(&mut console, "KILL 999999"), "42704");
}

#[test]
fn a_pause_holds_sessions_between_transactions_until_resume() {
    let world = World::start();
    let mut operator = world.console();
    let (mut open, mut idle) = (client(&world, "open"), client(&world, "idle"));
    ok(&mut idle, WRITE);
    ok(&mut open, "BEGIN");
    ok(&mut open, WRITE);
    operator.send(&query("PAUSE postgres"));
    let mut console = console(&world.proxy);
    let paused = |console: &mut Wire| shown(console, "SHOW DATABASES", "postgres", 4).as_deref() == Some("t");
    wait_until("it is paused", DEADLINE, || paused(&mut console));
    wait_until("the idle session is held", DEADLINE, || {
        shown(&mut console, "SHOW CLIENTS", "idle", 3).as_deref() == Some("paused")
    });
    idle.send(&query(WRITE));
    // An open transaction continues, and PAUSE waits for its end.
    ok(&mut open, WRITE);
    ok(&mut open, "COMMIT");
    assert_eq!(error_in(&operator.read_until_ready()), None);
    open.send(&query(WRITE));
    let mut late = Wire::connect(&world.proxy.address()).unwrap();
    late.send(&message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("database", "postgres")]));
    assert_eq!(world.postgres.value(ROWS), "3", "nothing runs");

    // A newer token at another proxy is not blocked: held sessions have no transaction.
    let second = ticks::proxy(&world.postgres);
    ok(&mut ticks::session(&second.address(), 48), WRITE);

    assert_eq!(error_in(&console.query("RESUME postgres")), None);
    for wire in [&mut idle, &mut open] {
        assert_eq!(error_in(&wire.read_until_ready()).unwrap().code(), "LF001", "overtaken while it was held");
    }
    assert_eq!(error_in(&late.authenticate("postgres", "")), None);
    assert_eq!(code(&mut console, "RESUME postgres"), "55000");
    assert_eq!(code(&mut console, "PAUSE nowhere"), "3D000");
}

/// The client's connection and its slot at the proxy do not wait for a transaction that may last hours.
#[test]
fn a_pause_ends_when_its_client_disconnects_and_the_database_stays_paused() {
    let world = World::start();
    let mut open = client(&world, "open");
    ok(&mut open, "BEGIN");
    let mut operator = world.console();
    operator.send(&query("PAUSE postgres"));
    let mut console = world.console();
    let paused = |console: &mut Wire| shown(console, "SHOW DATABASES", "postgres", 4).as_deref() == Some("t");
    wait_until("it is paused", DEADLINE, || paused(&mut console));
    drop(operator);
    world.proxy.wait_for_log("console_ended", DEADLINE);
    ok(&mut open, "SELECT 1");
    assert!(paused(&mut console));
    assert_eq!(error_in(&console.query("RESUME postgres")), None);
    ok(&mut open, "COMMIT");
}

#[test]
fn a_pause_ends_with_a_resume_from_elsewhere() {
    let world = World::start();
    let mut open = client(&world, "open");
    ok(&mut open, "BEGIN");
    let (mut operator, mut console) = (world.console(), world.console());
    operator.send(&query("PAUSE postgres"));
    wait_until("it is paused", DEADLINE, || error_in(&console.query("RESUME postgres")).is_none());
    assert_eq!(error_in(&operator.read_until_ready()).unwrap().code(), "55000");
    ok(&mut open, "COMMIT");
}
