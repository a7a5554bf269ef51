//! State that the fence and a session share: the session's identity at the server, the
//! resources that its server process may write, and whether that process is idle.
//!
//! One mutex makes the two decisions that must not interleave atomic: the session's "this write is
//! admitted, so the process is busy from now on" and the drain's "revoked; was it idle?".
//! It is never held across an await.

use super::fence_error::Blocker;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

/// A session that is admitted to, or was revoked from, this many resources gives up those that it does not need now,
/// as soon as it is idle.
pub const FULL: usize = 1024;
/// A transaction is admitted to this many resources at most.
pub const MOST_AT_ONCE: usize = 10_000;

/// A fencing token: 1 to 9223372036854775807.
pub type Token = i64;

/// The order of all tokens of a resource: by generation first, which only an operator's reset changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Raised by a reset only.
    pub generation: i64,
    /// The highest token seen in this generation.
    pub token: Token,
}

/// The identity of a session's server process, as the session itself reports it. Admit compares it
/// with what a control connection sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `pg_backend_pid()`, which also equals the process id in BackendKeyData.
    pub pid: i32,
    /// `extract(epoch from backend_start)` of pg_stat_get_activity, as the text of a numeric: exact to the µs.
    pub backend_start: String,
    /// `system_identifier` of `pg_control_system()`.
    pub system_identifier: String,
    /// `extract(epoch from pg_postmaster_start_time())`, as the text of a numeric.
    pub postmaster_start: String,
}

/// Why the identity of a session's server process is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Such a session cannot report it.
    #[error("it is a physical replication session")]
    PhysicalReplication,
    /// The session returned no row.
    #[error("the server did not say whose process this is")]
    NoAnswer,
    /// The session's row lacks a value.
    #[error("the server did not say all of whose process this is")]
    Incomplete,
    /// The process id is not that of BackendKeyData.
    #[error("the session does not keep its server process: is there a pooler between the proxy and the server?")]
    OtherProcess,
    /// The server's error message.
    #[error("{0}")]
    Refused(String),
}

/// The part of a session that drains may touch.
#[derive(Debug)]
pub struct SessionFence {
    /// The identity of the server process. Without it, the session cannot be admitted.
    pub identity: Result<Identity, IdentityError>,
    state: Mutex<State>,
    /// Wakes the session's task: it was revoked from a resource while it was not idle.
    pub revoked: tokio::sync::Notify,
    /// Odd while the session handles what has come.
    steps: AtomicU64,
    /// Held for the whole of an Admit, so that none is under way while admissions are given up.
    pub(super) admitting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    admitted: HashMap<String, Epoch>,
    /// Revocations, by resource. An Admit below one that is still under way comes too late.
    floors: BTreeMap<String, Floor>,
    /// How many revocations there were.
    revocations: u64,
    /// Resources to which something was forwarded in the open transaction: all that is known of what it may still write.
    written: HashSet<String>,
    /// Admitted since a write was last forwarded: for what is held back now.
    fresh: HashSet<String>,
    activity: Activity,
    /// Since when.
    since: Since,
    /// How often it has ceased to be busy.
    rests: u64,
    /// Under what the process was admitted last, by resource, unless it was released since: why it may be terminated.
    presented: HashMap<String, Presented>,
    /// The Admit under way: the process may be terminated before the answer arrives.
    asking: Option<(String, Token)>,
    /// The processes that this Admit waits for, as far as they are known.
    blockers: Vec<Blocker>,
}

/// Under what a session is, or was, admitted to a resource.
#[derive(Clone, Debug)]
pub(super) struct Presented {
    pub(super) epoch: Epoch,
    /// As [`crate::policy::Resource::lock_name`]: of policies that need not be in force any more.
    pub(super) lock_name: String,
}

/// A moment; now where nothing else is said.
#[derive(Clone, Copy, Debug)]
struct Since(Instant);

impl Default for Since {
    fn default() -> Self {
        Since(Instant::now())
    }
}

/// The trace of a revocation.
#[derive(Clone, Copy, Debug)]
struct Floor {
    /// The epoch that was published before.
    epoch: Epoch,
    /// The sequence number of this revocation of the session.
    revocation: u64,
}

/// Activity of a session's server process, as far as the session knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// The last message from the server was ReadyForQuery 'I' and no byte was forwarded since.
    #[default]
    Idle,
    /// In a transaction, and the server owes no reply: no statement is running.
    Waiting,
    /// A statement may be running.
    Busy,
    /// A newer token has ended it, and the client is still to be told.
    CutOff,
}

