//! Publish, drain and Mark: the steps by which a proxy advances a resource to an epoch.
//!
//! Owns the steps of an advance. Each is one operation of the store, or one look at the sessions of the proxy. Must
//! never combine two of them: the model tests what can happen between them.

use crate::judge;
use crate::protocol::{Protocol, pick};
use crate::scenario::Variant;
use crate::state::*;

impl Protocol {
    /// Executes the next step of the advance.
    pub fn step(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        let advance = state.proxies[proxy].advance?;
        let next = match advance.step {
            Step::Publish(holders) => return self.publish(state, proxy, advance, holders),
            Step::Look => Some(self.look(state, advance)),
            Step::Revoke => self.revoke(state, proxy, advance),
            Step::Delete(spared) => self.delete(state, advance, spared),
            Step::Terminate => Some(self.terminate(state, proxy, advance)),
            Step::Mark => {
                self.mark(state, advance);
                None
            }
        };
        state.proxies[proxy].advance = next.map(|step| Advance { step, ..advance });
        Some(())
    }

    /// Under the exclusive lock of the resource: waits for Admits and for guarded writes. Raises nothing in a
    /// generation other than the one for which it was decided.
    fn publish(&self, state: &mut State, proxy: Proxy, advance: Advance, holders: Sessions) -> Option<()> {
        let Advance { resource, to, .. } = advance;
        if self.is_locked(state, resource) {
            return None;
        }
        let raises = |row: EpochRow| row.epoch.generation == to.generation && row.epoch.is_below(to);
        let to = match state.epochs[resource] {
            Some(row) => Epoch { era: row.epoch.era, ..to },
            None => self.first_epoch(state, resource, to),
        };
        if state.epochs[resource].is_none_or(raises) {
            let drained = match self.variant {
                Variant::DrainsNobody => true,
                Variant::OneSnapshot => holders == 0,
                _ => false,
            };
            state.epochs[resource] = Some(EpochRow { epoch: to, drained });
            state.highest[resource] = state.highest[resource].max(to.token);
        }
        let is_there = state.epochs[resource].is_some_and(|row| row.epoch == to && !row.drained);
        state.proxies[proxy].advance = is_there.then_some(Advance { step: Step::Look, to, ..advance });
        Some(())
    }

    /// The lowest new epoch: above all admissions.
    fn first_epoch(&self, state: &State, resource: Resource, to: Epoch) -> Epoch {
        let admitted = state.sessions.iter().filter_map(|it| it.rows[resource]).map(|row| row.generation);
        let is_blind = self.variant == Variant::RestartsAtGenerationOne;
        let generation = if is_blind { 1 } else { 1 + admitted.max().unwrap_or(0) };
        Epoch { generation, era: if resource == 0 { state.era } else { 0 }, ..to }
    }

    /// An operator deletes the row by hand. Waits for Admits, which have locked the row.
    pub fn delete_epoch(&self, state: &mut State) -> Option<()> {
        if state.sessions.iter().any(|it| matches!(it.at, At::Admitting(0, _))) {
            return None;
        }
        state.budget.deletions = state.budget.deletions.checked_sub(1)?;
        state.era = state.epochs[0].take()?.epoch.era + 1;
        Some(())
    }

    /// Returns true if a process holds the lock of the resource.
    pub fn is_locked(&self, state: &State, resource: Resource) -> bool {
        let holds = |writes: &[Write; TWO]| writes[resource].holds(Lock::OfResource);
        let admits = |at: At| matches!(at, At::Admitting(its, _) if its == resource);
        self.is_locked_by_firsts(state, resource)
            || state.prepared.as_ref().is_some_and(holds)
            || state.sessions.iter().any(|it| holds(&it.writes))
            || self.variant != Variant::AdmitsWithoutLock && state.sessions.iter().any(|it| admits(it.at))
    }

    /// Terminates the processes whose guarded writes block the Publish.
    pub fn end_blockers(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        let Advance { resource, step: Step::Publish(_), .. } = state.proxies[proxy].advance? else { return None };
        let is_blocking =
            |it: &&mut SessionState| it.process == Process::Alive && it.writes[resource].holds(Lock::OfResource);
        let blocking = state.sessions.iter_mut().filter(is_blocking);
        (blocking.map(|it| it.process = Process::Blocking).count() > 0).then_some(())
    }

    /// Deletes the rows of dead processes, and checks whether others remain below the epoch.
    fn look(&self, state: &mut State, Advance { resource, to, .. }: Advance) -> Step {
        for dead in 0..SESSIONS {
            let it = state.sessions[dead];
            if it.process.lives() || !it.rows[resource].is_some_and(|row| row.is_below(to)) {
                continue;
            }
            state.sessions[dead].rows[resource] = None;
            if self.variant == Variant::KnowsPidOnly {
                let same = |other: &Session| self.client(*other).pid == self.client(dead).pid;
                (0..SESSIONS).filter(same).for_each(|other| state.sessions[other].rows[resource] = None);
            }
        }
        if holders(state, resource, to) == 0 { Step::Mark } else { Step::Revoke }
    }

