//! Many similar log lines are limited and counted.

use crate::logs::line::{POLICIES, SCHEMA, assert_fields, events, start};
use crate::support::fenced::{code, ok};
use crate::support::wire::{Wire, error_in};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, message, wait_until};

/// Number of lines of an event, and the reported number of suppressed ones.
fn counted(log: &str, event: &str, kind: &str) -> (usize, usize) {
    let left_out = events(log, "lines_left_out");
    let left_out = left_out.iter().filter(|line| line["kind"] == kind);
    (events(log, event).len(), left_out.map(|line| line["left_out"].parse::<usize>().unwrap()).sum())
}

#[test]
fn many_rejections_are_logged_in_part_and_counted() {
    const STORM: usize = 500;
    let fenced = start(SCHEMA, POLICIES, &[]);
    ok(&mut fenced.holder(47), "INSERT INTO jobs VALUES (1)");
    let mut stale = fenced.holder(46);
    for _ in 0..STORM {
        assert_eq!(code(&mut stale, "INSERT INTO jobs VALUES (2)"), "LF001");
    }
    // Each verdict is limited separately.
    assert_eq!(code(&mut fenced.login(), "DELETE FROM jobs"), "LF002");
    let count = || counted(&fenced.proxy.log(), "stale_write_blocked", "stale");
    wait_until("all are accounted for without later lines", DEADLINE, || count().0 + count().1 == STORM);
    assert!(count().0 < STORM / 4, "{:?}", count());
    assert_eq!(counted(&fenced.proxy.log(), "write_rejected", "missing"), (1, 0));
    assert_fields(&events(&fenced.proxy.log(), "lines_left_out")[0], &[("resource", "jobs"), ("kind", "stale")]);
}

#[test]
fn the_count_is_logged_at_shutdown() {
    const STORM: usize = 60;
    let mut fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = fenced.login();
    for _ in 0..STORM {
        assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (2)"), "LF002");
    }
    assert_eq!(fenced.proxy.terminate(), 0);
    let (logged, left_out) = counted(&fenced.proxy.log(), "write_rejected", "missing");
    assert_eq!(logged + left_out, STORM, "{logged} and {left_out}");
    assert!(left_out > 0);
}

#[test]
fn many_connections_are_logged_in_part_and_counted() {
    const STORM: usize = 100;
    let fenced = start(SCHEMA, POLICIES, &[]);
    for _ in 0..STORM {
        let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
        wire.start(&[("user", "postgres"), ("database", "nowhere")], "");
    }
    let count = || counted(&fenced.proxy.log(), "session_refused", "session_refused");
    // Includes connections that only checked whether the proxy listens.
    wait_until("all are accounted for", DEADLINE, || count().0 + count().1 >= STORM);
    assert!(count().1 > 0, "{:?}", count());
}

/// The sessions stay open, and the control connection repeatedly finds no schema.
#[test]
fn a_database_without_fences_is_logged_once() {
    let options = Options::default().setting("log_connections", "on");
    let postgres = Postgres::start(options);
    postgres.sql("CREATE DATABASE plain");
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--log-format", "json"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let mut wire = Wire::login(&proxy.address(), "postgres", "plain");
    let connections = || postgres.log().matches("connection authorized: user=postgres database=plain").count();
    let before = connections();
    wait_until("the control connection was reopened three times", DEADLINE, || connections() >= before + 3);
    ok(&mut wire, "SELECT 1");
    let log = proxy.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("plain") && !line.contains("session_")).collect();
    assert!(told.len() == 1 && told[0].contains("nothing_fenced") && told[0].contains("INFO"), "{told:?}");
}

/// One line for the error and one for the statement: the minimum that a role without superuser privileges can cause.
#[test]
fn a_rejection_in_a_transaction_leaves_two_lines_in_the_servers_log() {
    const STORM: usize = 20;
    let fenced = start(&format!("{SCHEMA}; CREATE ROLE app LOGIN; GRANT ALL ON jobs TO app"), POLICIES, &[]);
    let mut leader = fenced.login_as("app");
    ok(&mut leader, "SET lease.fence = 47");
    ok(&mut leader, "INSERT INTO jobs VALUES (1)");
    let mut stale = fenced.login_as("app");
    ok(&mut stale, "SET lease.fence = 46");
    let before = fenced.postgres.log().len();
    for round in 0..STORM {
        ok(&mut stale, "BEGIN");
        let frames = match round % 2 {
            0 => stale.query("INSERT INTO jobs VALUES (2)"),
            _ => stale.exchange(
                &[
                    message::parse("", "INSERT INTO jobs VALUES (2)", &[]),
                    message::bind_text("", "", &[]),
                    message::execute("", 0),
                    message::sync(),
                ]
                .concat(),
            ),
        };
        let error = error_in(&frames).expect("an error");
        assert_eq!((error.code(), error.get('D')), ("LF001", "resource=jobs presented=46 highest=47"));
        assert!(error.get('M').contains("is stale") && error.get('W').is_empty());
        assert_eq!(code(&mut stale, "SELECT 1"), "25P02");
        ok(&mut stale, "ROLLBACK");
    }
    let of_rejections = |log: &str| {
        let lines =
            log[before..].lines().filter(|line| !line.is_empty() && !line.contains("current transaction is aborted"));
        lines.filter(|line| !line.ends_with("STATEMENT:  SELECT 1")).map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until("all are logged", DEADLINE, || of_rejections(&fenced.postgres.log()).len() >= 2 * STORM);
    let lines = of_rejections(&fenced.postgres.log());
    assert_eq!(lines.len(), 2 * STORM, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("fencegate_lf001")), "{lines:?}");
}
