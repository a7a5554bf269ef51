//! The operations of a database. For sessions: admission, release, the reasons of a refusal, and the close of control connections
//! for `DROP DATABASE` and similar statements, which need a database without other connections. For operators: policies in force,
//! a reset, and lists of fences, admissions and leases.
//!
//! Owns the time of the close, and whether such a statement waits. Must never
//! - close the connections while sessions need them, unless the statement terminates those sessions: a statement that the server
//!   refuses must be harmless;
//! - decide by a list whether a session may write, because the rows may have changed since they were read.
//!
//! Functions here are not cancel-safe unless their comment says so.

use super::Database;
use crate::enforcement::{self, RecordError};
use crate::fence_error::{CutOff, FenceError};
use crate::issuer::{self, UnknownLeader};
use crate::memory::EpochChange;
use crate::raising::Raise;
use crate::reset::{self, Reset, ResetError};
use crate::session::{Epoch, SessionFence, Token};
use crate::store::{Admission, Bounded, Enforcement, Fences, MOST_KEYS, Role, StoreError, StoredLease};
use crate::together::{self, Wanted};
use crate::watcher::Leased;
use crate::{admit, overtake, release};
use fencegate_policy::{Issuer, Resource};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Maximum wait for the reason why a session has ended. A server that hangs does not answer control connections either.
const CUT_OFF_LIMIT: Duration = Duration::from_secs(2);

impl Database {
    /// Admits the session's server process to the resource under the token. Raises and drains the epoch
    /// first if necessary. After Ok, no process with a lower token can commit a write to the resource,
    /// and [`SessionFence::begin_write`] returns true.
    ///
    /// The caller holds back this session's writes until the call returns. A session that is revoked in
    /// the meantime is refused. Before a raise, and before it trusts an epoch on a server that was just started or
    /// promoted, checks etcd if the policy names an election, or the database if it names a lease. Takes at most about 15 s.
    ///
    /// Not cancel-safe: the token may have been raised although the session is not admitted.
    pub async fn admit(
        &self,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
    ) -> Result<(), FenceError> {
        self.admit_if(session, resource, token, Raise::Freely).await
    }

    /// As [`Database::admit`], but raises the epoch only as `raise` says.
    pub async fn admit_if(
        &self,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        admit::admit(self.context(), &self.raising, session, resource, token, raise).await
    }

    /// Admits the session's server process to those of the resources for which it need not wait, many in one Query.
    /// [`Database::admit_if`] admits it to the others.
    ///
    /// Not cancel-safe, like [`Database::admit`].
    ///
    /// # Errors
    /// The session may not be admitted to so many resources; or the role of the session has to be determined first.
    pub async fn admit_together(&self, session: &Arc<SessionFence>, wanted: &[Wanted<'_>]) -> Result<(), FenceError> {
        together::admit(self.context(), &self.raising, session, wanted).await
    }

    /// Deletes the rows that a revoked session can spare, so that its process need not be terminated. Cancel-safe.
    pub async fn release(&self, session: &Arc<SessionFence>) {
        release::release(self.context(), session).await
    }

    /// Explains why this session's server process was terminated: the newer epoch of a resource to which the session
    /// was admitted, if any. Reads the database, because a notification may not have arrived yet. If the read fails or
    /// takes too long, uses the epochs that revoked the session. Reads nothing for a session that was never admitted, because
    /// such a session blocks no other.
    ///
    /// Cancel-safe.
    pub async fn cut_off_by(&self, session: &SessionFence) -> Option<CutOff> {
        let (presented, asking) = (session.presented(), session.asking());
        if presented.is_empty() && asking.is_none() {
            return None;
        }
        let names = presented.keys().chain(asking.iter().map(|(resource, _)| resource)).map(String::as_str);
        let read = timeout(CUT_OFF_LIMIT, self.context().read_epochs(&names.collect::<Vec<_>>())).await;
        let highest = read.ok().and_then(Result::ok).unwrap_or_else(|| session.floors());
        highest.into_iter().find_map(|(resource, highest)| {
            let asked =
                asking.iter().find(|(name, _)| *name == resource).map(|(_, token)| Epoch { token: *token, ..highest });
            // A session that raises its token may have been terminated because of its older admission.
            let presented = [presented.get(&resource).map(|it| it.epoch), asked];
            let presented = presented.into_iter().flatten().filter(|it| *it < highest).max()?;
            Some(CutOff { resource, presented, highest })
        })
    }

    /// A quick refusal from memory: the current epoch, if the token is certainly below it. Confirmed in the database at least
    /// once a second. None decides nothing: the caller continues with [`Database::admit`].
    pub fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        // If the epoch is above the followed leader's token, tokens have gone back or the follower lags. Only the database and
        // etcd can tell which.
        let is_leaders = || self.policies.find(resource).is_some_and(|it| issuer::leads(self.context(), &it, token));
        self.memory.above(resource, token).filter(|_| !is_leaders())
    }

