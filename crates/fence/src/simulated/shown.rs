//! Leases, and queries whose results operators see.

use super::{Admitted, LeaseRow, Row, Server, State};
use crate::session::Token;
use crate::store::{LeaseState, StoredLease, seconds};
use crate::{Admission, Bounded, Enforcement, Fence, Fences, Reach};
use fencegate_policy::Resource;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time for which a lost proxy counts, in microseconds.
pub(super) const LOST_PROXY_COUNTS: i64 = 600_000_000;

/// Converts microseconds since 1970.
pub(super) fn time(micros: i64) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).ok()?))
}

impl State {
    pub(super) fn enforcement(&self, resources: &[Arc<Resource>]) -> Enforcement {
        let mut reach = HashMap::new();
        for resource in resources {
            let of: &mut Reach = reach.entry(resource.fingerprint.clone()).or_default();
            *of = Reach::default();
            for proxy in self.proxies.values() {
                let lives = self.listeners.contains_key(&proxy.connection);
                let counts = lives || proxy.announced + LOST_PROXY_COUNTS > self.clock;
                of.proxies += u64::from(counts);
                of.lost += u64::from(counts && !lives);
                of.enforcing += u64::from(lives && proxy.enforced.contains(&resource.fingerprint));
            }
        }
        let tables = resources.iter().flat_map(|resource| resource.tables.iter().map(|table| &table.name));
        let unresolved = tables.filter(|table| !self.tables.contains(*table)).cloned().collect();
        Enforcement { reach, unresolved }
    }

    pub(super) fn admissions(&self, own_proxy: &str, most: usize) -> Bounded<Admission> {
        let admission = |it: &Admitted| Admission {
            resource: it.row.resource.clone(),
            epoch: it.row.epoch,
            pid: it.row.pid,
            backend_start: seconds(&it.row.backend_start),
            admitted: time(it.at),
            proxy: it.proxy.clone(),
            is_ours: it.proxy == own_proxy,
            is_alive: self.is_alive(it),
        };
        let mut list: Vec<Admission> = self.admissions.iter().map(admission).collect();
        list.sort_by(|one, other| (&one.resource, one.epoch, one.pid).cmp(&(&other.resource, other.epoch, other.pid)));
        first(list, most)
    }

    pub(super) fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Fences {
        let fence = |(name, row): (&String, &Row)| {
            let admissions = self.admissions.iter().filter(|it| it.row.resource == *name).count() as u64;
            (name.clone(), Fence { epoch: row.epoch, drained: row.drained, admissions })
        };
        let is_plain = |name: &str| resources.iter().any(|it| it.keyed.is_none() && it.name == name);
        let is_key = |name: &str| resources.iter().any(|it| it.keyed.is_some() && it.is_called(name));
        let mut of_keys: Vec<_> = self.epochs.iter().filter(|(name, _)| is_key(name)).collect();
        of_keys.sort_by_key(|(_, row)| -row.updated);
        let left_out = of_keys.len().saturating_sub(most_keys);
        Fences {
            plain: self.epochs.iter().filter(|(name, _)| is_plain(name)).map(fence).collect(),
            of_keys: of_keys.into_iter().take(most_keys).map(fence).collect(),
            left_out,
        }
    }
}

impl Server {
    /// Replaces the lease of the election by this one, which expires after `lasting` microseconds, and announces it.
    pub fn lease(&self, election: &str, token: Token, released: bool, lasting: i64) {
        let mut state = self.state();
        let acquired = state.tick();
        let row = LeaseRow { token, released, acquired, expires: acquired + lasting };
        state.leases.insert(election.to_owned(), row);
        state.listeners.values().for_each(|listener| listener.lease_changed(election));
    }

    /// Extends the lease if it exists under this token and was not released. Announces nothing.
    pub fn extend_lease(&self, election: &str, token: Token, lasting: i64) {
        let mut state = self.state();
        let expires = state.tick() + lasting;
        if let Some(row) = state.leases.get_mut(election).filter(|row| row.token == token && !row.released) {
            row.expires = row.expires.max(expires);
        }
    }
}

impl State {
    pub(super) fn lease(&self, election: &str) -> Option<StoredLease> {
        let LeaseRow { token, released, acquired, expires } = *self.leases.get(election)?;
        let state = match released {
            true => LeaseState::Released,
            false if expires > self.clock => LeaseState::InForce,
            false => LeaseState::Expired,
        };
        let (election, holder, role) = (election.to_owned(), String::new(), String::new());
        let (acquired, expires) = (time(acquired)?, time(expires)?);
        Some(StoredLease { election, token, state, holder, role, acquired, renewed: acquired, expires })
    }

    /// Returns true if the lease is in force under the token.
    pub(super) fn has_issued(&self, election: &str, token: Token) -> bool {
        self.lease(election).is_some_and(|lease| lease.state == LeaseState::InForce && lease.token == token)
    }

    pub(super) fn all_leases(&self, most: usize) -> Bounded<StoredLease> {
        let mut list: Vec<StoredLease> = self.leases.keys().filter_map(|election| self.lease(election)).collect();
        list.sort_by(|one, other| (other.acquired, &one.election).cmp(&(one.acquired, &other.election)));
        first(list, most)
    }
}

fn first<T>(mut list: Vec<T>, most: usize) -> Bounded<T> {
    let left_out = list.len().saturating_sub(most);
    list.truncate(most);
    Bounded { list, left_out }
}
