//! State that the fence and a session share: the identity of the session's server process, the
//! resources that the process may write, and whether it is idle.
//!
//! One mutex makes each of two decisions atomic, because they must not interleave: the session's "this
//! write is admitted, so the process is now busy", and the drain's "revoked; was the process idle?".
//! The mutex is never held across an await.

mod identity;

pub use identity::{Identity, IdentityError};

use super::obstacle::Blocker;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

/// Number of resources, admitted or revoked, from which on an idle session gives up the admissions that it does not need.
pub const FULL: usize = 1024;
/// Maximum number of resources to which one transaction can be admitted.
pub const MOST_AT_ONCE: usize = 10_000;

/// A fencing token: 1 to 9223372036854775807.
pub type Token = i64;

/// A token with its generation. Epochs of a resource are ordered by generation, then by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Raised only by an operator's reset.
    pub generation: i64,
    /// The highest token seen in this generation.
    pub token: Token,
}

/// The part of a session that drains can read and change.
#[derive(Debug)]
pub struct SessionFence {
    /// The identity of the server process. Without it, the session cannot be admitted.
    pub identity: Result<Identity, IdentityError>,
    state: Mutex<State>,
    /// Wakes the session's task after a revocation while the session was not idle.
    pub revoked: tokio::sync::Notify,
    /// Number of step boundaries. Odd while the session is within a step.
    steps: AtomicU64,
    /// Held for the whole of an Admit, so that no Admit is under way while the session gives up admissions.
    pub(super) admitting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    admitted: HashMap<String, Epoch>,
    /// Revocations, by resource. An Admit that was under way during the revocation must not be used below the floor.
    floors: BTreeMap<String, Floor>,
    /// Number of revocations so far.
    revocations: u64,
    /// Resources that the messages forwarded in the open transaction may have written, or may still write.
    written: HashSet<String>,
    /// Resources admitted since a write was last forwarded. The messages that are now held back need them.
    fresh: HashSet<String>,
    activity: Activity,
    /// Start of the current activity.
    since: Since,
    /// Number of times that the process stopped being busy.
    rests: u64,
    /// The latest admission to each resource, unless it was released since. Explains why the process may be terminated.
    presented: HashMap<String, Presented>,
    /// The Admit under way. The process may be terminated before the answer arrives.
    asking: Option<(String, Token)>,
    /// The processes for which this Admit is known to wait.
    blockers: Vec<Blocker>,
}

/// A current or former admission of a session to a resource.
#[derive(Clone, Debug)]
pub(super) struct Presented {
    pub(super) epoch: Epoch,
    /// The [`fencegate_policy::Resource::lock_name`] under the policies of that time, which may have been replaced.
    pub(super) lock_name: String,
}

/// The rows that a session keeps when it gives up admissions.
#[derive(Debug)]
pub(super) struct Kept {
    /// Rows of the remaining admissions.
    pub(super) admissions: HashSet<(String, Epoch)>,
    /// All rows of these resources, because the open transaction may commit writes to them.
    pub(super) resources: HashSet<String>,
}

/// A moment. The default is now.
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
    /// The epoch whose publication preceded the revocation.
    epoch: Epoch,
    /// The sequence number of this revocation of the session.
    revocation: u64,
}

/// Activity of a session's server process, as known to the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// The last message from the server was ReadyForQuery 'I' and no byte was forwarded since.
    #[default]
    Idle,
    /// In a transaction, and the server owes no reply: no statement is running.
    Waiting,
    /// A statement may be running.
    Busy,
    /// A newer token has ended the process. The client has not been informed yet.
    CutOff,
}

impl SessionFence {
    /// Creates an idle session without admissions.
    pub fn new(identity: Result<Identity, IdentityError>) -> Self {
        SessionFence {
            identity,
            state: Mutex::default(),
            revoked: tokio::sync::Notify::new(),
            steps: AtomicU64::new(0),
            admitting: tokio::sync::Mutex::default(),
        }
    }

