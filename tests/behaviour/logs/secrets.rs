//! No log contains values in statements, parameters or passwords.

use crate::logs::line::{POLICIES, SCHEMA};
use crate::support::fenced::{code, code_in, init, ok};
use crate::support::wire::{Wire, message};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions};

/// No log line may contain this.
const CANARY: &str = "c4n4ry";

#[test]
fn values_are_in_no_line_at_any_level() {
    let postgres = Postgres::start(Options::default().hba("host all app all scram-sha-256"));
    postgres.sql(&format!("{SCHEMA}; CREATE ROLE app LOGIN PASSWORD '{CANARY}'; GRANT ALL ON jobs, watched TO app"));
    init(&postgres, "postgres");
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--log-format", "json"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    wire.start(&[("user", "app"), ("database", "postgres")], CANARY);
    let mut wrong = Wire::connect(&proxy.address()).unwrap();
    wrong.start(&[("user", "app"), ("database", "postgres")], &format!("wrong {CANARY}"));
    let write = format!("INSERT INTO jobs VALUES (1, '{CANARY}')");
    assert_eq!(code(&mut wire, &write), "LF002");
    assert_eq!(code(&mut wire, &format!("SET lease.fence = '{CANARY}'")), "LF003");
    assert_eq!(code(&mut wire, &format!("SELECT set_config('lease.fence', '{CANARY}', false)")), "LF003");
    assert_eq!(code(&mut wire, &format!("DO $$BEGIN PERFORM '{CANARY}'; END$$")), "LF004");
    assert_eq!(code(&mut wire, &format!("SELEC '{CANARY}'")), "42601");
    assert_eq!(code(&mut wire, &format!("SELECT '{CANARY}'::int")), "22P02");
    let bound = [message::unnamed("INSERT INTO jobs VALUES (1, $1)", &[Some(CANARY.as_bytes())]), message::sync()];
    assert_eq!(code_in(&wire.exchange(&bound.concat())), "LF002");
    ok(&mut wire, &format!("INSERT INTO watched SELECT length('{CANARY}')"));
    ok(&mut wire, "SET lease.fence = 5");
    ok(&mut wire, &write);
    assert_eq!(code(&mut wire, &write), "23505");
    // Log lines about terminated processes, and about processes that cannot be terminated, name no statements.
    ok(&mut wire, &format!("BEGIN; UPDATE jobs SET note = '{CANARY}'"));
    let mut next = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut next, "SET lease.fence = 6");
    ok(&mut next, "INSERT INTO jobs VALUES (2)");
    assert_eq!(code(&mut wire, &write), "LF001");
    proxy.wait_for_log("session_cut_off", DEADLINE);
    let log = proxy.log();
    assert!(log.contains("write_rejected") && log.contains("write_would_be_rejected"), "{log}");
    let told: Vec<&str> = log.lines().filter(|line| line.contains(CANARY)).collect();
    assert_eq!(told, Vec::<&str>::new());
}

#[test]
fn a_blocked_takeover_names_the_blocking_process() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--log-format", "json"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let mut old = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut old, "SET lease.fence = 5");
    ok(&mut old, "INSERT INTO jobs VALUES (1)");
    // A process that ignores signals: it is stopped, like one that hangs in the kernel.
    old.send(&message::query(&format!("UPDATE jobs SET note = pg_sleep(60)::text || '{CANARY}'")));
    let running = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let pid = crate::support::wait::wait_for("it runs", DEADLINE, || postgres.sql(running).pop()?.pop()?);
    crate::support::programs::run(std::process::Command::new("sh").args(["-c", &format!("kill -STOP {pid}")]));
    let mut next = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut next, "SET lease.fence = 6");
    let frames = next.query("INSERT INTO jobs VALUES (2)");
    crate::support::programs::run(std::process::Command::new("sh").args(["-c", &format!("kill -CONT {pid}")]));
    let error = crate::support::wire::error_in(&frames).expect("LF006");
    assert!(error.code() == "LF006" && error.message().contains(CANARY), "the client sees the statement: {error:?}");
    let log = proxy.log();
    assert!(log.contains(&format!("process {pid} ")) && !log.contains(CANARY), "{log}");
}

/// A core file would contain the passwords of control connections.
#[test]
fn a_crash_leaves_no_core_file() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(line.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{line}");
}
