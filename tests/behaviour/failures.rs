//! A cron of three nodes whose leader is cut off from etcd, with and without the fence.
//!
//! The nodes are those of `examples/distributed_cron`. Each reaches etcd through its own byte relay. A stopped relay
//! simulates a network that delivers nothing, while all database sessions stay open.

use crate::check::{Observed, Row};
use crate::support::etcd::Etcd;
use crate::support::example::example;
use crate::support::guardian::{Folder, Program};
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Stalls, fenced, wait_until};
use std::fs;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(5);
const POLICIES: &str = "version: 1
resources:
  - name: cron
    election: /cron/leader
    tables: [public.ticks]
";
const TABLE: &str = "CREATE TABLE ticks (id bigint GENERATED ALWAYS AS IDENTITY, tick timestamptz, node text, \
    token bigint DEFAULT fencegate.token('cron'))";

/// How a node reacts to the loss of leadership.
#[derive(Clone, Copy, PartialEq)]
enum Nodes {
    /// The nodes stop at the loss event.
    Attentive,
    /// The nodes never check.
    Oblivious,
}

/// Where the nodes write.
#[derive(Clone, Copy, PartialEq)]
enum Door {
    Postgres,
    Proxy,
}

struct Node {
    id: &'static str,
    relay: Program,
    // Before the folder: fields are dropped in this order.
    _node: Program,
    folder: Folder,
}

impl Node {
    fn said(&self) -> Vec<String> {
        // The process creates the file.
        fs::read_to_string(self.folder.join("said")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn says(&self, what: &str) -> bool {
        self.said().iter().any(|line| line.contains(what))
    }

    fn ticks(&self) -> usize {
        self.said().iter().filter(|line| line.contains(" tick ")).count()
    }
}

struct Cron {
    nodes: Vec<Node>,
    proxy: Proxy,
    postgres: Postgres,
    etcd: Etcd,
}

impl Cron {
    fn start(nodes: Nodes, door: Door) -> Self {
        let (etcd, postgres) = (Etcd::start(), Postgres::start(Options::default()));
        fenced::init(&postgres, "postgres");
        postgres.sql(TABLE);
        let proxy = Proxy::start(&postgres, POLICIES, &["--etcd", &etcd.url()]);
        let address = if door == Door::Proxy { proxy.address() } else { postgres.address() };
        let (host, port) = address.host_and_port();
        let database = format!("host={host} port={port} user=postgres dbname=postgres");
        let program = example("distributed_cron").display().to_string();
        let nodes = ["a", "b", "c"].map(|id| node(id, &program, &etcd, &database, nodes)).into();
        Cron { nodes, proxy, postgres, etcd }
    }

    /// Waits until a node other than these leads and has written two rows.
    fn leader(&self, other_than: &[usize], limit: Duration) -> usize {
        let working = |index: &usize| !other_than.contains(index) && self.nodes[*index].ticks() >= 2;
        wait_for("a leader works", limit, || (0..self.nodes.len()).find(working))
    }

    fn session_is_open(&self, index: usize) -> bool {
        let id = self.nodes[index].id;
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{id}'");
        self.postgres.value(&sessions) != "0"
    }

    fn observed(&self) -> Observed {
        let text = "SELECT extract(epoch FROM tick)::bigint::text, node, token::text FROM ticks ORDER BY id";
        let row = |row: &Vec<Option<String>>| {
            let column = |index: usize| row[index].clone().unwrap();
            Row { tick: column(0).parse().unwrap(), node: column(1), token: column(2).parse().unwrap() }
        };
        let said = || self.nodes.iter().flat_map(Node::said).collect::<Vec<String>>();
        // The output and the rows match if there was no output in between.
        wait_for("no node prints anything", DEADLINE, || {
            let (before, rows) = (said(), self.postgres.sql(text));
            (said() == before).then(|| Observed::new(rows.iter().map(row).collect(), &before))
        })
    }

    /// The number of leader elections within etcd itself.
    fn term(&self) -> String {
        let output = crate::support::programs::run(&mut self.etcd.etcdctl(&["endpoint", "status", "-w", "json"]));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split("\"raft_term\":").nth(1).unwrap().split(',').next().unwrap().to_owned()
    }
}

impl Drop for Cron {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.nodes.iter().flat_map(Node::said).for_each(|line| println!("{line}"));
        }
    }
}

