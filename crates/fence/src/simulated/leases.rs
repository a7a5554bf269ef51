//! The leases of the database.

use super::server::{LeaseRow, Server, State};
use super::shown::time;
use crate::session::Token;
use crate::store::{LeaseState, Leases, StoredLease};

impl Server {
    /// Replaces the lease of the election by this one, which expires after `lasting` microseconds, and announces it.
    pub fn lease(&self, election: &str, token: Token, released: bool, lasting: i64) {
        let mut state = self.state();
        let acquired = state.tick();
        let row = LeaseRow { token, released, acquired, expires: acquired + lasting };
        state.leases.insert(election.to_owned(), row);
        state.listeners.values().for_each(|listener| listener.lease_changed(election));
    }

    /// Extends the lease if it exists under that token and was not released. Announces nothing.
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

    /// The lease is in force under the token.
    pub(super) fn has_issued(&self, election: &str, token: Token) -> bool {
        self.lease(election).is_some_and(|lease| lease.state == LeaseState::InForce && lease.token == token)
    }

    pub(super) fn all_leases(&self, most: usize) -> Leases {
        let mut list: Vec<StoredLease> = self.leases.keys().filter_map(|election| self.lease(election)).collect();
        list.sort_by(|one, other| (other.acquired, &one.election).cmp(&(one.acquired, &other.election)));
        let left_out = list.len().saturating_sub(most);
        list.truncate(most);
        Leases { list, left_out }
    }
}
