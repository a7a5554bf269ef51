//! The policies in force in a database, and the time of their load.
//!
//! Owns recording them in the database. Must never replace recorded policies by older ones.

use super::database::Database;
use super::store::StoreError;
use fencegate_policy::Resource;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Why policies could not all be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The database did not answer before the first resource.
    #[error(transparent)]
    Database(#[from] StoreError),
    /// The policies of this resource could not be recorded.
    #[error("resource {resource}: {error}")]
    Resource {
        /// The resource.
        resource: String,
        /// The cause.
        #[source]
        error: StoreError,
    },
}

/// The policies in force.
#[derive(Debug)]
pub(super) struct InForce {
    /// The resources that a notification's name may mean.
    resources: Vec<Arc<Resource>>,
    /// The fingerprints of `resources`, for fast lookups.
    fingerprints: HashSet<String>,
    loaded: Instant,
    /// The time of the load by the clock of the database, from [`super::store::Store::now`]; 0 until it was queried.
    loaded_there: i64,
}

impl InForce {
    pub(super) fn nothing() -> RwLock<Self> {
        RwLock::new(InForce::of(&[], Instant::now(), 0))
    }

    fn of(resources: &[Arc<Resource>], loaded: Instant, loaded_there: i64) -> Self {
        let fingerprints = resources.iter().map(|resource| resource.fingerprint.clone()).collect();
        InForce { resources: resources.to_vec(), fingerprints, loaded, loaded_there }
    }
}

