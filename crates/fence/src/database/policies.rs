//! Putting policies in force in a database, and how far they are enforced.

use super::Database;
use crate::record::RecordError;
use crate::store::{Enforcement, StoreError};
use crate::{enforcement, record};
use fencegate_policy::Resource;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

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
        record::record(self.context(), resources).await
    }

    /// The part of [`Database::apply_policy`] that needs no database.
    pub fn put_in_force(&self, resources: &[Arc<Resource>]) {
        self.policies.put(resources, Instant::now());
    }

    /// Checks whether another proxy has recorded policies that were loaded later. Does nothing while this proxy's load time is
    /// unknown. Keyed resources are checked by an Admit instead. Cancel-safe.
    pub async fn check_policies(&self) {
        record::check(self.context()).await
    }

    /// The resources for which another proxy is known to have recorded policies that were loaded later. Keyed resources appear
    /// under the name of their lock.
    pub fn superseded(&self) -> BTreeSet<String> {
        self.policies.superseded()
    }

    /// The resource in force with this name, which may be that of a key. Resources of keys are created on each call, because
    /// their number is unbounded.
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

    /// Waits until all work forwarded before the resource was put in force has ended: first the messages of own sessions, which
    /// may lie unread in the server's socket without a transaction, then every transaction that is open in the database.
    /// Cancel-safe.
    pub async fn enforced(&self, resource: &Resource) -> Result<(), StoreError> {
        enforcement::wait(self.context(), resource).await
    }
}