impl SessionFence {
    /// A session that is idle and admitted to nothing.
    pub fn new(identity: Result<Identity, IdentityError>) -> Self {
        SessionFence {
            identity,
            state: Mutex::default(),
            revoked: tokio::sync::Notify::new(),
            steps: AtomicU64::new(0),
            admitting: tokio::sync::Mutex::default(),
        }
    }

    /// The session's half: says what the server process does now.
    pub fn set_activity(&self, activity: Activity) {
        let mut state = self.lock();
        state.rests += u64::from(activity != Activity::Busy && state.activity == Activity::Busy);
        state.begin(activity);
        if activity == Activity::Idle {
            state.written.clear();
        }
    }

    /// The session's half, before it looks which policies are in force: what it judges until [`Self::end_step`], it judges by
    /// these.
    pub fn begin_step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
        // Policies are put in force first, and then this is looked at. Either that look finds the step, or the step these policies.
        fence(Ordering::SeqCst);
    }

    /// The session's half: what it has forwarded in the step is under way, as [`Self::set_activity`] has said.
    pub fn end_step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    /// The step that the session is in, if it is in one.
    pub(super) fn step(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        let steps = self.steps.load(Ordering::SeqCst);
        (steps % 2 == 1).then_some(steps)
    }

    /// How often the server process has ended all that it was given, if something may be running.
    pub(super) fn rests_while_busy(&self) -> Option<u64> {
        let state = self.lock();
        (state.activity == Activity::Busy).then_some(state.rests)
    }

    /// Activity of the server process.
    pub fn activity(&self) -> Activity {
        self.lock().activity
    }

    /// Activity of the server process, and since when.
    pub fn activity_since(&self) -> (Activity, Instant) {
        let state = self.lock();
        (state.activity, state.since.0)
    }

    /// The session's half, before it forwards a write: true if the process is admitted to every one
    /// of these under exactly these tokens; it then counts as busy, in the same step.
    pub fn begin_write<'a>(&self, writes: impl IntoIterator<Item = (&'a str, Token)> + Clone) -> bool {
        let mut state = self.lock();
        let admitted = writes
            .clone()
            .into_iter()
            .all(|(resource, token)| state.admitted.get(resource).is_some_and(|epoch| epoch.token == token));
        if admitted {
            state.begin(Activity::Busy);
            state.fresh.clear();
            state.written.extend(writes.into_iter().map(|(resource, _)| resource.to_owned()));
        }
        admitted
    }

    /// The session's half: the transaction has ended, and no write was forwarded since.
    pub fn transaction_ended(&self) {
        self.lock().written.clear();
    }

    /// Something was forwarded to the resource in the open transaction. It may have written, or may do so yet: when rows of a
    /// cursor are fetched, or when deferred triggers fire. No lock tells: what is to come has taken none, and a Bind takes
    /// those of its statement before that is executed.
    pub fn may_have_written(&self, resource: &str) -> bool {
        self.lock().written.contains(resource)
    }

    /// How often it was revoked from anything: Admit looks at this before it asks the database.
    pub fn revocations(&self) -> u64 {
        self.lock().revocations
    }

    /// Admit's half: records that the process is admitted. `revocations` is [`Self::revocations`] as of before the Query.
    /// False if a drain has revoked the resource since: the admission must not be used. A Query after the revocation has seen
    /// the epoch that was published before it; if its epoch is lower all the same, the published one was pruned.
    #[must_use]
    pub fn record_admission(&self, resource: &str, epoch: Epoch, revocations: u64) -> bool {
        let mut state = self.lock();
        if let Some(floor) = state.floors.get(resource).filter(|floor| epoch < floor.epoch) {
            if floor.revocation > revocations {
                return false;
            }
            state.floors.remove(resource);
        }
        state.admitted.insert(resource.to_owned(), epoch);
        state.fresh.insert(resource.to_owned());
        true
    }

    /// Admit's half: the process is admitted, whether or not that may be used.
    pub(super) fn present(&self, resource: &str, presented: Presented) {
        self.lock().presented.insert(resource.to_owned(), presented);
    }

    /// Under what the process is, or was, admitted.
    pub(super) fn presented(&self) -> HashMap<String, Presented> {
        self.lock().presented.clone()
    }

    /// To what the process is, or was, admitted.
    pub(super) fn add_presented(&self, names: &mut BTreeSet<String>) {
        names.extend(self.lock().presented.keys().cloned());
    }

    /// Forgets under what it was admitted where `keeps` says no.
    pub(super) fn retain_presented(&self, keeps: impl Fn(&str) -> bool) {
        let State { presented, admitted, .. } = &mut *self.lock();
        presented.retain(|resource, _| admitted.contains_key(resource) || keeps(resource));
    }

    /// Its admission was taken away: whatever ends its process now, a newer token for that resource does not.
    pub(super) fn released(&self, resource: &str, epoch: Epoch) {
        let mut state = self.lock();
        if state.presented.get(resource).is_some_and(|presented| presented.epoch <= epoch) {
            state.presented.remove(resource);
        }
    }

    /// Admit's half: the token for which the session asks, from now until the answer is here.
    pub(super) fn set_asking(&self, asking: Option<(String, Token)>) {
        let mut state = self.lock();
        (state.asking, state.blockers) = (asking, Vec::new());
    }

    /// Admit's half: the processes that it waits for.
    pub(super) fn set_blockers(&self, blockers: Vec<Blocker>) {
        self.lock().blockers = blockers;
    }

    /// The resource to which it is being admitted, and the processes that this waits for, as far as they are known.
    pub fn waits_for(&self) -> Option<(String, Vec<Blocker>)> {
        let state = self.lock();
        state.asking.as_ref().map(|(resource, _)| (resource.clone(), state.blockers.clone()))
    }

    /// The token for which it asks.
    pub(super) fn asking(&self) -> Option<(String, Token)> {
        self.lock().asking.clone()
    }

    /// It has admissions or floors for so many resources that some are given up before it is admitted to more. The session's
    /// half: a pipeline is held back then, so that the session becomes idle.
    pub fn is_full(&self) -> bool {
        self.lock().resources() >= FULL
    }

    /// Admit's half, while [`Self::admitting`] is held: if the process is idle, takes away every admission but those for
    /// what is held back now, in the same step, and returns these. None: it is not idle.
    ///
    /// The floors go as well: no Admit is under way that could come too late.
    pub(super) fn give_up(&self) -> Option<Vec<(String, Epoch)>> {
        let mut state = self.lock();
        if state.activity != Activity::Idle {
            return None;
        }
        let State { admitted, fresh, floors, .. } = &mut *state;
        admitted.retain(|resource, _| fresh.contains(resource));
        floors.clear();
        Some(admitted.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect())
    }

    /// Admit's half: the process may not be admitted to more. What is held back now will be refused, so that nothing is
    /// needed for it any more.
    pub(super) fn has_too_many(&self) -> bool {
        let mut state = self.lock();
        let too_many = state.resources() >= MOST_AT_ONCE;
        if too_many {
            state.fresh.clear();
        }
        too_many
    }

    /// The drain's half: takes away every admission to the resource below the epoch, leaves that
    /// epoch as a floor, and says what the process was doing at that moment. The rows of an idle one are the drain's: its task is
    /// not woken. Where the drain fails, they stay for the next one.
    pub fn revoke(&self, resource: &str, below: Epoch) -> Activity {
        let mut state = self.lock();
        state.revocations += 1;
        let revocation = state.revocations;
        let floor = state.floors.entry(resource.to_owned()).or_insert(Floor { epoch: below, revocation });
        *floor = Floor { epoch: floor.epoch.max(below), revocation };
        if state.admitted.get(resource).is_some_and(|epoch| *epoch < below) {
            state.admitted.remove(resource);
            state.fresh.remove(resource);
            if state.activity != Activity::Idle {
                self.revoked.notify_one();
            }
        }
        state.activity
    }

    /// The epoch under which the process is admitted to the resource, if it is.
    pub fn admission(&self, resource: &str) -> Option<Epoch> {
        self.lock().admitted.get(resource).copied()
    }

    /// True if the process is admitted to anything.
    pub fn holds_admissions(&self) -> bool {
        !self.lock().admitted.is_empty()
    }

    /// All that the process is admitted to.
    pub fn admissions(&self) -> Vec<(String, Epoch)> {
        self.lock().admitted.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect()
    }

    /// The resources and epochs that revoked this session so far.
    pub fn floors(&self) -> Vec<(String, Epoch)> {
        self.lock().floors.iter().map(|(resource, floor)| (resource.clone(), floor.epoch)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave the maps half changed: every change is one insert or remove.
        self.state.lock()
    }
}

impl State {
    fn begin(&mut self, activity: Activity) {
        if self.activity != activity {
            (self.activity, self.since) = (activity, Since::default());
        }
    }

    /// Those that the process is admitted to, and those that it was revoked from.
    fn resources(&self) -> usize {
        self.admitted.len() + self.floors.len()
    }
}

#[cfg(test)]
mod tests;
