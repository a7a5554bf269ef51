//! Advance: publish a higher token, drain all processes below it, mark the epoch as drained.
//!
//! Owns the termination of processes and the deletion of admissions. Must never
//! - delete the row of a live process, unless the process is that of a session of this proxy that was
//!   revoked first and has nothing to commit, now or later;
//! - treat a process as dead unless the database has shown that it is.
//!
//! Any proxy may repeat any step. The next proxy that needs the epoch finishes an incomplete advance.
//! Functions here are not cancel-safe unless their comment says so: a step may be left incomplete.

use super::blocker::Blocker;
use super::database::{Database, key};
use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::{Activity, Epoch, Identity, SessionFence, Token};
use super::store::{AdmissionRow, DESCRIBED, GRACE, Holder, Key, Marked, StoreError};
use fencegate_policy::{Mode, Resource};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Number of looks at the processes without a pause. Another proxy needs two round trips to release an idle session.
const QUICK_LOOKS: u32 = 4;
/// Minimum and maximum pause between later looks: a quarter of the time that the drain has taken so far.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The session that needs the epoch. It keeps its server process.
#[derive(Clone, Copy)]
pub(super) struct Raising<'a> {
    pub(super) session: &'a SessionFence,
    pub(super) who: &'a Identity,
}

/// One advance of a resource to an epoch.
pub(super) struct Advance<'a> {
    database: &'a Arc<Database>,
    pub(super) resource: &'a Resource,
    pub(super) to: Epoch,
    /// None for a reset, and for a leader that is shut out before its successor writes.
    raising: Option<Raising<'a>>,
}

impl Database {
    /// The way of the resource to the epoch, for no session.
    pub(super) fn advance<'a>(self: &'a Arc<Self>, resource: &'a Resource, to: Epoch) -> Advance<'a> {
        Advance { database: self, resource, to, raising: None }
    }

    /// Deletes admissions, each with the name of the lock of its family, as far as they are what they were when they were
    /// read. Returns those.
    pub(super) async fn delete(
        self: &Arc<Self>,
        rows: &[(&AdmissionRow, &str)],
    ) -> Result<Vec<AdmissionRow>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let deleted = self.store().delete(rows).await?;
        deleted.iter().for_each(|row| self.released(&row.key(), &row.resource, row.epoch));
        Ok(deleted)
    }
}

impl<'a> Advance<'a> {
    /// Advances for a session that raises its token.
    pub(super) fn by(self, raising: Raising<'a>) -> Self {
        Advance { raising: Some(raising), ..self }
    }

    /// Raises the epoch, unless it is there or higher, and drains what is below; `known`: the epoch there is. Whether it may
    /// be raised has been asked (`may_raise`). Ok does not mean admitted: ask again.
    pub(super) async fn raise(&self, known: Option<Epoch>, deadline: Instant) -> Result<(), FenceError> {
        match self.publish(known).await? {
            Some(current) if current == self.to => self.settle(deadline).await,
            // Raised further, or reset, by another proxy or session.
            _ => Ok(()),
        }
    }

    /// Publishes, and returns the current epoch: this one, a higher one, or, under different policies, the previous one.
    pub(super) async fn publish(&self, known: Option<Epoch>) -> Result<Option<Epoch>, FenceError> {
        let Advance { database, resource, to, .. } = self;
        let now = self.about(database.store().publish(resource, *to, known, database.loaded(resource)).await)?;
        now.iter().for_each(|now| database.memory.learn(&resource.name, *now));
        Ok(now)
    }

    /// Drains what is below the epoch, and marks it. Ok does not mean admitted: ask again.
    pub(super) async fn settle(&self, deadline: Instant) -> Result<(), FenceError> {
        let start = Instant::now();
        let drained = self.drain(deadline).await;
        let waited = start.elapsed();
        self.database.metrics.drain_seconds.observe(waited.as_secs_f64());
        drained?;
        match self.about(self.database.store().mark(self.resource, self.to).await)? {
            Marked::Drained => self.log_advanced(waited),
            Marked::Prepared(gids) => {
                return Err(FenceError::unavailable(&self.resource.name, Obstacle::PreparedTransactions(gids)));
            }
            // Marked or raised by another proxy or session in the meantime.
            Marked::Nothing => {}
        }
        Ok(())
    }

