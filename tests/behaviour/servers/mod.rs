//! Lists of servers behind the proxy: which one is the primary, and what happens to sessions when that changes.

mod lists;
mod promotion;
mod reloads;
mod shown;
mod two_primaries;

use crate::metrics::world::http_address;
use crate::support::cluster::{Cluster, Replication};
use crate::support::postgres::SUPERUSER;
use crate::support::proxy::ProxyOptions;
use crate::support::ticks;
use crate::support::wire::{Fields, error_in};
use crate::support::{DEADLINE, Proxy, Wire, wait_until};
use std::net::SocketAddr;

pub const PRIMARY: &str = "target_session_attrs=primary";

/// A cluster with a fenced table of ticks, behind a proxy with a list of its servers.
pub struct World {
    // Before the servers: fields are dropped in this order.
    pub proxy: Proxy,
    pub cluster: Cluster,
}

impl World {
    /// A primary and one standby. Sessions use the primary.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(PRIMARY, arguments)
    }

    pub fn start_with(target: &str, arguments: &[&str]) -> Self {
        let cluster = cluster();
        let proxy = Proxy::start_with(&cluster[0], &options(&cluster, target, arguments));
        Self { proxy, cluster }
    }

    /// The number of the server that a new session uses.
    pub fn server_of_a_session(&self) -> usize {
        let mut wire = Wire::login(&self.proxy.address(), SUPERUSER, "postgres");
        self.server_of(&mut wire)
    }

    /// The number of the server that the session uses.
    pub fn server_of(&self, wire: &mut Wire) -> usize {
        let port = wire.rows("SELECT inet_server_port()").unwrap()[0][0].clone().unwrap();
        (0..2).find(|node| self.cluster[*node].port().to_string() == port).expect("a server of the cluster")
    }

    /// The error of a login. None if it succeeds.
    pub fn refusal(&self) -> Option<Fields> {
        let mut wire = Wire::connect(&self.proxy.address()).unwrap();
        error_in(&wire.start(&[("user", SUPERUSER), ("database", "postgres")], ""))
    }

    /// The rows of `SHOW SERVERS`: `role timeline sessions`.
    pub fn servers(&self) -> Vec<String> {
        let mut console = Wire::login(&self.proxy.address(), SUPERUSER, "fencegate");
        let rows = console.rows("SHOW SERVERS").unwrap();
        let cell = |row: &[Option<String>], place: usize| row[place].clone().unwrap_or_default();
        rows.iter().map(|row| [2, 3, 6].map(|place| cell(row, place)).join(" ")).collect()
    }

    /// Waits until `SHOW SERVERS` has these rows.
    pub fn wait_for_servers(&self, expected: [&str; 2]) {
        wait_until(format!("the servers are {expected:?}"), DEADLINE, || self.servers() == expected);
    }

    /// Waits until the log has this event for this server.
    pub fn wait_for_event(&self, event: &str, node: usize) {
        let host = format!("127.0.0.1:{}", self.cluster.port(node));
        wait_until(format!("{event} of {host}"), DEADLINE, || {
            self.proxy.log().lines().any(|line| line.contains(event) && line.contains(&host))
        });
    }

    /// Waits until the log reports the server as the new primary.
    pub fn wait_for_primary(&self, node: usize) {
        let new = format!("new=\"127.0.0.1:{}\"", self.cluster.port(node));
        wait_until(format!("the log has {new}"), DEADLINE, || {
            self.proxy.log().lines().any(|line| line.contains("upstream_changed") && line.contains(&new))
        });
    }

    pub fn http(&self) -> SocketAddr {
        http_address(|| self.proxy.log())
    }
}

/// A proxy with a list of the cluster's servers.
pub fn options(cluster: &Cluster, target: &str, arguments: &[&str]) -> ProxyOptions {
    ProxyOptions::default()
        .policies(ticks::POLICIES)
        .upstream(&format!("postgres://{}?{target}", cluster.hosts()))
        .control(&control(&cluster.hosts()))
        .arguments(&["--http", "127.0.0.1:0"])
        .arguments(arguments)
}

/// A primary with the table of ticks, and one standby.
pub fn cluster() -> Cluster {
    Cluster::start(1, Replication::Asynchronous, |primary| ticks::init(primary, SUPERUSER))
}

/// The URL of the control connection to these hosts.
pub fn control(hosts: &str) -> String {
    format!("postgres://{SUPERUSER}@{hosts}/postgres?target_session_attrs=primary")
}
