//! Sessions of a proxy whose sockets a successor has taken over.

use super::Site;
use crate::support::fenced::{code, ok, value};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Wire, message, wait_until};

#[test]
fn a_newer_token_cuts_off_a_session_of_the_predecessor() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let (mut stale, mut idle) = (site.login(), site.login());
    ok(&mut idle, "SET lease.fence = 1; INSERT INTO t DEFAULT VALUES");
    ok(&mut stale, "SET lease.fence = 1; BEGIN; INSERT INTO t DEFAULT VALUES");
    let _new = site.upgrade(&mut old, &[]);
    let mut leader = site.login();
    ok(&mut leader, "SET lease.fence = 2; INSERT INTO t DEFAULT VALUES");
    assert_eq!(code(&mut stale, "COMMIT"), "LF001");
    assert_eq!(code(&mut idle, "INSERT INTO t DEFAULT VALUES"), "LF001");
    assert_eq!(site.postgres.value("SELECT string_agg(token::text, ',' ORDER BY id) FROM t"), "1,2");
    // A new token through the predecessor.
    ok(&mut idle, "SET lease.fence = 3; INSERT INTO t DEFAULT VALUES");
    assert_eq!(code(&mut leader, "INSERT INTO t DEFAULT VALUES"), "LF001");
    drop((stale, idle));
    assert_eq!(old.program.wait(), 0, "{}", old.log());
}

#[test]
fn cancel_requests_reach_every_predecessor() {
    let site = Site::new();
    let mut first = site.first(&[]);
    let mut running = Wire::connect(&site.address()).unwrap();
    let frames = running.start(&[("user", "postgres"), ("database", "postgres")], "");
    let key = frames.iter().find(|frame| frame.tag == b'K').expect("a key").body.clone();
    let mut second = site.upgrade(&mut first, &[]);
    // The second proxy ends before the first.
    let mut third = site.upgrade(&mut second, &[]);
    assert_eq!(second.program.wait(), 0, "{}", second.log());
    let _fourth = site.upgrade(&mut third, &[]);
    for _ in 0..2 {
        running.send(&message::query("SELECT pg_sleep(3600)"));
        wait_until("it runs", DEADLINE, || {
            site.postgres.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
        });
        Wire::connect(&site.address()).unwrap().send(&message::cancel_request(&key));
        assert_eq!(error_in(&running.read_until_ready()).unwrap().code(), "57014");
    }
    drop(running);
    assert_eq!(first.program.wait(), 0, "{}", first.log());
}

#[test]
fn a_client_that_has_not_logged_in_is_served() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let mut slow = Wire::connect(&site.address()).unwrap();
    slow.send(&message::ssl_request());
    assert_eq!(slow.byte(), Some(b'N'));
    let _new = site.upgrade(&mut old, &[]);
    slow.start(&[("user", "postgres"), ("database", "postgres")], "");
    assert_eq!(value(&mut slow, "SELECT 1").as_deref(), Some("1"));
    drop(slow);
    assert_eq!(old.program.wait(), 0, "{}", old.log());
}

#[test]
fn after_the_time_limit_idle_sessions_end_between_transactions() {
    let site = Site::new();
    let mut old = site.first(&["--drain-timeout", "0", "--shutdown-timeout", "1h"]);
    let (mut idle, mut busy) = (site.login(), site.login());
    ok(&mut busy, "BEGIN");
    let _new = site.upgrade(&mut old, &[]);
    assert_eq!(error_in(&idle.read_to_end()).unwrap().code(), "57P01");
    ok(&mut busy, "COMMIT");
    assert_eq!(error_in(&busy.read_to_end()).unwrap().code(), "57P01");
    assert_eq!(old.program.wait(), 0, "{}", old.log());
}

/// Otherwise the predecessor's sessions could not be admitted, because the successor's policies are in force.
#[test]
fn the_predecessor_loads_the_policies_of_its_successor() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let mut session = site.login();
    ok(&mut session, "SET lease.fence = 1; INSERT INTO t DEFAULT VALUES");
    let policies = "version: 1\nresources: [{name: r, tables: [public.t], on_missing: allow}]\n";
    std::fs::write(site.folder.join("policies/policies.yaml"), policies).unwrap();
    let _new = site.upgrade(&mut old, &[]);
    ok(&mut site.login(), "SET lease.fence = 2; INSERT INTO t DEFAULT VALUES");
    old.wait_for("policies_loaded");
    ok(&mut session, "SET lease.fence = 3; INSERT INTO t DEFAULT VALUES");
}
