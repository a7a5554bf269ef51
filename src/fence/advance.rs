//! Advance: publish a higher token, drain everybody below it, mark the epoch as drained.
//!
//! Owns ending processes and deleting admissions. Must never delete the row of a living process,
//! unless it is a session of this proxy that was revoked first and has nothing to commit, now or
//! later; and must never believe that a process is dead unless the database showed it. Each step may
//! be repeated by anybody: whoever needs an epoch finishes what another has left half done.
//!
//! Not cancel-safe where nothing else is said: a step may be half done, and is repeated by whoever needs it.

use super::control::{ControlError, column, is_true, number};
use super::database::{Database, Key, epoch, key};
use super::refusal::{Hindrance, Obstacle, Refusal, Remedy};
use super::session::{Activity, Epoch, Identity, SessionFence, Token};
use super::sql::{self, Granted};
use crate::policy::Resource;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::SimpleQueryRow;

/// What other proxies get to release their idle sessions before those are terminated.
pub(super) const GRACE: Duration = Duration::from_millis(100);
/// Between two looks at the processes, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// An admission below the epoch that is to be drained.
struct Holder {
    key: Key,
    row: Granted,
    proxy: String,
    obstacle: Obstacle,
}

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
        let publish = sql::publish(resource, target, known, self.loaded(resource));
        let answers = self.run_past_blockers(&self.publish, resource, &publish).await?;
        Ok(self.learn(&answers).into_iter().next().map(|(_, epoch)| epoch))
    }

    /// Drains what is below the epoch, and marks it. Ok does not mean admitted: ask again.
    pub(super) async fn settle(
        self: &Arc<Self>,
        raising: Option<Raising<'_>>,
        resource: &Resource,
        current: Epoch,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let unavailable = |error| Refusal::unavailable(&resource.name, error);
        let start = Instant::now();
        let drained = self.drain(raising, resource, current, deadline).await;
        let waited = start.elapsed();
        self.metrics.drain_seconds.observe(waited.as_secs_f64());
        drained?;
        let marked = self.publish(&sql::mark(resource, current)).await.map_err(unavailable)?;
        let [_, _, update, prepared] = marked.as_slice() else { return Ok(()) };
        if update.affected > 0 {
            self.metrics.advances.inc();
            let Epoch { generation, token } = current;
            // However many keys there are, those of a resource are one kind.
            if !self.log_limit.allows("fence_advanced", resource.lock_name()) {
                return Ok(());
            }
            tracing::info!(
                database = self.name(),
                resource = resource.name,
                token,
                generation,
                ?waited,
                "fence_advanced"
            );
            return Ok(());
        }
        let gids: Vec<&str> = prepared.rows.iter().filter_map(|row| column(row, "gid")).collect();
        if !gids.is_empty() {
            let reason = format!("prepared transactions hold writes on it: {}", gids.join(", "));
            return Err(Refusal::unavailable(&resource.name, Hindrance::new(reason, Remedy::EndThem)));
        }
        // Marked or raised by somebody else meanwhile.
        Ok(())
    }

    /// Returns when no admission below the bound is left.
    async fn drain(
        self: &Arc<Self>,
        raising: Option<Raising<'_>>,
        resource: &Resource,
        bound: Epoch,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let unavailable = |error| Refusal::unavailable(&resource.name, error);
        let start = Instant::now();
        let mut pause = PAUSE.0;
        let mut signalled = HashSet::new();
        loop {
            self.bury(resource, bound, &signalled).await?;
            let mut holders = self.holders(resource, bound).await?;
            let is_its = |holder: &Holder, it: &Raising<'_>| holder.key == key(it.who) && !holder.row.ending;
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
            holders.retain(|holder| !spared.contains(&holder.key));
            if holders.is_empty() {
                return Ok(());
            }
            let grace_over = start.elapsed() >= GRACE;
            let mut due: Vec<&Key> = Vec::new();
            for holder in &holders {
                if (grace_over || holder.proxy == self.proxy) && !due.contains(&&holder.key) {
                    due.push(&holder.key);
                }
            }
            if !due.is_empty() {
                let processes = sql::processes(due.iter().map(|(pid, start)| (*pid, start.as_str())));
                self.look(&sql::terminate(&processes, &resource.name, bound)).await.map_err(unavailable)?;
                signalled.extend(due.into_iter().cloned());
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
            let lockers = self.lockers(resource, sql::WRITE_OR_ROW_LOCKS, &pids).await?;
            waiting.retain(|(pid, _)| !lockers.contains(pid));
        }
        // What was forwarded since may have written where only the guard saw it: then the row stays.
        let mut spared = HashSet::new();
        for (how, keys) in [("idle", &idle), ("released", &waiting)] {
            let rows: Vec<Granted> = rows.iter().filter(|row| keys.contains(&row.key())).cloned().collect();
            for row in self.delete_rows(resource, &rows).await? {
                self.drained(how, resource, Some(row.epoch.token), bound);
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
        let deleted = self.delete(&rows).await;
        deleted.map_err(|error| Refusal::unavailable(&resource.name, error))
    }

    /// The same for admissions to any resources, each with the name of the lock of its family.
    pub(super) async fn delete(self: &Arc<Self>, rows: &[(&Granted, &str)]) -> Result<Vec<Granted>, ControlError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.look(&sql::delete(rows.iter().copied())).await?;
        let deleted: Vec<Granted> = answers.iter().flat_map(|answer| &answer.rows).filter_map(granted).collect();
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
        let seen = self.look(&sql::guarded_write(resource, raising.who.pid)).await;
        let seen = seen.map_err(|error| Refusal::unavailable(&resource.name, error))?;
        let current = seen.iter().flat_map(|answer| &answer.rows).find_map(epoch);
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
        let own = holders.iter().filter(|holder| holder.key == key(raising.who)).map(|holder| holder.row.epoch).max();
        own.map_or(Ok(()), |epoch| Err(written_under(resource, bound.token, epoch)))
    }

    /// Deletes the rows of the dead.
    async fn bury(
        self: &Arc<Self>,
        resource: &Resource,
        bound: Epoch,
        signalled: &HashSet<Key>,
    ) -> Result<(), Refusal> {
        let dead = self.look(&sql::delete_dead(Some((&resource.name, bound)))).await;
        let dead = dead.map_err(|error| Refusal::unavailable(&resource.name, error))?;
        for row in dead.iter().flat_map(|answer| &answer.rows) {
            let by_us = key_of(row).is_some_and(|key| signalled.contains(&key));
            self.drained(if by_us { "terminated" } else { "dead" }, resource, number(row, "token"), bound);
        }
        Ok(())
    }

    async fn holders(self: &Arc<Self>, resource: &Resource, bound: Epoch) -> Result<Vec<Holder>, Refusal> {
        let unreadable = || Refusal::unavailable(&resource.name, "an admission cannot be read");
        let answers = self.look(&sql::holders(&resource.name, bound)).await;
        let answers = answers.map_err(|error| Refusal::unavailable(&resource.name, error))?;
        let rows = answers.iter().flat_map(|answer| &answer.rows);
        rows.map(|row| {
            let granted = granted(row).ok_or_else(unreadable)?;
            let waits = column(row, "waits").unwrap_or("nothing");
            let obstacle = Obstacle {
                who: format!("process {} under token {}, waiting for {waits}", granted.pid, granted.epoch.token),
                query: column(row, "query").unwrap_or_default().to_owned(),
            };
            let proxy = column(row, "proxy").unwrap_or_default().to_owned();
            Ok(Holder { key: granted.key(), row: granted, proxy, obstacle })
        })
        .collect()
    }

    async fn lockers(
        self: &Arc<Self>,
        resource: &Resource,
        locks: &str,
        pids: &[i32],
    ) -> Result<HashSet<i32>, Refusal> {
        let answers = self.look(&sql::lockers(resource, locks, pids)).await;
        let answers = answers.map_err(|error| Refusal::unavailable(&resource.name, error))?;
        Ok(answers.iter().flat_map(|answer| &answer.rows).filter_map(|row| number(row, "pid")).collect())
    }

    /// The own sessions among those that have these rows.
    fn registered(&self, rows: &[Granted]) -> Vec<Arc<SessionFence>> {
        let keys: HashSet<Key> = rows.iter().map(Granted::key).collect();
        keys.iter().filter_map(|key| self.sessions.get(key).map(|session| session.fence.clone())).collect()
    }

    fn drained(&self, how: &str, resource: &Resource, presented: Option<i64>, highest: Epoch) {
        self.metrics.drained_sessions.with_label_values(&[how]).inc();
        let (resource, highest) = (resource.name.as_str(), highest.token);
        tracing::info!(database = self.name(), resource, presented, highest, how, "session_drained");
    }
}

/// The session's open transaction has written under the epoch, and would go on under another token.
fn written_under(resource: &Resource, presented: Token, epoch: Epoch) -> Refusal {
    Refusal::WrittenUnderAnotherToken { resource: resource.name.clone(), presented, current: epoch.token }
}

fn key_of(row: &SimpleQueryRow) -> Option<Key> {
    Some((number(row, "pid")?, column(row, "backend_start")?.to_owned()))
}

fn rows_of(holders: Vec<Holder>) -> Vec<Granted> {
    holders.into_iter().map(|holder| holder.row).collect()
}

/// An admission, as it was read.
pub(super) fn granted(row: &SimpleQueryRow) -> Option<Granted> {
    let (pid, backend_start) = key_of(row)?;
    let (resource, version) = (column(row, "resource")?.to_owned(), number(row, "version")?);
    Some(Granted { pid, backend_start, resource, epoch: epoch(row)?, version, ending: is_true(row, "ending") })
}

impl Granted {
    pub(super) fn key(&self) -> Key {
        (self.pid, self.backend_start.clone())
    }
}
