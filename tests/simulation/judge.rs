//! The judge: what may never happen, whatever else does.
//!
//! Owns what was committed, in order, and what clients were told of it. Must never ask the code under test what is right.

use super::sql::{Fence, Table};
use super::world::Dice;
use fencegate_fence::session::{Epoch, Token};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// A write that the server has done, and not yet committed.
#[derive(Clone, Debug)]
pub struct Write {
    pub id: u64,
    pub fence: Fence,
    /// The row that it has changed, where that was there before.
    pub row: Option<(Table, u8)>,
    /// The generation of its resource, and the token that its session presented, when it was done.
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
    /// The highest that a client may present, and those that the election has given.
    issued: Token,
    elected: BTreeSet<Token>,
    resets: u64,
    wrong: Option<String>,
    /// How often what was seen.
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

    /// A client was told that the write is committed.
    pub fn acknowledged(&self, id: u64) {
        let mut state = self.state();
        if !state.committed.contains(&id) && !state.lost.contains(&id) {
            state.is_wrong(format!("write {id} is acknowledged and not committed"));
        }
        state.see("acknowledged");
    }

    /// A client was told that the write is not done.
    pub fn refused(&self, id: u64, why: &'static str) {
        let mut state = self.state();
        if state.committed.contains(&id) {
            state.is_wrong(format!("write {id} is committed, and its client was told: {why}"));
        }
        state.refused.insert(id, why);
        state.see(why);
    }

    /// The election has given this token.
    pub fn elected(&self, token: Token) {
        self.state().elected.insert(token);
        self.presented(token);
    }

    /// One of the last tokens that the election has given.
    pub fn some_elected(&self, dice: &mut Dice) -> Token {
        let state = self.state();
        state.elected.iter().rev().nth(dice.below(state.elected.len().min(4))).copied().unwrap_or(1)
    }

    /// Somebody presents this token, whoever has given it.
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

    /// A client was told that its token is stale.
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

    /// How many writes are committed.
    pub fn length(&self) -> usize {
        self.state().log.len()
    }

    /// All but the first so many are lost with the server that had them.
    pub fn failed_over(&self, length: usize) {
        let mut state = self.state();
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

    /// Something is wrong that others have found.
    pub fn object(&self, why: String) {
        self.state().is_wrong(why);
    }

    /// Something was seen that histories should show.
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
    /// What was wrong first is told.
    fn is_wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}
