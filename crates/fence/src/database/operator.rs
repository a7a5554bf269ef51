//! Operations for operators: putting policies in force, resetting a fence, and lists of fences, admissions and leases.
//!
//! Must never decide whether a session may write, because the rows may have changed since they were read.

use super::Database;
use crate::enforcement::{self, RecordError};
use crate::issuer::{self, UnknownLeader};
use crate::reset::{self, Reset, ResetError};
use crate::session::Token;
use crate::store::{Admission, Bounded, Enforcement, Fences, MOST_KEYS, StoreError, StoredLease};
use crate::watcher::Leased;
use fencegate_policy::{Issuer, Resource};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

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
        self.apply_policy_of(resources, Instant::now()).await
    }

    /// Puts the resources in force, at start and after each reload. Records their fingerprints in existing epochs, so that
    /// proxies with different policies are refused. Never replaces recorded policies that were loaded later.
    ///
    /// Not cancel-safe: some resources may be recorded and others not.
    ///
    /// # Errors
    /// Not all policies could be recorded. The call may be repeated.
    pub async fn apply_policy_of(&self, resources: &[Arc<Resource>], loaded: Instant) -> Result<(), RecordError> {
        self.policies.put(resources, loaded);
        enforcement::record(self.context(), resources).await
    }

    /// The part of [`Database::apply_policy`] that needs no database.
    pub fn put_in_force(&self, resources: &[Arc<Resource>]) {
        self.policies.put(resources, Instant::now());
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
