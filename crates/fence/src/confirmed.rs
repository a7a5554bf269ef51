//! Epochs that their issuer has confirmed since the current server accepts writes.
//!
//! A promoted standby and a restored backup may lack the last epochs. A server that accepts writes loses none and never changes
//! its timeline until its postmaster ends. So a confirmation is valid for one postmaster, which Admit has seen out of recovery.
//!
//! Must never keep a confirmation from another postmaster, nor count a query of the issuer that began before Admit has seen
//! this one accept writes.

use super::recent::Recent;
use super::session::{Epoch, Identity};
use fencegate_policy::{Issuer, Resource};
use parking_lot::Mutex;

/// The confirmed epochs of the server that was last seen. In memory, so a new proxy process has none.
#[derive(Debug, Default)]
pub(super) struct Confirmed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    server: Option<Postmaster>,
    /// For each resource, an epoch that was confirmed, and by which issuer. All lost epochs of that issuer are below it.
    epochs: Recent<(Epoch, Issuer)>,
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

    /// Records that the resource's issuer has confirmed the epoch, in a query that began after
    /// [`Self::server_accepts_writes`]. Ignores a resource without an issuer.
    pub(super) fn confirm(&self, who: &Identity, resource: &Resource, epoch: Epoch) {
        let mut state = self.0.lock();
        if let Some(issuer) = resource.issuer.as_ref().filter(|_| state.is_here(who)) {
            state.epochs.insert(&resource.name, (epoch, issuer.clone()));
        }
    }

    /// Returns true if the resource's issuer has confirmed this epoch, or one below it, on the server of this process. Also if
    /// the resource has no issuer.
    pub(super) fn covers(&self, who: &Identity, resource: &Resource, epoch: Epoch) -> bool {
        let Some(issuer) = &resource.issuer else { return true };
        let state = self.0.lock();
        state.is_here(who) && state.epochs.get(&resource.name).is_some_and(|(it, by)| *it <= epoch && by == issuer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const FIVE: Epoch = Epoch { generation: 1, token: 5 };

    fn process_of(postmaster: &str) -> Identity {
        Identity {
            pid: 1,
            backend_start: "1".to_owned(),
            system_identifier: "7".to_owned(),
            postmaster_start: postmaster.to_owned(),
        }
    }

    /// The only resource of a policy, with this line.
    fn resource(issuer: &str) -> Arc<Resource> {
        let text = format!("version: 1\nresources:\n  - {{name: r, tables: [public.t]{issuer}}}\n");
        fencegate_policy::join([("a.yaml".into(), Ok(text.into()))]).unwrap().resources[0].clone()
    }

    #[test]
    fn a_confirmation_is_for_one_postmaster() {
        let (confirmed, old, new) = (Confirmed::default(), process_of("1"), process_of("2"));
        let r = &resource(", election: /r");
        confirmed.confirm(&old, r, FIVE);
        assert!(!confirmed.is_known(&old) && !confirmed.covers(&old, r, FIVE), "it was not seen to accept writes");
        confirmed.server_accepts_writes(&old);
        confirmed.confirm(&old, r, FIVE);
        confirmed.confirm(&new, r, FIVE);
        assert!(confirmed.covers(&old, r, FIVE) && !confirmed.covers(&new, r, FIVE));
        for (generation, token, covers) in [(1, 4, false), (1, 6, true), (2, 1, true)] {
            assert_eq!(confirmed.covers(&old, r, Epoch { generation, token }), covers, "{generation}/{token}");
        }
        confirmed.server_accepts_writes(&new);
        assert!(confirmed.is_known(&new) && !confirmed.covers(&new, r, FIVE));
        confirmed.server_accepts_writes(&old);
        assert!(!confirmed.covers(&old, r, FIVE), "it may have been another server in between");
    }

    /// Policies may be reloaded.
    #[test]
    fn a_confirmation_is_by_one_issuer() {
        let (confirmed, who) = (Confirmed::default(), process_of("1"));
        confirmed.server_accepts_writes(&who);
        let (without, with) = (resource(""), resource(", election: /r"));
        confirmed.confirm(&who, &without, FIVE);
        assert!(confirmed.covers(&who, &without, FIVE) && !confirmed.covers(&who, &with, FIVE));
        confirmed.confirm(&who, &with, FIVE);
        assert!(confirmed.covers(&who, &with, FIVE));
        for other in [", election: /s", ", lease: r"] {
            assert!(!confirmed.covers(&who, &resource(other), FIVE), "{other}");
        }
    }
}