    /// The session's half: sets the activity of the server process.
    pub fn set_activity(&self, activity: Activity) {
        let mut state = self.lock();
        state.rests += u64::from(activity != Activity::Busy && state.activity == Activity::Busy);
        state.begin(activity);
        if activity == Activity::Idle {
            state.written.clear();
        }
    }

    /// The session's half: begins a step, before the session reads the policies in force. It applies these policies to every
    /// decision until [`Self::end_step`].
    pub fn begin_step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
        // A reload puts the policies in force first and then reads `steps`. Either the reload sees this step, or the step
        // sees the new policies.
        fence(Ordering::SeqCst);
    }

    /// The session's half: ends a step. [`Self::set_activity`] already covers the messages that the step forwarded.
    pub fn end_step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    /// The current step of the session, if any.
    pub(super) fn step(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        let steps = self.steps.load(Ordering::SeqCst);
        (steps % 2 == 1).then_some(steps)
    }

    /// If a statement may be running: the number of times that the server process has stopped being busy.
    pub(super) fn rests_while_busy(&self) -> Option<u64> {
        let state = self.lock();
        (state.activity == Activity::Busy).then_some(state.rests)
    }

    /// Activity of the server process.
    pub fn activity(&self) -> Activity {
        self.lock().activity
    }

    /// Activity of the server process, and its start.
    pub fn activity_since(&self) -> (Activity, Instant) {
        let state = self.lock();
        (state.activity, state.since.0)
    }

    /// The session's half, before it forwards a write: returns true if the process is admitted to all of
    /// these resources under exactly these tokens. In that case also marks the process as busy, atomically.
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

    /// The session's half: records that the transaction has ended, and no admitted write is under way.
    pub fn transaction_ended(&self) {
        self.lock().written.clear();
    }

    /// Returns true if a message forwarded in the open transaction may have written the resource, or may still do so, for
    /// example when a cursor is fetched or deferred triggers fire. Locks cannot show this: a later write has not taken its lock
    /// yet, and a Bind takes the locks of its statement before the statement is executed.
    pub fn may_have_written(&self, resource: &str) -> bool {
        self.lock().written.contains(resource)
    }

    /// Number of revocations of this session, for any resource. Admit reads it before its Query.
    pub fn revocations(&self) -> u64 {
        self.lock().revocations
    }

    /// Admit's half: records an admission. `revocations` is [`Self::revocations`] before the Query.
    ///
    /// Returns false if a drain has revoked the resource since: the admission must not be used. A Query that began after the
    /// revocation has seen the epoch published before it. If the Query's epoch is lower nevertheless, the published one was
    /// pruned.
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

    /// Admit's half: records that the database admits the process, even if the session must not use the admission.
    pub(super) fn present(&self, resource: &str, presented: Presented) {
        self.lock().presented.insert(resource.to_owned(), presented);
    }

    /// Current and former admissions of the process, by resource.
    pub(super) fn presented(&self) -> HashMap<String, Presented> {
        self.lock().presented.clone()
    }

    /// True if the session was ever admitted and its rows may be left.
    pub(super) fn has_presented(&self) -> bool {
        !self.lock().presented.is_empty()
    }

    /// Adds the resources of current and former admissions.
    pub(super) fn add_presented(&self, names: &mut BTreeSet<String>) {
        names.extend(self.lock().presented.keys().cloned());
    }

    /// Forgets former admissions for which `keeps` returns false.
    pub(super) fn retain_presented(&self, keeps: impl Fn(&str) -> bool) {
        let State { presented, admitted, .. } = &mut *self.lock();
        presented.retain(|resource, _| admitted.contains_key(resource) || keeps(resource));
    }

    /// Records that the admission was deleted. A newer token for the resource can no longer be the reason if the process ends.
    pub(super) fn released(&self, resource: &str, epoch: Epoch) {
        let mut state = self.lock();
        if state.presented.get(resource).is_some_and(|presented| presented.epoch <= epoch) {
            state.presented.remove(resource);
        }
    }

    /// Admit's half: sets the resource and token of the Admit under way, until the answer arrives.
    pub(super) fn set_asking(&self, asking: Option<(String, Token)>) {
        let mut state = self.lock();
        (state.asking, state.blockers) = (asking, Vec::new());
    }

    /// Admit's half: sets the processes for which the Admit waits.
    pub(super) fn set_blockers(&self, blockers: Vec<Blocker>) {
        self.lock().blockers = blockers;
    }

    /// The resource of the Admit under way, and the processes for which it is known to wait.
    pub fn waits_for(&self) -> Option<(String, Vec<Blocker>)> {
        let state = self.lock();
        state.asking.as_ref().map(|(resource, _)| (resource.clone(), state.blockers.clone()))
    }

    /// The resource and token of the Admit under way.
    pub(super) fn asking(&self) -> Option<(String, Token)> {
        self.lock().asking.clone()
    }

    /// Returns true if the session has admissions or floors for so many resources that it must give some up before the next
    /// Admit. The session's half then holds back a pipeline, so that the session becomes idle.
    pub fn is_full(&self) -> bool {
        self.lock().resources() >= FULL
    }

    /// Admit's half, while [`Self::admitting`] is held: removes all admissions that neither the messages now held back nor the
    /// open transaction need, atomically. None: a statement may be running, or a transaction is open and `unlocked` is None.
    ///
    /// `unlocked`: the lock name of resources on whose relations the open transaction holds no lock for writes.
    ///
    /// Also removes the floors, because no Admit is under way that could arrive too late.
    pub(super) fn give_up(&self, unlocked: Option<&str>) -> Option<Kept> {
        let mut state = self.lock();
        let State { activity, admitted, fresh, floors, written, presented, .. } = &mut *state;
        let unlocked = match (*activity, unlocked) {
            (Activity::Idle, _) => None,
            (Activity::Waiting, Some(unlocked)) => Some(unlocked),
            _ => return None,
        };
        // Also of resources whose admission was revoked: the transaction may commit what it wrote before.
        let may_commit = |resource: &String| {
            let is_unlocked = |name: &str| presented.get(resource).is_some_and(|it| it.lock_name == name);
            unlocked.is_some_and(|name| !is_unlocked(name) || written.contains(resource))
        };
        admitted.retain(|resource, _| fresh.contains(resource) || may_commit(resource));
        floors.clear();
        let admissions = admitted.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect();
        Some(Kept { admissions, resources: presented.keys().filter(|it| may_commit(it)).cloned().collect() })
    }

    /// Returns true if the process may be admitted to that many more resources.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.lock().resources() + more <= MOST_AT_ONCE
    }

    /// Admit's half: returns true if the process must not be admitted to that many more resources. The session then refuses the
    /// messages that it holds back, so they no longer need their admissions.
    pub(super) fn has_too_many(&self, more: usize) -> bool {
        let mut state = self.lock();
        let too_many = state.resources() + more > MOST_AT_ONCE;
        if too_many {
            state.fresh.clear();
        }
        too_many
    }

    /// The drain's half: removes the admission to the resource if it is below the epoch, leaves the epoch as a floor, and
    /// returns the activity of the process at that moment.
    ///
    /// The drain deletes the rows of an idle process without waking its task. If the drain fails, the rows stay for the next one.
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

    /// The epoch under which the process is admitted to the resource, if any.
    pub fn admission(&self, resource: &str) -> Option<Epoch> {
        self.lock().admitted.get(resource).copied()
    }

    /// Returns true if the process is admitted to any resource.
    pub fn holds_admissions(&self) -> bool {
        !self.lock().admitted.is_empty()
    }

    /// All admissions of the process.
    pub fn admissions(&self) -> Vec<(String, Epoch)> {
        self.lock().admitted.iter().map(|(resource, epoch)| (resource.clone(), *epoch)).collect()
    }

    /// The floors of this session: resources and epochs of its revocations.
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

    /// Number of resources to which the process is admitted, or from which it was revoked.
    fn resources(&self) -> usize {
        self.admitted.len() + self.floors.len()
    }
}

#[cfg(test)]
mod tests;