    /// Returns true if the token is that of the epoch last read, so that there is nothing to record.
    pub fn is_current(&self, resource: &Resource, token: Token) -> bool {
        self.memory.is_current(&resource.name, token)
    }

    /// For a fence in mode observe: records a token. Cancel-safe.
    ///
    /// # Errors
    /// Why a write under the token would be rejected.
    pub async fn observe(
        &self,
        session: &SessionFence,
        resource: &Resource,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        overtake::observe(self.context(), session, resource, token, raise).await
    }

    /// Raises the fence to the token of a leader that has not written yet. This shuts out its predecessor immediately.
    /// Does nothing if the resource has no epoch. A token that was superseded in the meantime raises nothing.
    ///
    /// The argument does not depend on this: the leader's first write has the same effect.
    /// The caller must retry after LF006.
    pub async fn overtake(&self, resource: &Resource, token: Token) -> Result<(), FenceError> {
        overtake::overtake(self.context(), &self.raising.resource_locks, resource, token).await
    }

    /// Returns true if the resource's epoch was lower than the token when it was last read. The fence must then be raised, even
    /// if it was raised before: a reset may have lowered it, or the first epoch was created under a token that is now old.
    pub fn is_behind(&self, resource: &Resource, token: Token) -> bool {
        self.memory.is_below(&resource.name, token)
    }

    /// Returns after an epoch was read that differs from the remembered one. Cancel-safe. Supports one waiter.
    pub fn epoch_changed(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.changed.notified().await }
    }

    /// The tokens of the resources that are not keyed, as they were last read.
    pub fn known_tokens(&self) -> Vec<(String, Token)> {
        let known = |name: String| self.memory.last_read(&name).map(|epoch| (name, epoch.token));
        self.policies.plain_names().into_iter().filter_map(known).collect()
    }

    /// The fences that any proxy raised or reset recently, as far as this one has read them. The latest is last.
    pub fn epoch_changes(&self) -> Vec<EpochChange> {
        self.memory.epoch_changes()
    }
}

/// Time that the server waits for other sessions to end before it refuses the statement (`CountOtherDBBackends`).
const SERVER_WAITS: Duration = Duration::from_secs(5);

impl Database {
    /// The subset of the databases that the role may not drop, rename or move. The databases need not include this one. Empty if
    /// the control connection cannot report them. Cancel-safe.
    pub async fn foreign_databases(&self, role: &Role, databases: &[String]) -> HashSet<String> {
        self.context().store().foreign_databases(role, databases).await.unwrap_or_default()
    }

    /// Returns true if a control connection is open.
    pub fn is_open(&self) -> bool {
        self.store.is_open()
    }

    /// Call this before forwarding a statement that needs this database exclusively. Closes the control connections if `role`,
    /// as which the session acts, may run the statement.
    ///
    /// If other sessions use the database and the statement does not terminate them, the connections close after the last of
    /// these sessions, if it ends while the server waits for it. `from_here`: the session of the statement is itself in this
    /// database, and does not count.
    ///
    /// If the role cannot be checked, the connections stay open. The server then refuses the statement, which can be retried.
    /// Cancel-safe.
    pub async fn vacate(&self, role: &Role, by_force: bool, from_here: bool) {
        if !self.store.is_open() {
            return;
        }
        let has_others = self.sessions.len() > usize::from(from_here);
        if !self.context().store().may_drop_database(role, by_force && has_others).await.unwrap_or(false) {
            return;
        }
        let until = Instant::now() + SERVER_WAITS;
        // Before the watcher may close them: with FORCE, its close must also wait for their end.
        self.store.keep_closed(by_force.then_some(until));
        self.vacating.set(Some(until));
        if by_force || !has_others {
            // With FORCE the server does not wait. It terminates the sessions that the role may terminate, which may not include
            // those of the control role. These must therefore have ended, and none may open.
            self.watcher.stop();
            self.close_connections(by_force).await;
        }
    }

    /// Permits control connections again after the database was dropped, renamed or the like. Another database may now have its
    /// name.
    pub fn end_vacating(&self) {
        self.vacating.set(None);
        self.store.keep_closed(None);
    }
}

/// The time until which a statement waits for exclusive use of the database.
#[derive(Debug, Default)]
pub(crate) struct Vacating(Mutex<Option<Instant>>);

