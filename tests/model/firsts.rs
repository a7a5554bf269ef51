//! First tokens: Publish, Mark and Admit in one Query, which several sessions of a proxy share.
//!
//! Owns the steps of that Query. Must never admit to an epoch that the Query has not created.

use crate::protocol::{Protocol, pick};
use crate::scenario::Variant;
use crate::state::*;

impl Protocol {
    /// Tries the locks of the resources without waiting. Omits sessions that want the same resource as another, and
    /// sessions that may have written.
    pub fn firsts_lock(&self, state: &mut State, proxy: Proxy, sessions: Sessions) -> Option<()> {
        let (mut wanted, mut locked) = ([false; TWO], 0);
        for session in pick(sessions) {
            let it = &state.sessions[session];
            let At::Held(resource) = it.at else { return None };
            let is_advancing = state.proxies.iter().any(|it| it.advance.is_some_and(|it| it.by == Some(session)));
            let is_due = self.client(session).proxy == Some(proxy) && it.admitted[resource].is_none() && !is_advancing;
            if !is_due || it.written[resource] || std::mem::replace(&mut wanted[resource], true) {
                return None;
            }
            // Otherwise the session uses the ordinary Admit.
            if self.variant == Variant::FirstsWithoutLock || !self.is_locked(state, resource) {
                locked |= 1 << session;
                state.sessions[session].at = At::First(resource);
            }
        }
        state.proxies[proxy].firsts = (locked > 0).then_some(Firsts::Locked(locked));
        (locked > 0).then_some(())
    }

    /// Uses only the state that was committed before the locks were taken.
    pub fn firsts_look(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        let Firsts::Locked(sessions) = state.proxies[proxy].firsts? else { return None };
        let mut free = 0;
        for session in pick(sessions) {
            let At::First(resource) = state.sessions[session].at else { continue };
            let has_epoch = state.epochs[resource].is_some() && self.variant != Variant::FirstsPastEpochs;
            let is_vacant = !state.sessions.iter().any(|it| it.rows[resource].is_some());
            match !has_epoch && is_vacant && state.prepared.is_none() {
                true => free |= 1 << session,
                false => self.end_first(state, session, None),
            }
        }
        state.proxies[proxy].firsts = (free > 0).then_some(Firsts::Looked(free));
        Some(())
    }

    /// Creates the epochs and the admissions in one step. The table's key prevents a second epoch.
    pub fn firsts_commit(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        let Firsts::Looked(sessions) = state.proxies[proxy].firsts.take()? else { return None };
        for session in pick(sessions) {
            let At::First(resource) = state.sessions[session].at else { continue };
            let era = if resource == 0 { state.era } else { 0 };
            let epoch = Epoch { generation: 1, token: state.sessions[session].token, era };
            let is_blind = matches!(self.variant, Variant::FirstsPastEpochs | Variant::FirstsWithoutLock);
            let is_made = state.epochs[resource].is_none() || is_blind;
            if is_made {
                state.epochs[resource] = Some(EpochRow { epoch, drained: true });
                state.highest[resource] = state.highest[resource].max(epoch.token);
            }
            self.end_first(state, session, is_made.then_some(epoch));
        }
        Some(())
    }

    /// The reply to the session is under way, or the session uses the ordinary Admit.
    fn end_first(&self, state: &mut State, session: Session, made: Option<Epoch>) {
        let it = &mut state.sessions[session];
        let At::First(resource) = it.at else { return };
        if it.process.lives() && made.is_some() {
            it.rows[resource] = made;
        }
        it.at = match made {
            _ if it.gone => At::Rest,
            Some(epoch) => At::Granted { resource, epoch, late: false },
            None => At::Held(resource),
        };
    }

    /// Returns true if such a Query holds the exclusive lock of the resource.
    pub fn is_locked_by_firsts(&self, state: &State, resource: Resource) -> bool {
        let has = |session: Session| state.sessions[session].at == At::First(resource);
        let queries = state.proxies.iter().filter_map(|it| it.firsts);
        self.variant != Variant::FirstsWithoutLock && queries.map(Firsts::sessions).any(|all| pick(all).any(has))
    }
}
