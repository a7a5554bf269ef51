//! A primary with streaming standbys. Clients and proxies reach each server through a link that can be cut. Replication
//! does not use the links.

use super::link::Link;
use super::postgres::{Options, Postgres};
use super::server::Server;
use super::wait::{DEADLINE, wait_until};
use std::ops::{Index, IndexMut};

/// Whether the primary's commits wait for a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    Asynchronous,
    Synchronous,
}

/// The servers of a cluster, by number. Number 0 is the first primary.
pub struct Cluster {
    nodes: Vec<Node>,
    primary: usize,
    /// An address that moves from server to server.
    moving: Link,
}

struct Node {
    // Before the server: the link's connections end first.
    link: Link,
    server: Postgres,
}

impl Node {
    fn new(server: Postgres) -> Self {
        Self { link: Link::to(server.port()), server }
    }
}

impl Index<usize> for Cluster {
    type Output = Postgres;

    fn index(&self, node: usize) -> &Postgres {
        &self.nodes[node].server
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, node: usize) -> &mut Postgres {
        &mut self.nodes[node].server
    }
}

impl Cluster {
    /// Starts a primary, prepared by `prepare`, and standbys that have replayed everything.
    pub fn start(standbys: usize, replication: Replication, prepare: impl FnOnce(&Postgres)) -> Self {
        // An old primary needs both settings to rejoin.
        let options = Options::default().unused().setting("wal_log_hints", "on").setting("wal_keep_size", "256MB");
        // A promoted server has no slot that shows the order of earlier commits.
        let options = options.setting("track_commit_timestamp", "on");
        let primary = Postgres::start(options);
        // pg_rewind recovers a server that was killed without the options of its command line.
        primary.sql("ALTER SYSTEM SET wal_log_hints = 'on'");
        primary.sql("ALTER SYSTEM SET wal_keep_size = '256MB'");
        prepare(&primary);
        let moving = Link::to(primary.port());
        let mut cluster = Self { nodes: vec![Node::new(primary)], primary: 0, moving };
        for _ in 0..standbys {
            let mut standby = Server::base_backup(&cluster[0], &["-R"]);
            standby.start_again();
            cluster.nodes.push(Node::new(Postgres::of(standby)));
        }
        for node in 1..=standbys {
            cluster.follow(node);
        }
        cluster.set_replication(replication);
        cluster
    }

    /// The number of the current primary.
    pub fn primary(&self) -> usize {
        self.primary
    }

    /// The port of the link to the server.
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].link.port()
    }

    /// The link addresses of all servers, for a connection string: `127.0.0.1:5001,127.0.0.1:5002`.
    pub fn hosts(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.link.port())).collect();
        hosts.join(",")
    }

    /// The port of the moving address, which initially leads to the first primary.
    pub fn moving_port(&self) -> u16 {
        self.moving.port()
    }

    /// Points the moving address to the server. Existing connections end.
    pub fn move_to(&self, node: usize) {
        self.moving.lead_to(self[node].port());
    }

    /// Makes commits on the current primary wait, or not wait, for one of its standbys.
    pub fn set_replication(&self, replication: Replication) {
        let primary = &self[self.primary];
        let names = if replication == Replication::Synchronous { "*" } else { "" };
        primary.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        primary.sql("SELECT pg_reload_conf()");
        wait_until("the setting is in force", DEADLINE, || {
            let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')";
            (primary.value(waits) != "0") == (replication == Replication::Synchronous)
        });
    }

    /// Makes the standby follow the current primary, and waits until it streams.
    pub fn follow(&self, standby: usize) {
        let primary = &self[self.primary];
        let (host, port) = (primary.socket_dir().display(), primary.port());
        self.set_primary(standby, &format!("host={host} port={port} user=postgres application_name=node_{standby}"));
        let streams = format!(
            "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'node_{standby}' AND state = 'streaming'"
        );
        wait_until(format!("node {standby} follows"), DEADLINE, || primary.value(&streams) == "1");
    }

    /// Stops replication to the standby, so that a promotion loses all later commits.
    pub fn stop_replication(&self, standby: usize) {
        self.catch_up(standby);
        self.set_primary(standby, "");
        let stopped = "SELECT count(*) FROM pg_stat_wal_receiver";
        wait_until(format!("node {standby} does not follow"), DEADLINE, || self[standby].value(stopped) == "0");
    }

    fn set_primary(&self, standby: usize, address: &str) {
        self[standby].sql(&format!("ALTER SYSTEM SET primary_conninfo = '{address}'"));
        self[standby].sql("SELECT pg_reload_conf()");
    }

    /// Waits until the standby has replayed everything that the primary has committed so far.
    pub fn catch_up(&self, standby: usize) {
        let written = self[self.primary].value("SELECT pg_current_wal_lsn()");
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        wait_until(format!("node {standby} has replayed"), DEADLINE, || self[standby].value(&replayed) == "t");
    }

    /// Makes the standby the primary, and returns when it accepts writes. Does not touch the old primary.
    pub fn promote(&mut self, standby: usize) {
        self[standby].sql("SELECT pg_promote(false)");
        let ready = "SELECT NOT pg_is_in_recovery()";
        wait_until(format!("node {standby} is promoted"), DEADLINE, || self[standby].value(ready) == "t");
        self.primary = standby;
    }

    /// Stops the old primary, which may have commits that the current one lacks, and makes it a standby of the current
    /// one.
    pub fn rewind(&mut self, old: usize) {
        let primary = self.primary;
        // pg_rewind reads the timeline from the last checkpoint.
        self[primary].sql("CHECKPOINT");
        if self[old].is_running() {
            self[old].stop();
        }
        let [old_server, new_server]: [&Server; 2] = [&self[old], &self[primary]];
        old_server.rewind(new_server);
        self[old].start_again();
        self.follow(old);
    }

    /// Cuts the server's link: existing connections end, and new ones are closed. The server keeps running.
    pub fn cut_off(&self, node: usize) {
        self.nodes[node].link.cut();
    }

    /// Ends a [`Self::cut_off`].
    pub fn reconnect(&self, node: usize) {
        self.nodes[node].link.mend();
    }

    /// The server's timeline: 1 until the first promotion.
    pub fn timeline(&self, node: usize) -> u32 {
        let timeline = self[node].value("SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)");
        u32::from_str_radix(&timeline, 16).unwrap()
    }
}
