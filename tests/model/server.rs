//! The server: its processes, their statements, and the guard.
//!
//! Owns the effects of a forwarded statement. Must never use the state of proxies: processes only have the messages
//! that they receive.

use crate::judge;
use crate::protocol::Protocol;
use crate::scenario::Variant;
use crate::state::*;

impl Protocol {
    /// The process begins with the first statement, unless another process has its pid.
    pub fn connect(&self, state: &mut State, session: Session) -> Option<()> {
        let pid = self.client(session).pid;
        let has_pid = |other: Session| {
            other != session
                && self.client(other).pid == pid
                && pid > 0
                && state.sessions[other].process != Process::Ended
        };
        if state.sessions[session].process == Process::Unborn {
            if (0..session).any(has_pid) {
                return None;
            }
            state.sessions[session].process = Process::Alive;
        }
        Some(())
    }

    /// The server executes its message. The reply arrives in the same step, except the reply to a COMMIT.
    pub fn run(&self, state: &mut State, session: Session) -> Option<()> {
        let At::Forwarded(statement) = state.sessions[session].at else { return None };
        let waits = |resource: Resource| {
            state.sessions[session].rows[resource].is_none() && self.is_locked_by_firsts(state, resource)
        };
        match statement {
            Statement::Write(resource, _) | Statement::Hidden(resource) if self.scenario.guard && waits(resource) => {
                return None;
            }
            Statement::Write(resource, epoch) => {
                let write = match self.scenario.guard {
                    true => self.guard(state, session, resource),
                    false => Some(Write::Under(epoch, Lock::None)),
                };
                self.run_write(state, session, resource, write);
            }
            Statement::Hidden(resource) => {
                let write = self.guard(state, session, resource);
                self.run_write(state, session, resource, write);
            }
            Statement::Commit => {
                let writes = std::mem::replace(&mut state.sessions[session].writes, [Write::None; TWO]);
                judge::commit(state, writes);
                let it = &mut state.sessions[session];
                it.at = if it.gone { At::Rest } else { At::Committed };
            }
            Statement::Prepare => {
                if state.prepared.is_some() {
                    return None;
                }
                state.prepared = Some(std::mem::replace(&mut state.sessions[session].writes, [Write::None; TWO]));
                state.sessions[session].rest();
            }
        }
        Some(())
    }

    fn run_write(&self, state: &mut State, session: Session, resource: Resource, write: Option<Write>) {
        let client = self.client(session);
        let it = &mut state.sessions[session];
        let Some(write) = write else {
            it.refuse(Outcome::Guarded);
            it.writes = [Write::None; TWO];
            it.rest();
            let (token, highest) = (it.token, state.epochs[resource].map(|row| row.epoch.token));
            if highest.is_some_and(|highest| token < highest) {
                judge::told_stale(state, resource, token);
            }
            return;
        };
        if it.writes == [Write::None; TWO] {
            it.left = it.left.saturating_sub(1);
        }
        if it.writes[resource] == Write::None {
            it.writes[resource] = write;
        }
        // CommandComplete comes before the commit.
        let is_believed = client.flushes && self.variant == Variant::BelievesCommandComplete;
        it.at = if is_believed { At::Committed } else { At::Rest };
        it.activity = match client.flushes {
            // The last ReadyForQuery came before the transaction.
            true if self.variant == Variant::TakesFlushForIdle => Activity::Idle,
            true => Activity::Busy,
            false => Activity::Waiting,
        };
    }

    /// `fencegate.check_write`: decides by the admission of the process, or by the current epoch. None: it raises an
    /// error.
    fn guard(&self, state: &State, session: Session, resource: Resource) -> Option<Write> {
        let it = &state.sessions[session];
        if let Some(row) = it.rows[resource].filter(|row| row.token == it.token) {
            return Some(Write::Under(row, Lock::OfProcess));
        }
        let row = state.epochs[resource].filter(|row| row.drained && row.epoch.token == it.token)?;
        let is_blind = self.variant == Variant::GuardsWithoutLock;
        Some(Write::Under(row.epoch, if is_blind { Lock::None } else { Lock::OfResource }))
    }

    pub fn process_ends(&self, state: &mut State, session: Session) -> Option<()> {
        let it = state.sessions[session];
        if !it.gone && it.process == Process::Ending {
            judge::told_overtaken(state, session);
            // If a message was under way, the client receives that the outcome is unknown.
            let is_certain = it.at == At::Rest && it.activity == Activity::Waiting;
            if is_certain || self.variant == Variant::SaysRolledBack {
                judge::told_rolled_back(state, session);
            }
        }
        let it = &mut state.sessions[session];
        if !it.gone {
            it.outcome = Outcome::Ended;
        }
        it.process = Process::Ended;
        it.close();
        Some(())
    }

    /// Ends all processes and deletes unlogged data.
    pub fn crash_server(&self, state: &mut State) -> Option<()> {
        let loses = |it: &SessionState| it.process.lives() && it.rows != [None; TWO];
        state.budget.server = Server::HasCrashed(state.sessions.iter().any(loses));
        if self.variant == Variant::ForgetsEpochs {
            state.epochs = [None; TWO];
        }
        for it in state.sessions.iter_mut().filter(|it| it.process != Process::Unborn) {
            it.process = Process::Ended;
            it.rows = [None; TWO];
            it.close();
        }
        Some(())
    }
}