    /// Revokes the sessions of this proxy below the epoch, each with its activity at that moment. Spares those that
    /// have nothing to commit. None: the session that raises its own token has written under the old one.
    fn revoke(&self, state: &mut State, proxy: Proxy, advance: Advance) -> Option<Step> {
        let Advance { resource, to, by, .. } = advance;
        let mut spared = 0;
        for session in pick(holders(state, resource, to)) {
            let it = &mut state.sessions[session];
            if self.client(session).proxy != Some(proxy) || it.gone {
                continue;
            }
            let has_written = it.written[resource] || it.writes[resource] != Write::None;
            if by == Some(session) && has_written && self.variant != Variant::KeepsOwnWrites {
                it.refuse(Outcome::WrittenUnderAnotherToken);
                return None;
            }
            it.admitted[resource] = it.admitted[resource].filter(|epoch| !epoch.is_below(to));
            if let At::Granted { resource: its, epoch, late } = &mut it.at {
                *late |= *its == resource && epoch.is_below(to);
            }
            let is_spared = match it.activity {
                _ if by == Some(session) => true,
                Activity::Idle => true,
                Activity::Waiting => !has_written || self.variant == Variant::ReleasesWriters,
                Activity::Busy => false,
            };
            spared |= u8::from(is_spared) << session;
        }
        Some(Step::Delete(spared))
    }

    /// Deletes the rows of the spared sessions.
    fn delete(&self, state: &mut State, advance: Advance, spared: Sessions) -> Option<Step> {
        let Advance { resource, to, by, .. } = advance;
        for session in pick(holders(state, resource, to) & spared) {
            let it = &mut state.sessions[session];
            if !self.release(it, resource) && by == Some(session) && it.process == Process::Alive {
                it.refuse(Outcome::WrittenUnderAnotherToken);
                return None;
            }
        }
        Some(if holders(state, resource, to) == 0 { Step::Mark } else { Step::Terminate })
    }

    /// Deletes the row of a live process, unless the process is being terminated or the guard has relied on the row for
    /// a write.
    pub fn release(&self, it: &mut SessionState, resource: Resource) -> bool {
        let is_ending = it.process == Process::Ending && self.variant != Variant::ReleasesWhatIsEnding;
        let is_guarded = it.writes[resource].holds(Lock::OfProcess) && self.variant != Variant::DeletesUnderGuard;
        if is_ending || is_guarded {
            return false;
        }
        it.rows[resource] = None;
        true
    }

    /// Terminates the remaining processes: sessions of this proxy immediately, those of other proxies after a grace
    /// period, which the model does not measure. Terminates none if the current epoch is lower, because its row was
    /// deleted in the meantime.
    fn terminate(&self, state: &mut State, proxy: Proxy, Advance { resource, to, .. }: Advance) -> Step {
        if state.epochs[resource].is_none_or(|row| row.epoch.is_below(to)) {
            return Step::Look;
        }
        for session in pick(holders(state, resource, to)) {
            let it = &mut state.sessions[session];
            if self.variant == Variant::DeletesForeignRows && self.client(session).proxy != Some(proxy) {
                it.rows[resource] = None;
            } else if it.process == Process::Alive {
                it.process = Process::Ending;
            }
        }
        Step::Look
    }

    /// Names the drained epoch, and checks the admissions again.
    fn mark(&self, state: &mut State, Advance { resource, to, .. }: Advance) {
        let is_prepared = state.prepared.is_some_and(|writes| writes[resource] != Write::None);
        let is_clear = holders(state, resource, to) == 0 && (!is_prepared || self.variant == Variant::IgnoresPrepared);
        let is_blind = self.variant == Variant::MarksWhateverIsThere;
        if let Some(row) = state.epochs[resource].as_mut().filter(|row| is_blind || row.epoch == to && is_clear) {
            row.drained = true;
        }
    }

    /// A proxy settles an epoch after a notification or an operator's reset.
    pub fn help(&self, state: &mut State, proxy: Proxy, resource: Resource) -> Option<()> {
        let row = state.epochs[resource].filter(|row| !row.drained)?;
        state.budget.helps = state.budget.helps.checked_sub(1)?;
        begin(state, proxy, Advance { resource, to: row.epoch, by: None, step: Step::Look })
    }

    /// A forced reset to the first token.
    pub fn reset(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        let before = state.epochs[0]?.epoch;
        state.budget.resets = state.budget.resets.checked_sub(1)?;
        let generation = before.generation + u8::from(self.variant != Variant::KeepsGeneration);
        let to = Epoch { generation, token: 1, era: before.era + 1 };
        if self.is_locked(state, 0) {
            return None;
        }
        begin(state, proxy, Advance { resource: 0, to, by: None, step: Step::Look })?;
        state.epochs[0] = Some(EpochRow { epoch: to, drained: false });
        Some(())
    }

    /// A write or an Admit receives that its token is not the highest.
    pub fn refuse_as_stale(&self, state: &mut State, session: Session, resource: Resource) {
        let it = &mut state.sessions[session];
        it.refuse(Outcome::Stale);
        let token = it.token;
        judge::told_stale(state, resource, token);
    }
}

/// The live processes that are admitted below the epoch.
pub fn holders(state: &State, resource: Resource, bound: Epoch) -> Sessions {
    let is_below = |it: &SessionState| it.process.lives() && it.rows[resource].is_some_and(|row| row.is_below(bound));
    state.sessions.iter().enumerate().fold(0, |all, (at, it)| all | u8::from(is_below(it)) << at)
}

/// Starts an advance. A proxy runs one at a time.
pub fn begin(state: &mut State, proxy: Proxy, advance: Advance) -> Option<()> {
    if state.proxies[proxy].advance.is_some() {
        return None;
    }
    state.proxies[proxy].advance = Some(advance);
    Some(())
}
