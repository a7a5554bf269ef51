//! Patroni decides which server is the primary. fencegate has only a list of hosts, and follows without a notification.

mod cluster;

use super::world::{POLICIES, SCHEMA, Writers};
use super::{assert_only_expected, judge_rows};
use crate::support::fenced::{code, ok};
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use cluster::{Patroni, TTL};
use std::time::{Duration, Instant};

/// Longer than Patroni needs to replace a dead leader on a busy machine.
const FAILOVER: Duration = Duration::from_secs(3 * TTL as u64);

struct World {
    // Before the servers: fields are dropped in this order.
    writers: Writers,
    proxies: Vec<Proxy>,
    patroni: Patroni,
    _unused: Postgres,
}

impl World {
    fn start() -> Self {
        let patroni = Patroni::start();
        let control = format!("postgres://postgres@{}/postgres?target_session_attrs=primary", patroni.hosts());
        run(fencegate().args(["init", "--control", &control]));
        patroni.sql(0, SCHEMA);
        let options = ProxyOptions::default()
            .policies(POLICIES)
            .upstream(&format!("postgres://{}?target_session_attrs=primary", patroni.hosts()))
            .control(&control)
            .arguments(&["--connect-wait", "10s"]);
        // Only required by the test support: the proxy uses the addresses of Patroni's servers.
        let unused = Postgres::start(Options::default());
        let proxies: Vec<_> = (0..2).map(|_| Proxy::start_with(&unused, &options)).collect();
        let writers = Writers::new();
        writers.start(&proxies);
        Self { writers, proxies, patroni, _unused: unused }
    }

    /// Waits until all writers commit on the node. Prints the gap before the first commit there after `since`.
    fn wait_for_writes(&self, what: &str, node: usize, since: Instant) {
        let port = self.patroni.port(node);
        let mut first = None;
        wait_until(format!("a commit on node {node}: {}", self.patroni.log(node)), FAILOVER, || {
            let committed = self.writers.committed();
            let here = committed.iter().filter(|row| row.server == port && row.at > since);
            first = here.map(|row| row.at).min();
            first.is_some()
        });
        let first = first.expect("a commit");
        let before = self.writers.committed().into_iter().map(|row| row.at).filter(|at| *at < first).max();
        println!("{what}: no write for {} ms", first.duration_since(before.expect("a commit")).as_millis());
        self.writers.wait_for_all(port, 20);
    }

    /// Waits until each proxy's `SHOW SERVERS` has these roles.
    fn wait_for_servers(&self, roles: [&str; 2]) {
        for proxy in &self.proxies {
            let mut seen = Vec::new();
            wait_until(format!("the servers are {roles:?}"), FAILOVER, || {
                let mut console = Wire::login(&proxy.socket(), "postgres", "fencegate");
                seen = ok(&mut console, "SHOW SERVERS").into_iter().map(|row| row[2].clone().unwrap()).collect();
                seen == roles
            });
        }
    }

    /// A leader with the oldest token must not write, regardless of the server that it reaches.
    fn assert_stale(&self) {
        for proxy in &self.proxies {
            let mut wire = Wire::connect(&proxy.address()).unwrap();
            let frames = wire.start(&[("user", "postgres"), ("database", "postgres")], "");
            assert!(error_in(&frames).is_none(), "{:?}", error_in(&frames));
            ok(&mut wire, "SET lease.fence = 1");
            assert_eq!(code(&mut wire, "INSERT INTO entries (writer, token, number) VALUES (0, 1, 0)"), "LF001");
        }
    }

    fn judge(&self, node: usize) {
        judge_rows(&self.writers.committed(), |query| self.patroni.sql(node, query));
        assert_only_expected(&self.writers.errors());
    }
}

#[test]
fn writes_follow_a_switchover_a_pause_and_a_failover() {
    let mut world = World::start();
    world.writers.wait_for_all(world.patroni.port(0), 20);
    world.wait_for_servers(["primary", "standby"]);

    let start = Instant::now();
    world.patroni.switch_over(0, 1);
    world.wait_for_writes("switchover", 1, start);
    world.wait_for_servers(["standby", "primary"]);
    world.assert_stale();

    // While Patroni is paused, it replaces no primary. Nothing may be written until an operator switches over.
    wait_until("the standby is synchronous", DEADLINE, || world.patroni.is_synchronous(0));
    world.patroni.set_pause(0, true);
    let start = Instant::now();
    world.patroni.kill_server(1);
    world.wait_for_servers(["standby", "unknown"]);
    assert_eq!(world.patroni.role(0), "replica");
    world.patroni.set_pause(0, false);
    world.wait_for_writes("server killed in a pause, which then ends", 0, start);
    world.wait_for_servers(["primary", "standby"]);
    world.assert_stale();

    wait_until("the standby is synchronous", DEADLINE, || world.patroni.is_synchronous(1));
    let start = Instant::now();
    world.patroni.kill_node(0);
    world.wait_for_writes("primary killed with its Patroni", 1, start);
    world.wait_for_servers(["unknown", "primary"]);
    world.assert_stale();
    world.patroni.start_again(0);
    world.wait_for_servers(["standby", "primary"]);
    world.assert_stale();
    world.judge(1);
    println!("errors: {:?}", world.writers.errors());
}