fn node(id: &'static str, program: &str, etcd: &Etcd, database: &str, nodes: Nodes) -> Node {
    let folder = Folder::new("cron");
    let target = etcd.url().replace("http://", "");
    let relay = Program::start(&[program, "relay", &target], &folder.join("relay"), "KILL");
    let address = wait_for("the relay listens", DEADLINE, || {
        let said = fs::read_to_string(folder.join("relay")).ok()?;
        said.split_once('\n').map(|(line, _)| line.to_owned())
    });
    let (etcd, ttl) = (format!("http://{address}"), TTL.as_secs().to_string());
    let database = format!("{database} application_name={id}");
    let mut command = vec![program, "node", "--id", id, "--etcd", &etcd, "--election", "/cron/leader"];
    command.extend(["--ttl", &ttl, "--period", "1", "--database", &database]);
    if nodes == Nodes::Oblivious {
        command.push("--oblivious");
    }
    let node = Program::start(&command, &folder.join("said"), "KILL");
    Node { id, relay, _node: node, folder }
}

/// Cuts the leader off for 1.5 TTL. Returns the old leader and the new one, which works within 2 TTL.
fn stall(cron: &mut Cron) -> (usize, usize) {
    let old = cron.leader(&[], DEADLINE);
    let (stalls, cut) = (Stalls::watch(), Instant::now());
    cron.nodes[old].relay.signal("STOP");
    let working = |index: &usize| *index != old && cron.nodes[*index].ticks() >= 1;
    let new = wait_for("a follower works", DEADLINE, || (0..3).find(working));
    let took = cut.elapsed();
    assert!(took < 2 * TTL + stalls.total(), "a follower worked after {took:?}, not within 2 TTL");
    wait_until("1.5 TTL are over", 2 * TTL, || cut.elapsed() >= TTL * 3 / 2);
    cron.nodes[old].relay.signal("CONT");
    (old, new)
}

#[test]
fn a_leader_that_cannot_renew_stops_and_a_follower_works_within_two_ttl() {
    let mut cron = Cron::start(Nodes::Attentive, Door::Proxy);
    let term = cron.term();
    let (old, _) = stall(&mut cron);
    // On a busy machine, the successor may first end the leader's session, in the middle of a write.
    let reasons = ["lost: the coordinator did not answer", "stops: connection closed"];
    assert!(reasons.iter().any(|reason| cron.nodes[old].says(reason)), "{:?}", cron.nodes[old].said());
    assert!(!cron.session_is_open(old), "its work has ended");
    assert_eq!(cron.observed().contradictions(1), Vec::<String>::new());
    assert_eq!(cron.term(), term, "etcd's own leader is unchanged");
}

#[test]
fn a_leader_that_ignores_its_loss_keeps_working() {
    let mut cron = Cron::start(Nodes::Oblivious, Door::Proxy);
    let (old, _) = stall(&mut cron);
    // The successor may have ended the session in the middle of a write.
    let is_open = cron.session_is_open(old) || cron.nodes[old].says("stops: connection closed");
    assert!(is_open && !cron.nodes[old].says("lost"), "otherwise the test above proves nothing");
}

/// Cuts the leader off for 2 TTL and 2 s, and reconnects it. Returns the old leader, which kept writing.
fn split_brain(cron: &mut Cron) -> usize {
    let old = cron.leader(&[], DEADLINE);
    let cut = Instant::now();
    cron.nodes[old].relay.signal("STOP");
    let new = cron.leader(&[old], DEADLINE);
    wait_until("2 TTL and 2 s are over", 3 * TTL, || cut.elapsed() >= 2 * TTL + Duration::from_secs(2));
    cron.nodes[old].relay.signal("CONT");
    let ticks = cron.nodes[new].ticks();
    wait_until("the cron continues", DEADLINE, || cron.nodes[new].ticks() >= ticks + 2);
    old
}

#[test]
fn in_a_split_brain_there_is_one_row_per_tick_and_late_writes_are_rejected() {
    let mut cron = Cron::start(Nodes::Oblivious, Door::Proxy);
    split_brain(&mut cron);
    let observed = cron.observed();
    assert_eq!(observed.contradictions(1), Vec::<String>::new());
    // Both write once a second. If the successor's first write overtakes one of the old leader, the drain ends that
    // session.
    let log = cron.proxy.log();
    let told = log.matches("stale_write_blocked").count() + log.matches("session_drained").count();
    assert!(told > 0, "no late write reached the proxy: this run proves nothing");
    assert!(told >= observed.late_writes, "{told} of {} were reported", observed.late_writes);
    println!("{} rows, {} late writes rejected", observed.rows.len(), observed.late_writes);
}

#[test]
fn without_the_fence_a_split_brain_runs_ticks_twice() {
    let mut cron = Cron::start(Nodes::Oblivious, Door::Postgres);
    let old = split_brain(&mut cron);
    assert!(cron.session_is_open(old), "only the fence ends it");
    let observed = cron.observed();
    assert!(observed.doubled() > 0 && observed.stale() > 0, "otherwise the test above proves nothing");
    assert_eq!(observed.late_writes, 0);
}
