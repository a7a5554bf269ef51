//! The judge: the events that must never happen, under any faults.
//!
//! Owns the commits, in order, and the replies to clients about them. Must never use the code under test to decide.

use super::sql::{Fence, Table};
use super::world::Dice;
use fencegate_fence::session::{Epoch, Token};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// A write that the server has executed but not yet committed.
#[derive(Clone, Debug)]
pub struct Write {
    pub id: u64,
    pub fence: Fence,
    /// The row that it has changed, if the row existed before.
    pub row: Option<(Table, u8)>,
    /// The generation of its resource, and the token of its session, at the time of the write.
    pub epoch: Option<Epoch>,
}

#[derive(Default)]
pub struct Judge(Mutex<State>);

#[derive(Default)]
struct State {
    log: Vec<Write>,
    committed: HashSet<u64>,
    refused: HashMap<u64, &'static str>,
    /// Committed, and lost with the server that a standby has replaced.
    lost: HashSet<u64>,
    highest: BTreeMap<Fence, Epoch>,
    /// The highest token that a client may present, and the tokens that the election has issued.
    issued: Token,
    elected: BTreeSet<Token>,
    resets: u64,
    /// The leader's token when a standby replaced the server, if an election outside the database has it.
    known_at_failover: Option<Token>,
    wrong: Option<String>,
    /// How often each event was seen.
    seen: BTreeMap<&'static str, u64>,
}

impl Judge {
    /// The writes of one transaction are committed.
    pub fn committed(&self, writes: Vec<Write>) {
        let mut state = self.state();
        for write in writes {
            if let Some(why) = state.refused.get(&write.id) {
                let why = format!("write {} of {} was refused ({why}) and is committed", write.id, write.fence.name());
                state.is_wrong(why);
            }
            if let Some(epoch) = write.epoch {
                let known = state.known_at_failover.filter(|_| write.fence.name() == Table::Jobs.name());
                if let Some(known) = known.filter(|known| epoch.token < *known && state.resets == 0) {
                    let why = format!(
                        "write {} under {epoch:?} is committed after a failover, before which {known} was elected",
                        write.id
                    );
                    state.is_wrong(why);
                }
                let highest = state.highest.get(&write.fence).copied();
                if highest.is_some_and(|highest| epoch < highest) {
                    let fence = write.fence.name();
                    let why = format!("write {} to {fence} under {epoch:?} is committed after {highest:?}", write.id);
                    state.is_wrong(why);
                }
                state.highest.insert(write.fence, epoch);
            }
            state.committed.insert(write.id);
            state.log.push(write);
            state.see("commit");
        }
    }

    /// A client received that the write is committed.
    pub fn acknowledged(&self, id: u64) {
        let mut state = self.state();
        if !state.committed.contains(&id) && !state.lost.contains(&id) {
            state.is_wrong(format!("write {id} is acknowledged and not committed"));
        }
        state.see("acknowledged");
    }

    /// A client received that the write was not executed.
    pub fn refused(&self, id: u64, why: &'static str) {
        let mut state = self.state();
        if state.committed.contains(&id) {
            state.is_wrong(format!("write {id} is committed, and its client was told: {why}"));
        }
        state.refused.insert(id, why);
        state.see(why);
    }

    /// The election has issued this token.
    pub fn elected(&self, token: Token) {
        self.state().elected.insert(token);
        self.presented(token);
    }

    /// One of the last tokens that the election has issued.
    pub fn some_elected(&self, dice: &mut Dice) -> Token {
        let state = self.state();
        state.elected.iter().rev().nth(dice.below(state.elected.len().min(4))).copied().unwrap_or(1)
    }

    /// A session presents this token, whatever its source.
    pub fn presented(&self, token: Token) {
        let mut state = self.state();
        state.issued = state.issued.max(token);
    }

    /// A fence was raised to this token.
    pub fn raised(&self, resource: &str, token: Token) {
        let mut state = self.state();
        if resource == Table::Jobs.name() && !state.elected.contains(&token) {
            state.is_wrong(format!("the fence of {resource} was raised to {token}, which no election has given"));
        }
    }

    /// A client received that its token is stale.
    pub fn told_stale(&self, presented: Token) {
        let mut state = self.state();
        if presented >= state.issued && state.resets == 0 {
            state.is_wrong(format!("the leader under {presented} is told LF001, and nobody has overtaken it"));
        }
        state.see("told stale");
    }

    /// An operator resets fences.
    pub fn reset(&self) {
        self.state().resets += 1;
    }

    /// Number of committed writes.
    pub fn length(&self) -> usize {
        self.state().log.len()
    }

    /// All commits after the first `length` ones are lost with their server. `is_elected_elsewhere`: the election is
    /// not lost, so deposed leaders must not write again even if their successor's epoch is lost.
    pub fn failed_over(&self, length: usize, is_elected_elsewhere: bool) {
        let mut state = self.state();
        state.known_at_failover = state.elected.last().copied().filter(|_| is_elected_elsewhere);
        let kept = length.min(state.log.len());
        let lost: Vec<u64> = state.log.split_off(kept).into_iter().map(|it| it.id).collect();
        state.committed.retain(|id| !lost.contains(id));
        state.lost.extend(lost);
        let mut highest = BTreeMap::new();
        for write in &state.log {
            highest.extend(write.epoch.map(|epoch| (write.fence, epoch)));
        }
        state.highest = highest;
    }

    /// Reports a violation that another part has found.
    pub fn object(&self, why: String) {
        self.state().is_wrong(why);
    }

    /// Records an event that histories should show.
    pub fn see(&self, what: &'static str) {
        self.state().see(what);
    }

    pub fn wrong(&self) -> Option<String> {
        self.state().wrong.clone()
    }

    pub fn seen(&self) -> BTreeMap<&'static str, u64> {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    /// Reports the first violation.
    fn is_wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}
