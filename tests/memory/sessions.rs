//! An idle session uses little memory, and memory that many sessions needed is reused by later ones.

use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Proxy, ProxyOptions, Target, Via, Wire, length, wait_until};

crate::routes!(proxy only: idle_sessions_are_small, sessions_leave_nothing_that_grows);

/// Maximum memory of an idle session, in KiB. About 8 are needed. A second copy of its driver would add 3, and a second
/// copy of its whole task would double it.
const ALLOWED: u64 = 16;
/// Maximum increase when the same load is repeated, in percent.
const MORE: u64 = 50;

fn idle_sessions_are_small(via: Via) {
    with_sessions(via, |target, proxy, sessions| {
        let before = proxy.memory();
        let idle = open(target, sessions);
        let each = (proxy.memory() - before) / sessions;
        println!("{each} KiB for each of {} idle sessions", idle.len());
        assert!(each <= ALLOWED, "{each} KiB for an idle session");
    });
}

fn sessions_leave_nothing_that_grows(via: Via) {
    with_sessions(via, |target, proxy, sessions| {
        let work = || {
            let mut idle = open(target, sessions);
            // Each row is larger than a buffer.
            idle.iter_mut().for_each(|wire| assert_eq!(error_in(&wire.query("SELECT repeat('x', 300000)")), None));
            drop(idle);
            wait_until_alone(target);
        };
        work();
        let first = proxy.peak_memory();
        (0..2).for_each(|_| work());
        let (left, peak) = (proxy.memory(), proxy.peak_memory());
        println!("the first time at most {first} KiB; then at most {peak}, and {left} at the end");
        assert!(peak <= first * (100 + MORE) / 100, "{peak} KiB, but the first load needed {first} KiB");
    });
}

/// Uses a proxy that has had sessions, so that memory allocated once for all of them does not count.
fn with_sessions(via: Via, work: impl Fn(&Target, &Proxy, u64)) {
    let sessions = length(100, 1000);
    let options = Options::default().setting("max_connections", &(sessions + 20).to_string());
    let policies = "version: 1\nresources:\n  - {name: free, tables: [public.free]}\n";
    let target = via.start_with(options, &ProxyOptions::default().policies(policies));
    drop(open(&target, 20));
    wait_until_alone(&target);
    work(&target, target.proxy.as_ref().unwrap(), sessions);
}

/// Opens that many sessions. Each session has run a few statements.
fn open(target: &Target, sessions: u64) -> Vec<Wire> {
    let one = || {
        let mut wire = target.login();
        assert_eq!(error_in(&wire.query("SELECT 1")), None);
        wire
    };
    (0..sessions).map(|_| one()).collect()
}

/// Returns when no client has a session any more.
fn wait_until_alone(target: &Target) {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' OR query LIKE 'SELECT repeat(%'";
    wait_until("the sessions have ended", DEADLINE, || target.postgres.value(query) == "0");
}
