//! The protocol as a state machine: which steps are enabled in a state, and the steps of sessions.
//!
//! Owns the choice of the next step. Any enabled step may be next: the model has no time, and no order except cause and
//! effect, so an actor that takes no step is paused. Must never use state that only the judge knows.

use crate::advance::{begin, holders};
use crate::judge;
use crate::scenario::{Client, NOBODY, Scenario, Variant};
use crate::state::*;
use stateright::{Model, Property};

#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub variant: Variant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Steps of the client.
    Write(Session, Resource),
    WriteHidden(Session, Resource),
    Commit(Session),
    Prepare(Session),
    ChangeToken(Session),
    /// Steps of the server: it executes the forwarded message; the reply to a COMMIT arrives.
    Run(Session),
    Acknowledge(Session),
    /// Steps of a session of a proxy.
    BeginWrite(Session),
    Admit(Session),
    AdmitCommits(Session),
    AdmitReplies(Session),
    /// Steps of a proxy's Query for the first tokens of these sessions.
    FirstsLock(Proxy, Sessions),
    FirstsLook(Proxy),
    FirstsCommit(Proxy),
    /// Steps of a proxy's advance.
    Publish(Proxy),
    Look(Proxy),
    Revoke(Proxy),
    Delete(Proxy),
    Terminate(Proxy),
    Mark(Proxy),
    EndBlockers(Proxy),
    Help(Proxy, Resource),
    Reset(Proxy),
    /// Faults.
    ProcessEnds(Session),
    CrashProxy(Proxy),
    CrashServer,
    CommitPrepared,
    DeleteEpoch,
    Notice(Proxy),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let session = |at| SessionState {
            process: Process::Unborn,
            rows: [None; TWO],
            writes: [Write::None; TWO],
            gone: false,
            at: At::Rest,
            admitted: [None; TWO],
            written: [false; TWO],
            activity: Activity::Idle,
            token: self.client(at).token,
            left: self.client(at).transactions,
            outcome: Outcome::Nothing,
        };
        let Scenario { proxy_crashes, server_may_crash, resets, deletions, helps, notices, .. } = self.scenario;
        let server = if server_may_crash { Server::MayCrash } else { Server::Runs };
        vec![State {
            epochs: [None; TWO],
            prepared: None,
            sessions: std::array::from_fn(session),
            proxies: [ProxyState { advance: None, firsts: None, memory: [0; TWO], crashed: false }; TWO],
            budget: Budget { proxy_crashes, server, resets, deletions, helps, notices },
            era: 0,
            newest: [None; TWO],
            highest: [0; TWO],
            wrong: Wrong::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.anything() {
            return;
        }
        for session in 0..self.scenario.clients.len() {
            let is_advancing = state.proxies.iter().any(|it| it.advance.is_some_and(|it| it.by == Some(session)));
            self.actions_of(session, &state.sessions[session], is_advancing, actions);
        }
        for proxy in 0..TWO {
            match state.proxies[proxy].firsts {
                Some(Firsts::Locked(_)) => actions.push(Action::FirstsLook(proxy)),
                Some(Firsts::Looked(_)) => actions.push(Action::FirstsCommit(proxy)),
                None if self.scenario.firsts => {
                    let all = 1..1 << self.scenario.clients.len();
                    actions.extend(all.map(|sessions| Action::FirstsLock(proxy, sessions)));
                }
                None => {}
            }
            match state.proxies[proxy].advance {
                Some(advance) => {
                    actions.push(match advance.step {
                        Step::Publish(_) => Action::Publish(proxy),
                        Step::Look => Action::Look(proxy),
                        Step::Revoke => Action::Revoke(proxy),
                        Step::Delete(_) => Action::Delete(proxy),
                        Step::Terminate => Action::Terminate(proxy),
                        Step::Mark => Action::Mark(proxy),
                    });
                    if self.scenario.guard && matches!(advance.step, Step::Publish(_)) {
                        actions.push(Action::EndBlockers(proxy));
                    }
                }
                None => {
                    if state.budget.helps > 0 {
                        actions.extend((0..self.scenario.resources).map(|resource| Action::Help(proxy, resource)));
                    }
                    if state.budget.resets > 0 {
                        actions.push(Action::Reset(proxy));
                    }
                }
            }
            if state.budget.proxy_crashes > 0 && !state.proxies[proxy].crashed {
                actions.push(Action::CrashProxy(proxy));
            }
            if state.budget.notices > 0 {
                actions.push(Action::Notice(proxy));
            }
        }
        if state.budget.server == Server::MayCrash {
            actions.push(Action::CrashServer);
        }
        if state.prepared.is_some() {
            actions.push(Action::CommitPrepared);
        }
        if state.budget.deletions > 0 {
            actions.push(Action::DeleteEpoch);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        let done = match action {
            Action::Write(session, resource) => self.write(&mut state, session, resource),
            Action::WriteHidden(session, resource) => {
                self.connect(&mut state, session)?;
                state.sessions[session].forward(Statement::Hidden(resource))
            }
            Action::Commit(session) => state.sessions[session].forward(Statement::Commit),
            Action::Prepare(session) => state.sessions[session].forward(Statement::Prepare),
            Action::ChangeToken(session) => {
                state.sessions[session].token = self.client(session).next?;
                Some(())
            }
            Action::Run(session) => self.run(&mut state, session),
            Action::Acknowledge(session) => {
                judge::told_committed(&mut state, session);
                state.sessions[session].rest();
                Some(())
            }
            Action::BeginWrite(session) => self.begin_write(&mut state, session),
            Action::Admit(session) => self.admit(&mut state, session),
            Action::AdmitCommits(session) => admit_commits(&mut state.sessions[session]),
            Action::AdmitReplies(session) => self.admit_replies(&mut state.sessions[session]),
            Action::FirstsLock(proxy, sessions) => self.firsts_lock(&mut state, proxy, sessions),
            Action::FirstsLook(proxy) => self.firsts_look(&mut state, proxy),
            Action::FirstsCommit(proxy) => self.firsts_commit(&mut state, proxy),
            Action::Publish(proxy)
            | Action::Look(proxy)
            | Action::Revoke(proxy)
            | Action::Delete(proxy)
            | Action::Terminate(proxy)
            | Action::Mark(proxy) => self.step(&mut state, proxy),
            Action::EndBlockers(proxy) => self.end_blockers(&mut state, proxy),
            Action::Help(proxy, resource) => self.help(&mut state, proxy, resource),
            Action::Reset(proxy) => self.reset(&mut state, proxy),
            Action::ProcessEnds(session) => self.process_ends(&mut state, session),
            Action::CrashProxy(proxy) => self.crash_proxy(&mut state, proxy),
            Action::CrashServer => self.crash_server(&mut state),
            Action::CommitPrepared => {
                let writes = state.prepared.take()?;
                judge::commit(&mut state, writes);
                Some(())
            }
            Action::DeleteEpoch => self.delete_epoch(&mut state),
            Action::Notice(proxy) => self.notice(&mut state, proxy),
        };
        done.map(|()| state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        judge::properties(self.scenario.reaches)
    }
}

impl Protocol {
    pub fn client(&self, session: Session) -> Client {
        self.scenario.clients.get(session).copied().unwrap_or(NOBODY)
    }

    fn actions_of(&self, session: Session, it: &SessionState, is_advancing: bool, actions: &mut Vec<Action>) {
        if it.process.lives() && (it.gone || it.process != Process::Alive) {
            actions.push(Action::ProcessEnds(session));
        }
        match it.at {
            At::Rest if it.gone => {}
            At::Rest => self.actions_of_client(session, it, actions),
            At::Held(resource) if it.admitted[resource].is_some_and(|epoch| epoch.token == it.token) => {
                actions.push(Action::BeginWrite(session));
            }
            // The session of an advance tries again after the last step.
            At::Held(_) if is_advancing => {}
            At::Held(_) => actions.push(Action::Admit(session)),
            At::Admitting(..) => actions.push(Action::AdmitCommits(session)),
            At::First(_) => {}
            At::Granted { .. } => actions.push(Action::AdmitReplies(session)),
            At::Forwarded(_) => actions.push(Action::Run(session)),
            At::Committed => actions.push(Action::Acknowledge(session)),
        }
    }

    fn actions_of_client(&self, session: Session, it: &SessionState, actions: &mut Vec<Action>) {
        let client = self.client(session);
        let has_written = it.writes.iter().any(|write| *write != Write::None);
        let is_written = |write| matches!(write, Write::Under(epoch, _) if epoch.token == it.token);
        if it.outcome == Outcome::Nothing && (it.left > 0 || has_written) {
            for resource in (0..self.scenario.resources).filter(|at| !is_written(it.writes[*at])) {
                if client.writes >> resource & 1 == 1 {
                    actions.push(Action::Write(session, resource));
                }
                if client.hidden >> resource & 1 == 1 {
                    actions.push(Action::WriteHidden(session, resource));
                }
            }
        }
        if it.process.lives() && client.next.is_some_and(|next| next != it.token) && it.outcome == Outcome::Nothing {
            actions.push(Action::ChangeToken(session));
        }
        if has_written {
            actions.push(Action::Commit(session));
            // The proxy refuses PREPARE TRANSACTION in a session with an admission.
            if client.prepares && it.admitted == [None; TWO] {
                actions.push(Action::Prepare(session));
            }
        }
    }

    /// The holders at this moment, which only an incorrect protocol uses later.
    fn snapshot(&self, state: &State, resource: Resource, to: Epoch) -> Sessions {
        if self.variant == Variant::OneSnapshot { holders(state, resource, to) } else { 0 }
    }

    fn write(&self, state: &mut State, session: Session, resource: Resource) -> Option<()> {
        self.connect(state, session)?;
        let proxy = self.client(session).proxy?;
        let it = &mut state.sessions[session];
        if self.variant == Variant::ComparesInMemory {
            let highest = &mut state.proxies[proxy].memory[resource];
            *highest = it.token.max(*highest);
            state.highest[resource] = state.highest[resource].max(it.token);
            if it.token < *highest {
                self.refuse_as_stale(state, session, resource);
                return Some(());
            }
            let epoch = Epoch { generation: 1, token: it.token, era: 0 };
            return it.forward(Statement::Write(resource, epoch));
        }
        if state.proxies[proxy].memory[resource] > it.token {
            self.refuse_as_stale(state, session, resource);
            return Some(());
        }
        it.at = At::Held(resource);
        if it.admitted[resource].is_some_and(|epoch| epoch.token == it.token) {
            return self.begin_write(state, session);
        }
        Some(())
    }

    /// The session is admitted, and becomes busy in the same step.
    fn begin_write(&self, state: &mut State, session: Session) -> Option<()> {
        let it = &mut state.sessions[session];
        let At::Held(resource) = it.at else { return None };
        let epoch = it.admitted[resource]?;
        it.written[resource] = true;
        it.forward(Statement::Write(resource, epoch))
    }

    /// An Admit reads the epoch, and acts on it.
    fn admit(&self, state: &mut State, session: Session) -> Option<()> {
        let proxy = self.client(session).proxy?;
        let it = state.sessions[session];
        let At::Held(resource) = it.at else { return None };
        if self.is_locked_by_firsts(state, resource) {
            return None;
        }
        let token = it.token;
        let first = Epoch { generation: 1, token, era: 0 };
        let to = match state.epochs[resource] {
            None if self.variant == Variant::AdmitsMissingRow => {
                state.sessions[session].at = At::Admitting(resource, first);
                return Some(());
            }
            None => first,
            Some(row) if token < row.epoch.token => {
                self.refuse_as_stale(state, session, resource);
                return Some(());
            }
            Some(row) if token == row.epoch.token && row.drained => {
                state.sessions[session].at = At::Admitting(resource, row.epoch);
                return Some(());
            }
            Some(row) => Epoch { token, ..row.epoch },
        };
        let is_there = state.epochs[resource].is_some_and(|row| row.epoch == to);
        let step = if is_there { Step::Look } else { Step::Publish(self.snapshot(state, resource, to)) };
        if it.written[resource] && self.variant != Variant::KeepsOwnWrites {
            // LF003 before anything is raised: the session has written under a lower admission.
            state.sessions[session].refuse(Outcome::WrittenUnderAnotherToken);
            return Some(());
        }
        begin(state, proxy, Advance { resource, to, by: Some(session), step })
    }

    fn admit_replies(&self, it: &mut SessionState) -> Option<()> {
        let At::Granted { resource, epoch, late } = it.at else { return None };
        if late && self.variant != Variant::DropsFloors {
            self.release(it, resource);
        } else {
            it.admitted[resource] = Some(epoch);
        }
        it.at = At::Held(resource);
        Some(())
    }

    /// Closes the proxy's sessions. The server may still execute their forwarded messages.
    fn crash_proxy(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        state.budget.proxy_crashes -= 1;
        let firsts = state.proxies[proxy].firsts;
        state.proxies[proxy] = ProxyState { advance: None, firsts, memory: [0; TWO], crashed: true };
        for session in 0..SESSIONS {
            let it = &mut state.sessions[session];
            if self.client(session).proxy == Some(proxy) && it.process.lives() {
                let at = it.at;
                let (rows, writes) = (it.rows, it.writes);
                it.close();
                // The crash does not stop an Admit that has begun, or a statement that the server has received.
                if matches!(at, At::Admitting(..) | At::First(_) | At::Forwarded(_)) {
                    it.at = at;
                }
                (it.rows, it.writes) = (rows, writes);
            }
        }
        Some(())
    }

    /// A notification only means "read again".
    fn notice(&self, state: &mut State, proxy: Proxy) -> Option<()> {
        state.budget.notices -= 1;
        let read = state.epochs[0].map_or(0, |row| row.epoch.token);
        state.proxies[proxy].memory[0] = if self.variant == Variant::BelievesNotices { 3 } else { read };
        Some(())
    }
}

fn admit_commits(it: &mut SessionState) -> Option<()> {
    let At::Admitting(resource, epoch) = it.at else { return None };
    if it.process.lives() {
        it.rows[resource] = Some(epoch);
    }
    it.at = if it.gone { At::Rest } else { At::Granted { resource, epoch, late: false } };
    Some(())
}

impl SessionState {
    fn forward(&mut self, statement: Statement) -> Option<()> {
        self.activity = Activity::Busy;
        self.at = At::Forwarded(statement);
        Some(())
    }

    /// ReadyForQuery reports that no transaction is open.
    pub fn rest(&mut self) {
        self.at = At::Rest;
        self.activity = Activity::Idle;
        self.written = [false; TWO];
    }

    /// Refuses the message that is held back. The client then only ends its transaction.
    pub fn refuse(&mut self, outcome: Outcome) {
        self.at = At::Rest;
        self.outcome = outcome;
        self.left = 0;
    }

    /// Closes a session that is no longer used. Clears its values, so that equivalent states are equal.
    pub fn close(&mut self) {
        self.gone = true;
        self.at = At::Rest;
        self.writes = [Write::None; TWO];
        self.admitted = [None; TWO];
        self.left = 0;
        self.rest();
    }
}

/// The sessions of these bits.
pub fn pick(sessions: Sessions) -> impl Iterator<Item = Session> {
    (0..SESSIONS).filter(move |at| sessions >> at & 1 == 1)
}
