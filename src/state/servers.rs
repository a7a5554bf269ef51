//! The servers behind the proxy, for all its sessions and probers.
//!
//! Owns the order of changes, and the requests for new looks. Must never query a server: `server::prober` does.

use super::look::Look;
use super::server_table::{ServerChange, ServerRole, ServerTable};
use crate::config::{Address, TargetSession, Upstream};
use fencegate_fence::session::Identity;
use fencegate_postgres::tls::Primary;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Maximum wait for a look that was requested.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Time for a statement that needs the probers' database without other connections: CREATE DATABASE waits 5 s.
const RELEASED: Duration = Duration::from_secs(10);
/// Default port of a host in a connection string.
const DEFAULT_PORT: u16 = 5432;

/// The hint while a server may still become available.
const NO_SERVER_YET: &str = "Retry. The proxy's setting connect_wait lets new sessions wait for a server.";

/// No server may serve a session.
#[derive(Debug)]
pub struct NoServer {
    /// Each host and its state.
    pub states: String,
    /// The hint for the client.
    pub hint: &'static str,
}

/// The servers behind the proxy, for all its sessions.
#[derive(Debug)]
pub struct Servers {
    table: watch::Sender<ServerTable>,
    /// The number of the latest look that was requested.
    requested: watch::Sender<u64>,
    /// Until this time, no prober keeps a connection open.
    released_until: Mutex<Option<Instant>>,
    /// Held while a change is acted on, so that changes are acted on in their order.
    acting: Mutex<()>,
    /// Notified when a reload has replaced the servers.
    pub reloaded: Notify,
    /// The prober of each host.
    pub probers: Mutex<HashMap<Address, AbortHandle>>,
}

impl Servers {
    /// Servers that no prober has looked at.
    pub fn new(upstream: &Upstream) -> Self {
        Servers {
            table: watch::Sender::new(ServerTable::new(upstream)),
            requested: watch::Sender::new(1),
            released_until: Mutex::default(),
            acting: Mutex::default(),
            reloaded: Notify::new(),
            probers: Mutex::default(),
        }
    }

    /// Replaces the servers by those of a reload. `looks`: a new look at each of them.
    pub fn reload(&self, upstream: &Upstream, looks: Vec<Look>, act: impl FnMut(&ServerTable, ServerChange)) {
        self.change(|table| table.reload(upstream, looks), act);
        self.reloaded.notify_one();
    }

    /// Returns true if each host has a prober.
    pub fn is_probed(&self) -> bool {
        self.table().is_probed
    }

    /// The hosts that have a prober.
    pub fn probed(&self) -> Vec<Address> {
        let table = self.table();
        table.hosts().iter().filter(|_| table.is_probed).map(|host| host.address.clone()).collect()
    }

    /// The servers that new sessions accept.
    pub fn target(&self) -> TargetSession {
        self.table().target
    }

    /// The servers, as last seen.
    pub fn table(&self) -> watch::Ref<'_, ServerTable> {
        self.table.borrow()
    }

    /// Reports each result of a look.
    pub fn subscribe(&self) -> watch::Receiver<ServerTable> {
        self.table.subscribe()
    }

    /// The hosts that a new session tries, in this order. Empty if no server may serve it.
    pub fn candidates(&self) -> Vec<Address> {
        let table = self.table();
        let mut hosts = table.candidates();
        if table.balances_load {
            let random = RandomState::new();
            hosts.sort_by_cached_key(|host| random.hash_one(host));
        }
        hosts
    }

    /// All hosts that can authenticate an operator or answer a question of the proxy: the primary first.
    pub fn for_operators(&self) -> Vec<Address> {
        let table = self.table();
        let mut hosts: Vec<_> = table.hosts().iter().filter(|host| host.role != ServerRole::Superseded).collect();
        hosts.sort_by_key(|host| match host.role {
            ServerRole::Primary => 0,
            ServerRole::Standby => 1,
            ServerRole::Unknown | ServerRole::Superseded => 2,
        });
        hosts.into_iter().map(|host| host.address.clone()).collect()
    }

    /// Returns true if a new session may use its server.
    pub fn admits(&self, identity: &Identity, in_recovery: bool) -> bool {
        let table = self.table();
        !table.is_probed || table.admits(table.target, identity, in_recovery)
    }

    /// Returns true if an open session may continue.
    pub fn keeps(&self, server: &Address, identity: Option<&Identity>) -> bool {
        self.table().keeps(server, identity)
    }

    /// Requests a look at each host, and returns its number.
    pub fn request_look(&self) -> u64 {
        let mut number = 0;
        self.requested.send_modify(|requested| {
            *requested += 1;
            number = *requested;
        });
        number
    }

    /// Lets the probers close their connections for a while, because a statement needs their database without other
    /// connections. Each look then opens one: the server waits longer for other sessions to end than a look takes.
    pub fn release(&self) {
        *self.released_until.lock() = Some(Instant::now() + RELEASED);
        self.request_look();
    }

    /// Returns true if no prober may keep a connection open.
    pub fn is_released(&self) -> bool {
        self.released_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// The number of the latest request, and later ones.
    pub fn requests(&self) -> watch::Receiver<u64> {
        self.requested.subscribe()
    }

    /// Records the result of a look, and calls `act` with each change, in their order. Ignores a host that is no longer in the
    /// list.
    pub fn report(&self, number: u64, Look { address, result }: Look, act: impl FnMut(&ServerTable, ServerChange)) {
        let report = |table: &mut ServerTable| match table.place(&address) {
            Some(place) if table.is_probed => table.report(place, number, result),
            _ => Vec::new(),
        };
        self.change(report, act);
    }

    /// Ends the wait for the first looks.
    pub fn settle(&self, act: impl FnMut(&ServerTable, ServerChange)) {
        self.change(ServerTable::settle, act);
    }

    fn change(
        &self,
        change: impl FnOnce(&mut ServerTable) -> Vec<ServerChange>,
        mut act: impl FnMut(&ServerTable, ServerChange),
    ) {
        let _in_order = self.acting.lock();
        let mut changes = Vec::new();
        self.table.send_modify(|table| changes = change(table));
        if changes.is_empty() {
            return;
        }
        let table = self.table().clone();
        changes.into_iter().for_each(|change| act(&table, change));
    }

    /// Waits until a server may serve a new session: until the first looks have ended, and then at most this time. Returns
    /// the hosts, in the order of the attempts. Cancel-safe.
    ///
    /// # Errors
    /// The time has passed.
    pub async fn available(&self, within: Duration) -> Result<Vec<Address>, NoServer> {
        if self.is_probed() {
            let mut table = self.subscribe();
            // This process owns the sender, so the channel stays open.
            table.wait_for(ServerTable::is_settled).await.ok();
            let until = Instant::now() + within;
            timeout_at(until, table.wait_for(|table| !table.candidates().is_empty())).await.ok();
        }
        match self.candidates() {
            none if none.is_empty() => {
                let table = self.table();
                Err(NoServer { states: table.summary(false), hint: table.hint(NO_SERVER_YET) })
            }
            hosts => Ok(hosts),
        }
    }

    /// Waits for a new look at a host, for a limited time. Cancel-safe.
    pub async fn look_again(&self, host: &Address) {
        if self.is_probed() {
            let (mut table, number) = (self.subscribe(), self.request_look());
            let has_looked = |table: &ServerTable| !table.is_probed || table.has_looked(host, number);
            timeout(LOOK_LIMIT, table.wait_for(has_looked)).await.ok();
        }
    }
}