impl Vacating {
    /// Returns true if a statement waits. The control connections then close as soon as no session is left.
    pub(crate) fn lasts(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// A statement waits until that time. None: no statement waits.
    pub(crate) fn set(&self, until: Option<Instant>) {
        *self.0.lock() = until;
    }
}

/// Maximum number of admissions that are listed for a database.
const MOST: usize = 10_000;

/// Maximum number of leases of a database that are listed.
const MOST_SHOWN: usize = 1000;

impl Database {
    /// Sets the token of a resource, which may be lower. Each error states what was changed. Not cancel-safe: the epoch may be
    /// reset and not drained. May be repeated.
    pub async fn reset(
        &self,
        resource: &Arc<Resource>,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<Reset, ResetError> {
        reset::reset(self.context(), resource, token, role, force).await
    }

    /// The fences of those of these resources that have an epoch. Cancel-safe.
    pub async fn fences(&self, resources: &[Arc<Resource>]) -> Result<Fences, StoreError> {
        let fences = self.context().store().fences(resources, MOST_KEYS).await?;
        let all = fences.plain.iter().chain(fences.of_keys.iter().map(|(name, fence)| (name, fence)));
        all.for_each(|(name, fence)| self.memory.learn(name, fence.epoch));
        Ok(fences)
    }

    /// Returns true if the resource has an epoch. Cancel-safe.
    pub async fn has_epoch(&self, resource: &Resource) -> Result<bool, StoreError> {
        Ok(!self.context().read_epochs(&[resource.name.as_str()]).await?.is_empty())
    }

    /// All admissions, granted by any proxy. Cancel-safe.
    pub async fn admissions(&self) -> Result<Bounded<Admission>, StoreError> {
        self.context().store().admissions(MOST).await
    }

    /// The tokens of the observed leases. While there are sessions, these are the leases of all resources that are not keyed, and
    /// of the keys to which a session is admitted. They never justify an admission or a raise.
    pub fn leased(&self) -> watch::Receiver<Leased> {
        self.watcher.leased()
    }

    /// Reads the current leases of those resources whose policies name one. Cancel-safe.
    pub async fn read_leases(&self, resources: &[Arc<Resource>]) -> Result<Leased, StoreError> {
        issuer::read(self.context(), resources).await
    }

    /// Reads the leases of all elections, at most 1000. Cancel-safe.
    pub async fn leases(&self) -> Result<Bounded<StoredLease>, StoreError> {
        self.context().store().all_leases(MOST_SHOWN).await
    }

    /// Queries the token of the issuer's current leader. None: there is no leader. Cancel-safe.
    pub async fn leader(&self, issuer: &Issuer) -> Result<Option<Token>, UnknownLeader> {
        issuer::leader(self.context(), issuer).await
    }
}

impl Database {
    /// Puts the resources in force. Their policies were loaded just now.
    /// Not cancel-safe, as [`Database::apply_policy_of`].
    pub async fn apply_policy(&self, resources: &[Arc<Resource>]) -> Result<(), RecordError> {
        self.apply_policy_of(resources, std::time::Instant::now()).await
    }

    /// Puts the resources in force, at start and after each reload. Records their fingerprints in existing epochs, so that
    /// proxies with different policies are refused. Never replaces recorded policies that were loaded later.
    ///
    /// Not cancel-safe: some resources may be recorded and others not.
    ///
    /// # Errors
    /// Not all policies could be recorded. The call may be repeated.
    pub async fn apply_policy_of(
        &self,
        resources: &[Arc<Resource>],
        loaded: std::time::Instant,
    ) -> Result<(), RecordError> {
        self.policies.put(resources, loaded);
        enforcement::record(self.context(), resources).await
    }

    /// The part of [`Database::apply_policy`] that needs no database.
    pub fn put_in_force(&self, resources: &[Arc<Resource>]) {
        self.policies.put(resources, std::time::Instant::now());
    }

    /// Checks whether another proxy has recorded policies that were loaded later. Cancel-safe.
    pub async fn check_policies(&self) {
        enforcement::check(self.context()).await
    }

    /// The resources for which another proxy is known to have recorded policies that were loaded later. Keyed resources appear
    /// under the name of their lock.
    pub fn superseded(&self) -> BTreeSet<String> {
        self.policies.superseded()
    }

    /// The resource in force with this name, which may be that of a key.
    pub fn resource(&self, name: &str) -> Option<Arc<Resource>> {
        self.policies.find(name)
    }

    /// The resources of keys to which a session of this proxy is admitted.
    pub fn keys_in_use(&self) -> Vec<Arc<Resource>> {
        self.context().keys_in_use()
    }

    /// Reads which proxies enforce these fences. Cancel-safe.
    pub async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
        enforcement::read(self.context(), resources).await
    }

    /// Waits until all work forwarded before the resource was put in force has ended. Cancel-safe.
    pub async fn enforced(&self, resource: &Resource) -> Result<(), StoreError> {
        enforcement::wait(self.context(), resource).await
    }
}
