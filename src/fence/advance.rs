//! Advance: publish a higher token, drain everybody below it, mark the epoch as drained.
//!
//! Owns ending processes and deleting admissions. Must never delete the row of a living process,
//! unless it is a session of this proxy that was revoked first and has nothing to commit, now or
//! later; and must never believe that a process is dead unless the database showed it. Each step may
//! be repeated by anybody: whoever needs an epoch finishes what another has left half done.
//!
//! Not cancel-safe where nothing else is said: a step may be half done, and is repeated by whoever needs it.

use super::database::{Database, key};
use super::refusal::{Hindrance, Refusal, Remedy, about};
use super::session::{Activity, Epoch, Identity, SessionFence, Token};
use super::store::{Granted, Holder, Key, Marked, StoreError};
use crate::policy::Resource;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What other proxies get to release their idle sessions before those are terminated.
pub(super) const GRACE: Duration = Duration::from_millis(100);
/// Between two looks at the processes, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The session that needs the epoch: it keeps its server process. A reset, and a leader that is shut out before its
/// successor writes, need no session.
#[derive(Clone, Copy)]
pub(super) struct Raising<'a> {
    pub(super) session: &'a SessionFence,
    pub(super) who: &'a Identity,
}

impl Database {
    /// Raises the epoch to the target, unless it is there or higher, and drains what is below; `known`: the epoch
    /// there is. Whether the target may be raised to has been asked (`may_raise`). Ok does not mean admitted: ask again.
    pub(super) async fn raise(
        self: &Arc<Self>,
        raising: Option<Raising<'_>>,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        match self.publish_epoch(resource, target, known).await? {
            Some(current) if current == target => self.settle(raising, resource, current, deadline).await,
            // Raised further, or reset, by somebody else.
            _ => Ok(()),
        }
    }

    /// Publishes, and returns what is there now: the target, what is above it, or, under other policies, what was there.
    pub(super) async fn publish_epoch(
        self: &Arc<Self>,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
    ) -> Result<Option<Epoch>, Refusal> {
        let now = about(resource, self.store().publish(resource, target, known, self.loaded(resource)).await)?;
        now.iter().for_each(|now| self.memory.learn(&resource.name, *now));
        Ok(now)
    }

    /// Drains what is below the epoch, and marks it. Ok does not mean admitted: ask again.
    pub(super) async fn settle(
        self: &Arc<Self>,
        raising: Option<Raising<'_>>,
        resource: &Resource,
        current: Epoch,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let start = Instant::now();
        let drained = self.drain(raising, resource, current, deadline).await;
        let waited = start.elapsed();
        self.metrics.drain_seconds.observe(waited.as_secs_f64());
        drained?;
        match about(resource, self.store().mark(resource, current).await)? {
            Marked::Drained => self.advanced(resource, current, waited),
            Marked::Prepared(gids) => {
                let reason = format!("prepared transactions hold writes on it: {}", gids.join(", "));
                return Err(Refusal::unavailable(&resource.name, Hindrance::new(reason, Remedy::EndThem)));
            }
            // Marked or raised by somebody else meanwhile.
            Marked::Nothing => {}
        }
        Ok(())
    }

    fn advanced(&self, resource: &Resource, Epoch { generation, token }: Epoch, waited: Duration) {
        self.metrics.advances.inc();
        // However many keys there are, those of a resource are one kind.
        if self.log_limit.allows("fence_advanced", resource.lock_name()) {
            let (database, resource) = (self.name(), resource.name.as_str());
            tracing::info!(database, resource, token, generation, ?waited, "fence_advanced");
        }
    }

    /// Returns when no admission below the bound is left.
    async fn drain(
        self: &Arc<Self>,
        raising: Option<Raising<'_>>,
        resource: &Resource,
        bound: Epoch,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let start = Instant::now();
        let mut pause = PAUSE.0;
        let mut signalled = HashSet::new();
        loop {
            self.bury(resource, bound, &signalled).await?;
            let mut holders = self.holders(resource, bound).await?;
            let is_its = |holder: &Holder, it: &Raising<'_>| holder.row.key() == key(it.who) && !holder.row.ending;
            if let Some(raising) = raising.filter(|it| holders.iter().any(|holder| is_its(holder, it))) {
                // It keeps its process and whatever it has locked: its row is replaced, not drained.
                self.refuse_if_written(raising, resource, bound).await?;
                raising.session.revoke(&resource.name, bound);
                let (own, others) = holders.into_iter().partition(|holder| is_its(holder, &raising));
                if self.delete_rows(resource, &rows_of(own)).await?.is_empty() {
                    self.refuse_if_held(raising, resource, bound).await?;
                }
                holders = others;
            }
            let rows: Vec<Granted> = holders.iter().map(|holder| holder.row.clone()).collect();
            let spared = self.spare(resource, bound, &rows).await?;
            holders.retain(|holder| !spared.contains(&holder.row.key()));
            if holders.is_empty() {
                return Ok(());
            }
            let grace_over = start.elapsed() >= GRACE;
            let is_due = |holder: &&Holder| grace_over || holder.proxy == self.proxy;
            let due: HashSet<Key> = holders.iter().filter(is_due).map(|holder| holder.row.key()).collect();
            if !due.is_empty() {
                let due: Vec<Key> = due.into_iter().collect();
                about(resource, self.store().terminate(&due, &resource.name, bound).await)?;
                signalled.extend(due);
            }
            if Instant::now() >= deadline {
                let left: Vec<_> = holders.into_iter().map(|holder| holder.obstacle).collect();
                return Err(Refusal::obstructed(&resource.name, "admitted under lower tokens and not ended", &left));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Revokes the own sessions among those that have these rows, and takes the rows away of those that have nothing below the
    /// bound to commit, now or later. Returns these.
    ///
    /// The rows were read before the revocation, and are deleted as they were then. Below the epoch a row is of no use to its
    /// process any more, nor can the epoch be pruned while it is there: so it does not matter when the DELETE arrives.
    pub(super) async fn spare(
        self: &Arc<Self>,
        resource: &Resource,
        bound: Epoch,
        rows: &[Granted],
    ) -> Result<HashSet<Key>, Refusal> {
        let (mut idle, mut waiting) = (HashSet::new(), HashSet::new());
        for session in self.registered(rows) {
            let Ok(who) = &session.identity else { continue };
            match session.revoke(&resource.name, bound) {
                Activity::Idle => idle.insert(key(who)),
                // Of what was forwarded to the resource in the open transaction, nobody knows what is still to come.
                Activity::Waiting if !session.may_have_written(&resource.name) => waiting.insert(key(who)),
                Activity::Waiting | Activity::Busy | Activity::CutOff => continue,
            };
        }
        // Looked at after the revocation: what was forwarded before has been answered, so its
        // locks are there, and nothing more can be forwarded.
        if !waiting.is_empty() {
            let pids: Vec<i32> = waiting.iter().map(|(pid, _)| *pid).collect();
            let lockers = about(resource, self.store().lockers(resource, &pids).await)?;
            waiting.retain(|(pid, _)| !lockers.contains(pid));
        }
        // What was forwarded since may have written where only the guard saw it: then the row stays.
        let mut spared = HashSet::new();
        for (how, keys) in [("idle", &idle), ("released", &waiting)] {
            let rows: Vec<Granted> = rows.iter().filter(|row| keys.contains(&row.key())).cloned().collect();
            for row in self.delete_rows(resource, &rows).await? {
                self.drained(how, resource, row.epoch.token, bound);
                spared.insert(row.key());
            }
        }
        Ok(spared)
    }

    /// The same for the own sessions among the holders.
    pub(super) async fn spare_own(self: &Arc<Self>, resource: &Resource, bound: Epoch) -> Result<(), Refusal> {
        let holders = self.holders(resource, bound).await?;
        self.spare(resource, bound, &rows_of(holders)).await.map(drop)
    }

    /// Deletes admissions to a resource, as far as they are what they were when they were read. Returns those.
    pub(super) async fn delete_rows(
        self: &Arc<Self>,
        resource: &Resource,
        rows: &[Granted],
    ) -> Result<Vec<Granted>, Refusal> {
        let rows: Vec<_> = rows.iter().map(|row| (row, resource.lock_name())).collect();
        about(resource, self.delete(&rows).await)
    }

    /// The same for admissions to any resources, each with the name of the lock of its family.
    pub(super) async fn delete(self: &Arc<Self>, rows: &[(&Granted, &str)]) -> Result<Vec<Granted>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let deleted = self.store().delete(rows).await?;
        deleted.iter().for_each(|row| self.released(&row.key(), &row.resource, row.epoch));
        Ok(deleted)
    }

    /// LF003, if the session's process has or may have uncommitted writes below the bound.
    pub(super) async fn refuse_if_written(
        self: &Arc<Self>,
        raising: Raising<'_>,
        resource: &Resource,
        bound: Epoch,
    ) -> Result<(), Refusal> {
        if raising.session.may_have_written(&resource.name) {
            return self.refuse_if_held(raising, resource, bound).await;
        }
        // Where the text does not show a write, the guard has seen it.
        let current = about(resource, self.store().guarded_write(resource, raising.who.pid).await)?;
        current.map_or(Ok(()), |current| Err(written_under(resource, bound.token, current)))
    }

    /// LF003, if the session's process is admitted below the bound.
    async fn refuse_if_held(
        self: &Arc<Self>,
        raising: Raising<'_>,
        resource: &Resource,
        bound: Epoch,
    ) -> Result<(), Refusal> {
        let holders = self.holders(resource, bound).await?;
        let own =
            holders.iter().filter(|holder| holder.row.key() == key(raising.who)).map(|holder| holder.row.epoch).max();
        own.map_or(Ok(()), |epoch| Err(written_under(resource, bound.token, epoch)))
    }

    /// Deletes the rows of the dead.
    async fn bury(
        self: &Arc<Self>,
        resource: &Resource,
        bound: Epoch,
        signalled: &HashSet<Key>,
    ) -> Result<(), Refusal> {
        for (key, token) in about(resource, self.store().delete_dead(Some((&resource.name, bound))).await)? {
            self.drained(if signalled.contains(&key) { "terminated" } else { "dead" }, resource, token, bound);
        }
        Ok(())
    }

    async fn holders(self: &Arc<Self>, resource: &Resource, bound: Epoch) -> Result<Vec<Holder>, Refusal> {
        about(resource, self.store().holders(&resource.name, bound).await)
    }

    /// The own sessions among those that have these rows.
    fn registered(&self, rows: &[Granted]) -> Vec<Arc<SessionFence>> {
        let keys: HashSet<Key> = rows.iter().map(Granted::key).collect();
        keys.iter().filter_map(|key| self.sessions.get(key).map(|session| session.fence.clone())).collect()
    }

    fn drained(&self, how: &str, resource: &Resource, presented: Token, highest: Epoch) {
        self.metrics.drained_sessions.with_label_values(&[how]).inc();
        let (resource, highest) = (resource.name.as_str(), highest.token);
        tracing::info!(database = self.name(), resource, presented, highest, how, "session_drained");
    }
}

/// The session's open transaction has written under the epoch, and would go on under another token.
fn written_under(resource: &Resource, presented: Token, epoch: Epoch) -> Refusal {
    Refusal::WrittenUnderAnotherToken { resource: resource.name.clone(), presented, current: epoch.token }
}

fn rows_of(holders: Vec<Holder>) -> Vec<Granted> {
    holders.into_iter().map(|holder| holder.row).collect()
}
