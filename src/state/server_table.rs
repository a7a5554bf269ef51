//! The servers of a list: the last report of each, the primary among them, and the highest timeline seen.
//!
//! Owns the choice of the primary. Must never choose a server on a lower timeline than one that this process has seen in
//! the same cluster, nor query a server: `server::prober` does.

use super::look::{Look, LookError, ServerReport};
use crate::config::{Address, TargetSession, Upstream};
use fencegate_fence::session::Identity;
use std::collections::HashMap;
use std::time::SystemTime;

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRole {
    /// The server is not known: the last look failed, or there was none.
    Unknown,
    /// The server accepts no writes, and follows the cluster's primary.
    Standby,
    /// The server accepts the cluster's writes.
    Primary,
    /// The server accepts writes, or is a standby of another cluster, and is not the cluster's primary.
    Superseded,
}

impl ServerRole {
    /// The name in the console and in events.
    pub fn name(self) -> &'static str {
        match self {
            ServerRole::Unknown => "unknown",
            ServerRole::Standby => "standby",
            ServerRole::Primary => "primary",
            ServerRole::Superseded => "superseded",
        }
    }

    /// The number in metrics.
    pub fn number(self) -> i64 {
        match self {
            ServerRole::Primary => 2,
            ServerRole::Standby => 1,
            ServerRole::Unknown => 0,
            ServerRole::Superseded => -1,
        }
    }
}

/// A host of the list.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The address in the settings.
    pub address: Address,
    /// The role by the last look.
    pub role: ServerRole,
    /// The last report, even if later looks failed.
    pub report: Option<ServerReport>,
    /// Why the last look failed.
    pub failure: Option<LookError>,
    /// Time of the last report.
    pub seen: Option<SystemTime>,
    /// The number of the last look. 0: there was none.
    looked: u64,
}

impl ServerState {
    /// The last report, if the last look succeeded.
    fn current(&self) -> Option<&ServerReport> {
        self.report.as_ref().filter(|_| self.failure.is_none())
    }
}

/// A change that the proxy must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// Another primary, or the same one on a higher timeline.
    Primary {
        /// The one before, if there was one.
        old: Option<usize>,
        /// The place of the new one.
        new: usize,
    },
    /// No server is the primary.
    NoPrimary,
    /// This server accepts writes, but is not the primary.
    Superseded(usize),
}

/// All servers of the list.
#[derive(Clone, Debug)]
pub struct ServerTable {
    hosts: Vec<ServerState>,
    /// The servers that new sessions accept.
    pub(super) target: TargetSession,
    /// True if new sessions try the servers in random order.
    pub(super) balances_load: bool,
    /// False if there is only one server, and sessions use it whatever its role.
    pub(super) is_probed: bool,
    /// The highest timeline seen, by system identifier.
    highest: HashMap<String, u32>,
    /// The primary.
    primary: Option<usize>,
    /// The place of the last primary, if it is still in the list, and its report.
    last_primary: Option<(Option<usize>, ServerReport)>,
    /// False until each host was looked at, or the first looks have taken too long. Until then, no server is the
    /// primary.
    is_settled: bool,
}

impl ServerTable {
    pub(super) fn new(upstream: &Upstream) -> Self {
        let state = |address: &Address| ServerState {
            address: address.clone(),
            role: ServerRole::Unknown,
            report: None,
            failure: None,
            seen: None,
            looked: 0,
        };
        ServerTable {
            hosts: upstream.hosts.iter().map(state).collect(),
            target: upstream.target,
            balances_load: upstream.balances_load,
            is_probed: upstream.is_probed(),
            highest: HashMap::new(),
            primary: None,
            last_primary: None,
            is_settled: !upstream.is_probed(),
        }
    }

    /// Replaces the list. Keeps the state of hosts that remain. `looks`: a new look at each host.
    pub(super) fn reload(&mut self, upstream: &Upstream, looks: Vec<Look>) -> Vec<ServerChange> {
        let ServerTable { hosts, highest, primary, last_primary, .. } =
            std::mem::replace(self, ServerTable::new(upstream));
        let moved = |place: usize| upstream.hosts.iter().position(|it| *it == hosts[place].address);
        self.last_primary = last_primary.map(|(place, report)| (place.and_then(moved), report));
        self.highest = highest;
        for host in &mut self.hosts {
            if let Some(known) = hosts.iter().find(|it| it.address == host.address) {
                *host = known.clone();
            }
        }
        for Look { address, result } in looks {
            if let Some(place) = self.place(&address) {
                self.note(place, 1, result);
            }
        }
        if !self.is_probed {
            self.hosts.iter_mut().for_each(|host| host.role = ServerRole::Unknown);
            return Vec::new();
        }
        self.is_settled = true;
        self.primary = primary;
        self.choose()
    }

