//! Only admin roles can enter the console, which shows fences.

use super::world::World;
use crate::support::programs::{psql, run};
use crate::support::ticks::{WRITE, ok, session};
use crate::support::wait::wait_for;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, wait_until};

const CONSOLE: (&str, &str) = ("database", "fencegate");

#[test]
fn only_admin_roles_authenticated_by_the_server_enter_the_console() {
    let postgres = Postgres::start(
        Options::default()
            .hba("host all scram 127.0.0.1/32 scram-sha-256")
            .hba("host all outsider 127.0.0.1/32 scram-sha-256"),
    );
    postgres.sql("CREATE ROLE scram LOGIN PASSWORD 'right'; CREATE ROLE outsider LOGIN PASSWORD 'right'");
    let policies = "version: 1\nresources: []\n";
    let proxy = Proxy::start(&postgres, policies, &["--admin-roles", "scram,other"]);
    let open = |user: &str, password: &str| {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let frames = wire.start(&[("user", user), CONSOLE, ("application_name", "test")], password);
        (wire, frames)
    };
    let (mut wire, frames) = open("scram", "right");
    assert_eq!(error_in(&frames), None);
    assert!(frames.iter().any(|frame| frame.tag == b'S' && frame.body.starts_with(b"server_version\0")));
    assert_eq!(wire.rows("SHOW FENCES"), Ok(Vec::new()));
    let connected = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'scram'";
    wait_until("the server's session has ended", DEADLINE, || postgres.value(connected) == "0");

    for (user, password, code) in [
        ("scram", "wrong", "28P01"),
        ("outsider", "wrong", "28P01"),
        ("outsider", "right", "42501"),
        ("postgres", "", "42501"),
        ("nobody", "", "28000"),
    ] {
        let (_, frames) = open(user, password);
        let error = error_in(&frames).expect("a refusal");
        assert_eq!((error.severity(), error.code()), ("FATAL", code), "{user}");
        assert_eq!(error.code() == "42501", error.hint().contains("admin_roles"));
        assert!(frames.iter().all(|frame| frame.tag != b'Z'));
    }
}

/// Without the setting, only the role of the control connection is an admin.
#[test]
fn the_control_role_is_an_admin_by_default() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE somebody LOGIN");
    let proxy = Proxy::start(&postgres, "version: 1\nresources: []\n", &[]);
    let mut wire = Wire::login(&proxy.address(), "postgres", "fencegate");
    assert_eq!(wire.rows("SHOW FENCES"), Ok(Vec::new()));
    let frames = Wire::connect(&proxy.address()).unwrap().start(&[("user", "somebody"), CONSOLE], "");
    assert_eq!(error_in(&frames).unwrap().code(), "42501");
}

#[test]
fn fences_are_shown() {
    let world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    let _writer = {
        let mut writer = session(&proxy.address(), token);
        ok(&mut writer, WRITE);
        writer
    };
    let mut wire = Wire::login(&proxy.address(), "postgres", "fencegate");
    let state = |wire: &mut Wire| wire.rows("SHOW FENCES").unwrap()[0].last().cloned().flatten();
    wait_until("the leader is known", DEADLINE, || state(&mut wire).as_deref() == Some("leads"));
    proxy.wait_for_log("leader_observed", DEADLINE);
    let output = run(psql(&proxy.address(), "fencegate").args(["-AF ", "-c", "SHOW FENCES"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let columns = "database resource mode election generation token drained admissions leader leader_state";
    let shown = format!("postgres scheduler enforce /cron/scheduler/leader 1 {token} t 1 {token} leads");
    assert_eq!(text, format!("{columns}\n{shown}\n(1 row)\n"));

    world.depose("a");
    wait_until("no candidate leads", DEADLINE, || state(&mut wire).as_deref() == Some("nobody"));
    proxy.wait_for_log("leader_gone", DEADLINE);
    // Another database with such a table, without the schema `fencegate`.
    world.postgres.sql("CREATE DATABASE bare");
    world.postgres.sql_in("bare", "CREATE TABLE ticks (note text)");
    let _bare = Wire::login(&proxy.address(), "postgres", "bare");
    // The session does not wait for the query of the database.
    let frames = wait_for("a warning", DEADLINE, || {
        Some(wire.query("show fences")).filter(|frames| frames.iter().any(|frame| frame.tag == b'N'))
    });
    let warning = frames.iter().find(|frame| frame.tag == b'N').unwrap().fields();
    assert_eq!(warning.severity(), "WARNING");
    assert!(warning.message().contains("database \"bare\" cannot be queried") && warning.message().contains("init"));
    assert_eq!(frames.iter().filter(|frame| frame.tag == b'D').count(), 1);
}