impl Primary for Servers {
    fn place(&self, config: &Config) -> Option<usize> {
        let address = {
            let table = self.table();
            let (place, _) = table.primary()?;
            table.hosts()[place].address.clone()
        };
        let ports = config.get_ports();
        let is_primary = |(place, host): (usize, &Host)| {
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
            match (&address, host) {
                (Address::Tcp { host, port: of_primary }, Host::Tcp(name)) => host == name && *of_primary == port,
                (Address::Unix { directory, port: of_primary }, Host::Unix(path)) => {
                    directory == path && *of_primary == port
                }
                _ => false,
            }
        };
        config.get_hosts().iter().enumerate().position(is_primary)
    }

    /// If it is, the probers look again: the server may have been restarted or promoted since the last look.
    fn is_superseded(&self, system_identifier: &str, postmaster_start: &str) -> bool {
        let is_superseded = self.table().is_superseded(system_identifier, postmaster_start);
        if is_superseded {
            self.request_look();
        }
        is_superseded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::look::ServerReport;

    fn host(number: usize) -> Address {
        Address::Tcp { host: format!("h{number}"), port: 5432 }
    }

    fn servers(target: TargetSession, reports: &[(bool, u32)]) -> Servers {
        let hosts = (0..reports.len()).map(host).collect();
        let connect_timeout = Duration::from_secs(3);
        let servers = Servers::new(&Upstream { hosts, target, balances_load: true, connect_timeout });
        for (place, (in_recovery, timeline)) in reports.iter().enumerate() {
            let report = ServerReport {
                in_recovery: *in_recovery,
                system_identifier: "1".to_owned(),
                postmaster_start: place.to_string(),
                timeline: *timeline,
            };
            let address = host(place);
            servers.report(1, Look { address, result: Ok(report) }, |_, _| {});
        }
        servers
    }

    #[test]
    fn hosts_are_tried_in_random_order_if_the_load_is_balanced() {
        let servers = servers(TargetSession::Standby, &[(true, 1); 4]);
        let mut orders: Vec<_> = (0..100).map(|_| servers.candidates()).collect();
        assert!(orders.iter().any(|it| *it != orders[0]));
        orders.iter_mut().for_each(|it| it.sort_unstable_by_key(ToString::to_string));
        assert!(orders.iter().all(|it| *it == [0, 1, 2, 3].map(host)));
    }

    #[test]
    fn a_control_connection_uses_the_primary_of_its_list() {
        let servers = servers(TargetSession::Primary, &[(false, 1), (false, 2), (true, 2)]);
        for (text, place) in [
            ("host=h0,h1,h2", Some(1)),
            ("host=h1,h0 port=5432", Some(0)),
            ("host=h0,h1 port=5432,5433", None),
            ("host=h0", None),
        ] {
            assert_eq!(servers.place(&text.parse().unwrap()), place, "{text}");
        }
        let before = *servers.requests().borrow();
        assert!(!Primary::is_superseded(&servers, "1", "1") && *servers.requests().borrow() == before);
        assert!(Primary::is_superseded(&servers, "1", "0") && *servers.requests().borrow() > before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_its_server_no_longer_than_it_may() {
        let servers = servers(TargetSession::Primary, &[(true, 1), (true, 1)]);
        let begin = Instant::now();
        let states = servers.available(Duration::from_secs(7)).await.unwrap_err().states;
        assert_eq!((states.as_str(), begin.elapsed().as_secs()), ("h0:5432 is standby; h1:5432 is standby", 7));
        let (reported, _) = tokio::join!(servers.available(Duration::from_secs(7)), async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let report = ServerReport {
                in_recovery: false,
                system_identifier: "1".to_owned(),
                postmaster_start: "1".to_owned(),
                timeline: 2,
            };
            servers.report(1, Look { address: host(1), result: Ok(report) }, |_, _| {});
        });
        assert_eq!((reported.ok(), begin.elapsed().as_secs()), (Some(vec![host(1)]), 9));
    }
}
