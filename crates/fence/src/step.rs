//! The arguments of the protocol's steps: the database's store, plain state of this proxy, and the services that databases
//! share, which the program supplies.
//!
//! Owns the actions that several steps share: reading epochs, deleting admissions, and the log of an advance. Must never
//! decide that a session may write.

use super::authority::Authority;
use super::background::Background;
use super::fence_error::{FenceError, about};
use super::log_limit::LogLimit;
use super::memory::Memory;
use super::policies::Policies;
use super::registry::Registry;
use super::session::{Epoch, Identity, SessionFence, Token};
use super::store::{AdmissionRow, Found, Holder, Store, StoreError};
use super::watcher::Watcher;
use fencegate_policy::Resource;
use prometheus::{Histogram, IntCounter, IntCounterVec};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The parts of a database that a step uses.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) environment: &'a Environment,
    /// Use [`Self::store`], unless the operation opens no connection.
    pub(super) unwatched: &'a dyn Store,
    pub(super) memory: &'a Memory,
    pub(super) sessions: &'a Registry,
    pub(super) policies: &'a Policies,
    pub(super) watcher: &'a Watcher,
}

/// The session that needs the epoch. It keeps its server process.
#[derive(Clone, Copy)]
pub(super) struct Raising<'a> {
    pub(super) session: &'a SessionFence,
    pub(super) identity: &'a Identity,
}

/// One advance of a resource to an epoch.
pub(super) struct Advance<'a> {
    pub(super) context: Context<'a>,
    pub(super) resource: &'a Resource,
    pub(super) to: Epoch,
    /// None for a reset, and for a leader that is shut out before its successor writes.
    pub(super) raising: Option<Raising<'a>>,
}

impl<'a> Context<'a> {
    /// The store for an operation. Starts the watcher if it does not run.
    pub(super) fn store(&self) -> &'a dyn Store {
        debug_assert!(self.environment.background.is_here(), "a relay thread must not wait for a control connection");
        self.watcher.ensure();
        self.unwatched
    }

    /// The advance of the resource to the epoch, without a session.
    pub(super) fn advance(self, resource: &'a Resource, to: Epoch) -> Advance<'a> {
        Advance { context: self, resource, to, raising: None }
    }

    /// Returns true if the database did not exist at the last attempt to connect, and has no sessions.
    pub(super) fn is_missing(&self) -> bool {
        self.unwatched.found() == Found::Missing && self.sessions.is_empty()
    }

    /// Reads and remembers the epochs of these resources. Forgets resources without an epoch. Cancel-safe.
    pub(super) async fn read_epochs(&self, resources: &[&str]) -> Result<Vec<(String, Epoch)>, StoreError> {
        let read = self.store().epochs(resources).await?;
        let read: Vec<_> = read.into_iter().map(|it| (it.resource, it.epoch)).collect();
        read.iter().for_each(|(resource, epoch)| self.memory.learn(resource, *epoch));
        let there: HashSet<&str> = read.iter().map(|(resource, _)| resource.as_str()).collect();
        resources.iter().filter(|resource| !there.contains(*resource)).for_each(|it| self.memory.forget(it));
        Ok(read)
    }

    /// Deletes admissions that are unchanged since they were read. Each comes with the name of its family's lock. Returns the
    /// deleted ones.
    pub(super) async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let deleted = self.store().delete(rows).await?;
        deleted.iter().for_each(|row| self.sessions.released(&row.key(), &row.resource, row.epoch));
        Ok(deleted)
    }

    /// The resources of keys to which a session of this proxy is admitted.
    pub(super) fn keys_in_use(&self) -> Vec<Arc<Resource>> {
        let names = self.sessions.presented();
        names.iter().filter_map(|name| self.policies.find(name)).filter(|it| it.family.is_some()).collect()
    }
}

impl<'a> Advance<'a> {
    /// Advances for a session that raises its token.
    pub(super) fn by(self, raising: Raising<'a>) -> Self {
        Advance { raising: Some(raising), ..self }
    }

    /// The admissions below the epoch. Cancel-safe.
    pub(super) async fn holders(&self) -> Result<Vec<Holder>, FenceError> {
        self.about(self.context.store().holders(&self.resource.name, self.to).await)
    }

    /// As [`Context::delete`], for admissions to this resource.
    pub(super) async fn delete(&self, rows: &[AdmissionRow]) -> Result<Vec<AdmissionRow>, FenceError> {
        let rows: Vec<_> = rows.iter().map(|row| (row, self.resource.lock_name())).collect();
        self.about(self.context.delete(&rows).await)
    }

    pub(super) fn log_advanced(&self, waited: Duration) {
        let Advance { context, resource, to: Epoch { generation, token }, .. } = self;
        context.environment.metrics.advances.inc();
        context.memory.record_epoch_change(&resource.name, None, self.to);
        // All keys of a resource share one log limit, because their number is unbounded.
        if context.environment.log_limit.allows("fence_advanced", resource.lock_name()) {
            let (database, resource) = (context.environment.name.as_str(), resource.name.as_str());
            let waited_seconds = waited.as_secs_f64();
            tracing::info!(database, resource, token, generation, waited_seconds, "fence_advanced");
        }
    }

    pub(super) fn log_drained(&self, how: &str, presented: Token) {
        let Environment { name, metrics, .. } = self.context.environment;
        metrics.drained_sessions.with_label_values(&[how]).inc();
        let (database, resource, highest) = (name.as_str(), self.resource.name.as_str(), self.to.token);
        tracing::info!(database, resource, presented, highest, how, "session_drained");
    }

    pub(super) fn about<T>(&self, answer: Result<T, StoreError>) -> Result<T, FenceError> {
        about(self.resource, answer)
    }
}

pub(super) fn rows_of(holders: Vec<Holder>) -> Vec<AdmissionRow> {
    holders.into_iter().map(|holder| holder.row).collect()
}

/// The surroundings of one database.
#[derive(Debug)]
pub(super) struct Environment {
    /// The name of the database.
    pub(super) name: String,
    /// The id of this proxy process in the admissions that it grants. Unique to the process.
    pub(super) proxy: String,
    /// Confirms a token before it raises a fence whose policy names an election.
    pub(super) authority: Arc<Authority>,
    pub(super) metrics: FenceMetrics,
    /// The runtime for all work that queries the database.
    pub(super) background: Background,
    /// Limits the log when tokens are raised very often.
    pub(super) log_limit: Arc<LogLimit>,
}

/// Counters that the program registers.
#[derive(Clone, Debug)]
pub struct FenceMetrics {
    /// Fences that this proxy has raised and drained.
    pub advances: IntCounter,
    /// Duration of drains, in seconds.
    pub drain_seconds: Histogram,
    /// Admissions that a newer token ended, by method.
    pub drained_sessions: IntCounterVec,
    /// Sessions that were admitted to a resource.
    pub admissions: IntCounter,
}