    pub(super) fn log_advanced(&self, waited: Duration) {
        let Advance { database, resource, to: Epoch { generation, token }, .. } = self;
        database.metrics.advances.inc();
        database.memory.rose(&resource.name, None, self.to);
        // All keys of a resource share one log limit, because their number is unbounded.
        if database.log_limit.allows("fence_advanced", resource.lock_name()) {
            let (database, resource) = (database.name(), resource.name.as_str());
            let waited_seconds = waited.as_secs_f64();
            tracing::info!(database, resource, token, generation, waited_seconds, "fence_advanced");
        }
    }

    /// Returns once no admission below the epoch is left.
    async fn drain(&self, deadline: Instant) -> Result<(), FenceError> {
        let start = Instant::now();
        let mut signalled = BTreeSet::new();
        let mut looks = 0;
        loop {
            looks += 1;
            // Pipelined. If the second Query still sees a dead process, the next look deletes its row.
            let (deleted, holders) = tokio::join!(self.delete_dead(&signalled), self.holders());
            deleted?;
            let mut holders = holders?;
            let is_its = |holder: &Holder, it: &Raising<'_>| holder.row.key() == key(it.who) && !holder.row.ending;
            if let Some(raising) = self.raising.filter(|it| holders.iter().any(|holder| is_its(holder, it))) {
                // It keeps its process and whatever it has locked: its row is replaced, not drained.
                self.refuse_if_written().await?;
                raising.session.revoke(&self.resource.name, self.to);
                let (own, others) = holders.into_iter().partition(|holder| is_its(holder, &raising));
                if self.delete(&rows_of(own)).await?.is_empty() {
                    self.refuse_if_held().await?;
                }
                holders = others;
            }
            let rows: Vec<AdmissionRow> = holders.iter().map(|holder| holder.row.clone()).collect();
            let spared = self.spare(&rows).await?;
            holders.retain(|holder| !spared.contains(&holder.row.key()));
            if holders.is_empty() {
                return Ok(());
            }
            let grace_over = start.elapsed() >= GRACE;
            let is_due = |holder: &&Holder| grace_over || holder.proxy == self.database.proxy;
            let due: BTreeSet<Key> = holders.iter().filter(is_due).map(|holder| holder.row.key()).collect();
            if !due.is_empty() {
                let due: Vec<Key> = due.into_iter().collect();
                self.about(self.database.store().terminate(&due, &self.resource.name, self.to).await)?;
                signalled.extend(due);
            }
            if Instant::now() >= deadline {
                return Err(FenceError::unavailable(&self.resource.name, Obstacle::NotEnded(described(holders))));
            }
            if looks > QUICK_LOOKS {
                if let Some(raising) = self.raising {
                    raising.session.set_blockers(described(holders));
                }
                sleep((start.elapsed() / 4).clamp(PAUSE.0, PAUSE.1)).await;
            }
        }
    }

