//! Epochs that their issuer has confirmed since the current server accepts writes.
//!
//! A promoted standby and a restored backup may lack the last epochs. A server that accepts writes loses none and never changes
//! its timeline until its postmaster ends. So a confirmation is valid for one postmaster, which Admit has seen out of recovery.
//!
//! Must never keep a confirmation from another postmaster, nor count a query of the issuer that began before Admit has seen
//! this one accept writes.

use super::recent::Recent;
use super::session::{Epoch, Identity};
use parking_lot::Mutex;

/// The confirmed epochs of the server that was last seen. In memory, so a new proxy process has none.
#[derive(Debug, Default)]
pub(super) struct Confirmed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    server: Option<Postmaster>,
    /// For each resource, an epoch that was confirmed. All lost epochs are below it.
    epochs: Recent<Epoch>,
}

#[derive(Debug, PartialEq, Eq)]
struct Postmaster {
    system_identifier: String,
    start: String,
}

impl Postmaster {
    fn is_of(&self, who: &Identity) -> bool {
        self.system_identifier == who.system_identifier && self.start == who.postmaster_start
    }
}

impl State {
    fn is_here(&self, who: &Identity) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_of(who))
    }
}

impl Confirmed {
    /// Admit has seen that the server of this process accepts writes. Forgets confirmations of another server.
    pub(super) fn server_accepts_writes(&self, who: &Identity) {
        let mut state = self.0.lock();
        if !state.is_here(who) {
            let (system_identifier, start) = (who.system_identifier.clone(), who.postmaster_start.clone());
            *state = State { server: Some(Postmaster { system_identifier, start }), epochs: Recent::default() };
        }
    }

    /// Returns true if the server of this process has been seen to accept writes.
    pub(super) fn is_known(&self, who: &Identity) -> bool {
        self.0.lock().is_here(who)
    }

    /// Records that the issuer has confirmed the epoch, in a query that began after [`Self::server_accepts_writes`].
    pub(super) fn confirm(&self, who: &Identity, resource: &str, epoch: Epoch) {
        let mut state = self.0.lock();
        if state.is_here(who) {
            state.epochs.insert(resource, epoch);
        }
    }

    /// Returns true if this epoch, or one below it, was confirmed on the server of this process.
    pub(super) fn covers(&self, who: &Identity, resource: &str, epoch: Epoch) -> bool {
        let state = self.0.lock();
        state.is_here(who) && state.epochs.get(resource).is_some_and(|confirmed| confirmed <= epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Epoch = Epoch { generation: 1, token: 5 };

    fn process_of(postmaster: &str) -> Identity {
        Identity {
            pid: 1,
            backend_start: "1".to_owned(),
            system_identifier: "7".to_owned(),
            postmaster_start: postmaster.to_owned(),
        }
    }

    #[test]
    fn a_confirmation_is_for_one_postmaster() {
        let (confirmed, old, new) = (Confirmed::default(), process_of("1"), process_of("2"));
        confirmed.confirm(&old, "r", FIVE);
        assert!(!confirmed.is_known(&old) && !confirmed.covers(&old, "r", FIVE), "it was not seen to accept writes");
        confirmed.server_accepts_writes(&old);
        confirmed.confirm(&old, "r", FIVE);
        confirmed.confirm(&new, "r", FIVE);
        assert!(confirmed.covers(&old, "r", FIVE) && !confirmed.covers(&new, "r", FIVE));
        for (generation, token, covers) in [(1, 4, false), (1, 6, true), (2, 1, true)] {
            assert_eq!(confirmed.covers(&old, "r", Epoch { generation, token }), covers, "{generation}/{token}");
        }
        confirmed.server_accepts_writes(&new);
        assert!(confirmed.is_known(&new) && !confirmed.covers(&new, "r", FIVE));
        confirmed.server_accepts_writes(&old);
        assert!(!confirmed.covers(&old, "r", FIVE), "it may have been another server in between");
    }
}