impl Database {
    /// Puts the resources in force. Their policies were loaded just now.
    /// Not cancel-safe, as [`Database::apply_policy_of`].
    pub async fn apply_policy(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<(), RecordError> {
        self.apply_policy_of(resources, Instant::now()).await
    }

    /// Puts the resources in force, at start and after each reload. Records their fingerprints in existing epochs, so that
    /// proxies with different policies are refused. Never replaces recorded policies that were loaded later.
    ///
    /// Not cancel-safe: some resources may be recorded and others not.
    ///
    /// # Errors
    /// Not all policies could be recorded. The call may be repeated.
    pub async fn apply_policy_of(
        self: &Arc<Self>,
        resources: &[Arc<Resource>],
        loaded: Instant,
    ) -> Result<(), RecordError> {
        self.put_in_force_since(resources, loaded);
        // Before a session of this proxy writes, so that the fences do not count as enforced until this proxy enforces them.
        self.announce().await?;
        self.ask_when_loaded().await?;
        for resource in resources {
            let failed = |error| RecordError::Resource { resource: resource.name.clone(), error };
            self.record_policy(resource).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The part of [`Database::apply_policy`] that needs no database.
    pub fn put_in_force(&self, resources: &[Arc<Resource>]) {
        self.put_in_force_since(resources, Instant::now());
    }

    fn put_in_force_since(&self, resources: &[Arc<Resource>], loaded: Instant) {
        let mut policies = self.policies.write();
        // Policies that are recorded again keep their load time.
        let loaded_there = if policies.loaded == loaded { policies.loaded_there } else { 0 };
        if policies.loaded != loaded {
            self.superseded.lock().clear();
        }
        *policies = InForce::of(resources, loaded, loaded_there);
        drop(policies);
        self.enforced.keep(resources);
    }

    /// Returns true if a resource is in force.
    pub(super) fn has_policies(&self) -> bool {
        !self.policies.read().resources.is_empty()
    }

    /// Returns true if the resource is in force with exactly this policy.
    pub(super) fn resource_in_force(&self, resource: &Resource) -> bool {
        self.policies.read().fingerprints.contains(&resource.fingerprint)
    }

    /// The time at which the policies in force were loaded, by the database's clock, because the clocks of proxies may differ.
    /// 0, which counts as oldest, if the resource is not in force or the time is not known yet.
    pub(super) fn loaded(&self, resource: &Resource) -> i64 {
        if self.resource_in_force(resource) { self.policies.read().loaded_there } else { 0 }
    }

    /// The resources with a lease, without those of keys.
    pub(super) fn leased_resources(&self) -> Vec<Arc<Resource>> {
        self.policies.read().resources.iter().filter(|it| it.lease().is_some()).cloned().collect()
    }

    /// Returns true if `is_such` holds for a resource in force.
    pub(super) fn has_keys(&self, is_such: fn(&Resource) -> bool) -> bool {
        self.policies.read().resources.iter().any(|it| is_such(it))
    }

    /// The resources of keys to which a session of this proxy is admitted.
    pub fn keys_in_use(&self) -> Vec<Arc<Resource>> {
        let mut names = BTreeSet::new();
        self.sessions.iter().for_each(|session| session.add_presented(&mut names));
        names.iter().filter_map(|name| self.resource(name)).filter(|it| it.family.is_some()).collect()
    }

    /// Determines the load time by the database's clock, once per load. However long the answer takes, the result is never later
    /// than the actual load.
    async fn ask_when_loaded(self: &Arc<Self>) -> Result<(), StoreError> {
        let loaded = self.policies.read().loaded;
        let now = self.store().now().await?;
        let age = tokio::time::Instant::now().into_std().saturating_duration_since(loaded);
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let mut policies = self.policies.write();
        if policies.loaded == loaded && policies.loaded_there == 0 {
            policies.loaded_there = now.saturating_sub(age).max(0);
        }
        Ok(())
    }

    /// Records the policies of a resource, if they were loaded after those that are recorded.
    pub(super) async fn record_policy(self: &Arc<Self>, resource: &Resource) -> Result<(), StoreError> {
        let loaded = self.loaded(resource);
        if loaded == 0 {
            return Ok(());
        }
        self.store().record_policy(resource, loaded).await
    }

    /// Checks whether another proxy has recorded policies that were loaded later. Does nothing while this proxy's load time is
    /// unknown. Keyed resources are checked by an Admit instead. Cancel-safe.
    pub async fn check_policies(self: &Arc<Self>) {
        let (plain, loaded, loaded_there) = {
            let policies = self.policies.read();
            let plain = policies.resources.iter().filter(|resource| resource.keyed.is_none()).cloned();
            (plain.collect::<Vec<_>>(), policies.loaded, policies.loaded_there)
        };
        if plain.is_empty() || loaded_there == 0 {
            return;
        }
        let Ok(found) = self.store().superseded(&plain, loaded_there).await else { return };
        if self.policies.read().loaded == loaded {
            for resource in plain {
                self.note_superseded(&resource, found.contains(&resource.name));
            }
        }
    }

    /// Records whether the resource's policies are superseded, and logs it once.
    pub(super) fn note_superseded(&self, resource: &Resource, is_superseded: bool) {
        if !self.resource_in_force(resource) {
            return;
        }
        let name = resource.lock_name();
        let mut superseded = self.superseded.lock();
        if !is_superseded {
            superseded.remove(name);
        } else if superseded.insert(name.to_owned()) {
            tracing::warn!(database = self.name(), resource = name, "policies_superseded");
        }
    }

    /// The resources for which another proxy is known to have recorded policies that were loaded later. Keyed resources appear
    /// under the name of their lock.
    pub fn superseded(&self) -> BTreeSet<String> {
        self.superseded.lock().clone()
    }

    /// The resource in force with this name, which may be that of a key. Resources of keys are created on each call, because
    /// their number is unbounded.
    pub fn resource(&self, name: &str) -> Option<Arc<Resource>> {
        self.policies.read().resources.iter().find_map(|resource| resource.called(name))
    }

    /// The names of the resources in force that are not keyed.
    pub(super) fn plain_resources(&self) -> Vec<String> {
        let policies = self.policies.read();
        let plain = policies.resources.iter().filter(|resource| resource.keyed.is_none());
        plain.map(|resource| resource.name.clone()).collect()
    }
}