    /// Revokes this proxy's own sessions among the owners of these rows. Deletes the rows of those sessions that have nothing
    /// below the epoch to commit, now or later. Returns the processes whose rows it deleted.
    ///
    /// The rows were read before the revocation, and only these versions are deleted. The DELETE may arrive at any time: a row
    /// below the epoch no longer permits anything, and the epoch cannot be pruned while the row exists.
    pub(super) async fn spare(&self, rows: &[AdmissionRow]) -> Result<BTreeSet<Key>, FenceError> {
        let Advance { database, resource, to, .. } = self;
        let (mut idle, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        for own in rows.iter().map(AdmissionRow::key).collect::<BTreeSet<Key>>() {
            let Some(session) = database.sessions.get(&own).map(|session| session.clone()) else { continue };
            match session.revoke(&resource.name, *to) {
                Activity::Idle => idle.insert(own),
                // The writes to the resource in the open transaction may not all have run yet.
                Activity::Waiting if !session.may_have_written(&resource.name) => waiting.insert(own),
                Activity::Waiting | Activity::Busy | Activity::CutOff => continue,
            };
        }
        // Looked at after the revocation: what was forwarded before has been answered, so its
        // locks are there, and nothing more can be forwarded.
        if !waiting.is_empty() {
            let pids: Vec<i32> = waiting.iter().map(|(pid, _)| *pid).collect();
            let lockers = self.about(database.store().lockers(resource, &pids).await)?;
            waiting.retain(|(pid, _)| !lockers.contains(pid));
        }
        // Messages forwarded since may have written where only the guard saw it. Then the row stays.
        let mut spared = BTreeSet::new();
        for (how, keys) in [("idle", &idle), ("released", &waiting)] {
            let rows: Vec<AdmissionRow> = rows.iter().filter(|row| keys.contains(&row.key())).cloned().collect();
            for row in self.delete(&rows).await? {
                self.log_drained(how, row.epoch.token);
                spared.insert(row.key());
            }
        }
        Ok(spared)
    }

    /// Spares this proxy's own sessions among the holders, as [`Self::spare`] does. Immediately terminates its other own
    /// sessions, as the drain would after its grace period. Never terminates sessions that request the token or a higher one:
    /// they keep their process or are refused. Terminates nothing for a fence in mode observe.
    pub(super) async fn spare_or_end_own(&self) -> Result<(), FenceError> {
        let rows = rows_of(self.holders().await?);
        let spared = self.spare(&rows).await?;
        let sessions = &self.database.sessions;
        let is_due = |key: &Key| {
            let asks = |it: &SessionFence| {
                it.asking().is_some_and(|(name, token)| name == self.resource.name && token >= self.to.token)
            };
            !spared.contains(key) && sessions.get(key).is_some_and(|session| !asks(&session))
        };
        let due: BTreeSet<Key> = rows.iter().map(AdmissionRow::key).filter(is_due).collect();
        if due.is_empty() || self.resource.mode == Mode::Observe {
            return Ok(());
        }
        let due: Vec<Key> = due.into_iter().collect();
        self.about(self.database.store().terminate(&due, &self.resource.name, self.to).await)
    }

    /// As [`Database::delete`], for admissions to this resource.
    pub(super) async fn delete(&self, rows: &[AdmissionRow]) -> Result<Vec<AdmissionRow>, FenceError> {
        let rows: Vec<_> = rows.iter().map(|row| (row, self.resource.lock_name())).collect();
        self.about(self.database.delete(&rows).await)
    }

    /// Returns LF003 if the session's process has or may have uncommitted writes below the epoch.
    pub(super) async fn refuse_if_written(&self) -> Result<(), FenceError> {
        let Some(raising) = self.raising else { return Ok(()) };
        if raising.session.may_have_written(&self.resource.name) {
            return self.refuse_if_held().await;
        }
        if raising.session.activity() == Activity::Idle {
            return Ok(());
        }
        // A write that the query string does not show was seen by the guard.
        let written = self.database.store().guarded_write(self.resource, raising.who.pid).await;
        self.refuse_under(self.about(written)?)
    }

    /// Returns LF003 if the session's process is admitted below the epoch.
    async fn refuse_if_held(&self) -> Result<(), FenceError> {
        let own = self.raising.map(|it| key(it.who));
        let holders = self.holders().await?;
        let held = holders.iter().filter(|holder| Some(holder.row.key()) == own).map(|holder| holder.row.epoch);
        self.refuse_under(held.max())
    }

    /// Returns LF003 if the session's open transaction has written under an epoch: it would continue under another token.
    fn refuse_under(&self, written: Option<Epoch>) -> Result<(), FenceError> {
        let Some(Epoch { token: current, .. }) = written else { return Ok(()) };
        let resource = self.resource.name.clone();
        Err(FenceError::WrittenUnderAnotherToken { resource, presented: self.to.token, current })
    }

    async fn delete_dead(&self, signalled: &BTreeSet<Key>) -> Result<(), FenceError> {
        let below = Some((self.resource.name.as_str(), self.to));
        for (key, token) in self.about(self.database.store().delete_dead(below).await)? {
            self.log_drained(if signalled.contains(&key) { "terminated" } else { "dead" }, token);
        }
        Ok(())
    }

    async fn holders(&self) -> Result<Vec<Holder>, FenceError> {
        self.about(self.database.store().holders(&self.resource.name, self.to).await)
    }

    fn log_drained(&self, how: &str, presented: Token) {
        self.database.metrics.drained_sessions.with_label_values(&[how]).inc();
        let (database, resource, highest) = (self.database.name(), self.resource.name.as_str(), self.to.token);
        tracing::info!(database, resource, presented, highest, how, "session_drained");
    }

    fn about<T>(&self, answer: Result<T, StoreError>) -> Result<T, FenceError> {
        about(self.resource, answer)
    }
}

fn rows_of(holders: Vec<Holder>) -> Vec<AdmissionRow> {
    holders.into_iter().map(|holder| holder.row).collect()
}

/// The holders for messages: the first [`DESCRIBED`], and the number of the others.
fn described(holders: Vec<Holder>) -> Vec<Blocker> {
    let more = holders.len().saturating_sub(DESCRIBED);
    let mut left: Vec<_> = holders.into_iter().take(DESCRIBED).map(|holder| holder.blocker).collect();
    if more > 0 {
        left.push(Blocker { who: format!("{more} more"), query: String::new() });
    }
    left
}