    /// The place of a host; None if it is not in the list.
    pub(super) fn place(&self, address: &Address) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == *address)
    }

    /// The cluster of the last primary.
    pub fn cluster(&self) -> Option<&str> {
        self.last_primary.as_ref().map(|(_, report)| report.system_identifier.as_str())
    }

    /// The servers, in the order of the list.
    pub fn hosts(&self) -> &[ServerState] {
        &self.hosts
    }

    /// The primary and its report.
    pub fn primary(&self) -> Option<(usize, &ServerReport)> {
        let place = self.primary?;
        Some((place, self.hosts[place].report.as_ref()?))
    }

    /// The highest timeline seen in the cluster of the report.
    pub fn highest(&self, report: &ServerReport) -> u32 {
        self.highest.get(&report.system_identifier).copied().unwrap_or_default()
    }

    /// Returns true if no server lets the control role log in.
    pub fn refuses_control(&self) -> bool {
        self.is_probed && self.hosts.iter().all(|host| matches!(host.failure, Some(LookError::LoginRefused(_))))
    }

    /// The hint for a client that no server may serve: `otherwise` unless an operator has to act.
    pub fn hint(&self, otherwise: &'static str) -> &'static str {
        match self.refuses_control() {
            true => {
                "Retrying will not help. No server lets the proxy's control role log in: check the user and the password in the proxy's setting control. The proxy's log has the details."
            }
            false => otherwise,
        }
    }

    /// Returns true once the first looks have ended.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns true if a look at the host with that number has ended.
    pub fn has_looked(&self, address: &Address, number: u64) -> bool {
        self.place(address).is_none_or(|place| self.hosts[place].looked >= number)
    }

    /// Records the result of a look at a host.
    pub(super) fn report(
        &mut self,
        place: usize,
        number: u64,
        result: Result<ServerReport, LookError>,
    ) -> Vec<ServerChange> {
        self.note(place, number, result);
        self.is_settled |= self.hosts.iter().all(|host| host.looked > 0);
        self.choose()
    }

    fn note(&mut self, place: usize, number: u64, result: Result<ServerReport, LookError>) {
        let host = &mut self.hosts[place];
        host.looked = host.looked.max(number).max(1);
        match result {
            Ok(report) => {
                let highest = self.highest.entry(report.system_identifier.clone()).or_default();
                *highest = report.timeline.max(*highest);
                (host.report, host.failure, host.seen) = (Some(report), None, Some(SystemTime::now()));
            }
            Err(failure) => host.failure = Some(failure),
        }
    }

    pub(super) fn settle(&mut self) -> Vec<ServerChange> {
        self.is_settled = true;
        self.choose()
    }

    /// Determines the roles.
    fn choose(&mut self) -> Vec<ServerChange> {
        if !self.is_settled {
            return Vec::new();
        }
        let (old_primary, old) = (self.primary, self.last_primary.clone());
        self.primary = self.find_primary();
        let mut changes = Vec::new();
        if let Some((place, report)) = self.primary().map(|(place, report)| (place, report.clone())) {
            let is_other = old.as_ref().is_none_or(|(before, known)| {
                (*before, &known.system_identifier, known.timeline)
                    != (Some(place), &report.system_identifier, report.timeline)
            });
            if is_other {
                changes.push(ServerChange::Primary { old: old.and_then(|(before, _)| before), new: place });
            }
            self.last_primary = Some((Some(place), report));
        } else if old_primary.is_some() {
            changes.push(ServerChange::NoPrimary);
        }
        for place in 0..self.hosts.len() {
            let role = self.role(place);
            let before = std::mem::replace(&mut self.hosts[place].role, role);
            if role == ServerRole::Superseded && before != role {
                changes.push(ServerChange::Superseded(place));
            }
        }
        changes
    }

    fn role(&self, place: usize) -> ServerRole {
        let cluster = self.cluster();
        match self.hosts[place].current() {
            None => ServerRole::Unknown,
            Some(_) if self.primary == Some(place) => ServerRole::Primary,
            Some(report) if report.in_recovery && cluster.is_none_or(|it| it == report.system_identifier) => {
                ServerRole::Standby
            }
            Some(_) => ServerRole::Superseded,
        }
    }

    /// The one server that accepts writes on the highest timeline of the cluster.
    fn find_primary(&self) -> Option<usize> {
        let writable = |place: &usize| {
            let report = self.hosts[*place].current();
            report.is_some_and(|it| !it.in_recovery && it.timeline >= self.highest(it) && self.may_lead(*place, it))
        };
        let candidates: Vec<usize> = (0..self.hosts.len()).filter(writable).collect();
        match (candidates.as_slice(), &self.last_primary) {
            ([only], _) => Some(*only),
            // Two servers that were promoted to the same timeline: the first one that was seen stays.
            (several, Some((Some(last), _))) if several.contains(last) => Some(*last),
            _ => None,
        }
    }

    /// Returns true if the server's cluster may be the proxy's: the cluster of the last primary, or one that has replaced it
    /// at that address or everywhere, as after pg_upgrade.
    fn may_lead(&self, place: usize, report: &ServerReport) -> bool {
        let Some((last, known)) = &self.last_primary else { return true };
        let is_cluster = |it: &ServerReport| it.system_identifier == known.system_identifier;
        is_cluster(report)
            || *last == Some(place)
            || !self.hosts.iter().filter_map(|it| it.report.as_ref()).any(is_cluster)
    }

    /// The hosts that a new session may use, in the order of the list.
    pub(super) fn candidates(&self) -> Vec<Address> {
        let places = if self.is_probed { self.places(self.target) } else { vec![0] };
        places.into_iter().map(|place| self.hosts[place].address.clone()).collect()
    }

    fn places(&self, target: TargetSession) -> Vec<usize> {
        let with = |role| (0..self.hosts.len()).filter(move |place| self.hosts[*place].role == role);
        let (primary, standbys) = (with(ServerRole::Primary), with(ServerRole::Standby).collect::<Vec<_>>());
        match target {
            _ if !self.is_settled => Vec::new(),
            TargetSession::Primary => primary.collect(),
            TargetSession::Standby => standbys,
            TargetSession::PreferStandby if standbys.is_empty() => primary.collect(),
            TargetSession::PreferStandby => standbys,
            TargetSession::Any if self.primary.is_some() => primary.collect(),
            TargetSession::Any => standbys.into_iter().chain(with(ServerRole::Unknown)).collect(),
        }
    }

    /// Returns true if a new session may use its server, which has identified itself.
    pub(super) fn admits(&self, target: TargetSession, identity: &Identity, in_recovery: bool) -> bool {
        let primary = self.primary().map(|(_, report)| report);
        if !in_recovery {
            return target.allows_primary() && primary.is_some_and(|it| it.is_of(identity));
        }
        let cluster = self.cluster();
        target.allows_standby() && cluster.is_none_or(|it| it == identity.system_identifier)
    }

    /// Returns true if an open session may continue: on the primary, or on a server that was a standby when it was last
    /// seen. While no server is the primary, each session on a server of the list continues.
    pub fn keeps(&self, server: &Address, identity: Option<&Identity>) -> bool {
        let is_reported = |host: &ServerState, identity| host.report.as_ref().is_some_and(|it| it.is_of(identity));
        let Some((primary, report)) = self.primary() else {
            let is_its =
                |host: &ServerState| host.address == *server || identity.is_some_and(|it| is_reported(host, it));
            return self.hosts.iter().any(is_its);
        };
        let is_standby = |host: &ServerState| host.role == ServerRole::Standby || is_last_seen_as_standby(host);
        match identity {
            None => self.place(server).is_some_and(|place| place == primary || is_standby(&self.hosts[place])),
            Some(identity) => {
                report.is_of(identity) || self.hosts.iter().any(|host| is_reported(host, identity) && is_standby(host))
            }
        }
    }

    /// Returns true if this server is known not to be the primary.
    pub(super) fn is_superseded(&self, system_identifier: &str, postmaster_start: &str) -> bool {
        let is_it = |it: &ServerReport| {
            (&*it.system_identifier, &*it.postmaster_start) == (system_identifier, postmaster_start)
        };
        match self.primary() {
            Some((_, report)) => !is_it(report),
            None => {
                let superseded = self.hosts.iter().filter(|host| host.role == ServerRole::Superseded);
                superseded.filter_map(|host| host.report.as_ref()).any(is_it)
            }
        }
    }

    /// Each host and its state, for an error. Failures may name the control role, so clients must not receive them.
    pub fn summary(&self, with_failures: bool) -> String {
        let one = |host: &ServerState| match (host.role, &host.failure, &host.report) {
            (ServerRole::Unknown, Some(failure), _) if with_failures => {
                format!("{} is unknown: {failure}", host.address)
            }
            (ServerRole::Superseded, _, Some(report)) => {
                format!(
                    "{} is superseded: cluster {}, timeline {}, highest {}",
                    host.address,
                    report.system_identifier,
                    report.timeline,
                    self.highest(report)
                )
            }
            (role, ..) => format!("{} is {}", host.address, role.name()),
        };
        self.hosts.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

fn is_last_seen_as_standby(host: &ServerState) -> bool {
    host.role == ServerRole::Unknown && host.report.as_ref().is_some_and(|report| report.in_recovery)
}

#[cfg(test)]
mod tests;
