//! Threads of a proxy: those that relay sessions, and those that run shared work.

use crate::support::fenced::{Fenced, ok, value};
use crate::support::{DEADLINE, Options, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int)";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const READINGS: u64 = 5;

/// Makes the proxy read the catalog, and returns when the server has answered.
fn read_catalog(direct: &mut Wire) {
    let now = value(direct, "SELECT clock_timestamp()").unwrap();
    ok(direct, "NOTIFY fencegate, '{catalogue}'");
    let answered = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencegate control' \
         AND query LIKE '%EXECUTE ways%' AND query_start > '{now}' AND state = 'idle'"
    );
    wait_until("the proxy reads the catalog", DEADLINE, || value(direct, &answered).as_deref() != Some("0"));
}

/// Admitting this session opens the control connections.
#[test]
fn no_relay_thread_drives_a_control_connection() {
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--workers", "1"]);
    let fenced = Fenced::start_with(Options::default(), SCHEMA, &options);
    let mut direct = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    let mut holder = fenced.holder(5);
    ok(&mut holder, "INSERT INTO jobs VALUES (1)");
    read_catalog(&mut direct);
    let waits = || ["relay", "shared"].map(|name| fenced.proxy.waits_of_threads(name));
    let before = waits();
    (0..READINGS).for_each(|_| read_catalog(&mut direct));
    let [relay, shared] = [0, 1].map(|group| waits()[group] - before[group]);
    // The session is idle, but its thread may not have been waiting yet at the first count.
    assert!(relay < READINGS && shared >= READINGS, "{relay} waits of the relay thread, {shared} of the others");
    ok(&mut holder, "INSERT INTO jobs VALUES (2)");
}
