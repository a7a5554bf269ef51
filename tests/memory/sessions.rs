//! An idle session holds little, and what many have needed is used again by those that come after them.

use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Proxy, ProxyOptions, Target, Via, Wire, length, wait_until};

crate::routes!(proxy only: idle_sessions_are_small, sessions_leave_nothing_that_grows);

/// What an idle session may hold, in KiB. Some 8 are needed; a second place for its driver would take 3 more, a second one
/// for all of its task as much again.
const ALLOWED: u64 = 16;
/// The same load may need so much more when it comes again, in percent.
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
            // More than a buffer holds, for each.
            idle.iter_mut().for_each(|wire| assert_eq!(error_in(&wire.query("SELECT repeat('x', 300000)")), None));
            drop(idle);
            wait_until_alone(target);
        };
        work();
        let first = proxy.peak_memory();
        (0..2).for_each(|_| work());
        let (left, peak) = (proxy.memory(), proxy.peak_memory());
        println!("the first time at most {first} KiB; then at most {peak}, and {left} at the end");
        assert!(peak <= first * (100 + MORE) / 100, "{peak} KiB, where {first} were enough before");
    });
}

/// With a proxy that has had sessions: what is there once for all of them is not counted.
fn with_sessions(via: Via, work: impl Fn(&Target, &Proxy, u64)) {
    let sessions = length(100, 1000);
    let options = Options::default().setting("max_connections", &(sessions + 20).to_string());
    let policies = "version: 1\nresources:\n  - {name: free, tables: [public.free]}\n";
    let target = via.start_with(options, &ProxyOptions::default().policies(policies));
    drop(open(&target, 20));
    wait_until_alone(&target);
    work(&target, target.proxy.as_ref().unwrap(), sessions);
}

/// So many sessions, each of which has worked a little.
fn open(target: &Target, sessions: u64) -> Vec<Wire> {
    let one = || {
        let mut wire = target.login();
        assert_eq!(error_in(&wire.query("SELECT 1")), None);
        wire
    };
    (0..sessions).map(|_| one()).collect()
}

/// Returns when none of them has a session any more.
fn wait_until_alone(target: &Target) {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' OR query LIKE 'SELECT repeat(%'";
    wait_until("the sessions have ended", DEADLINE, || target.postgres.value(query) == "0");
}
