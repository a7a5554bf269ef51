//! The policies in force in a database, and since when.
//!
//! Owns recording them in the database. Must never record older policies over newer ones.

use super::database::Database;
use super::store::StoreError;
use crate::policy::Resource;
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
    /// Theirs: each resource is looked for when all are looked at.
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
    /// Puts the resources in force, whose policies were loaded just now.
    /// Not cancel-safe, as [`Database::apply_policy_of`].
    pub async fn apply_policy(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<(), RecordError> {
        self.apply_policy_of(resources, Instant::now()).await
    }

    /// Puts the resources in force: at start, and whenever the policies were loaded anew. Epochs that exist get their
    /// fingerprints, so that proxies with other policies are refused; but not where policies are recorded that were
    /// loaded later.
    ///
    /// Not cancel-safe: some resources may be recorded and others not.
    ///
    /// # Errors
    /// They could not all be recorded. The call may be repeated.
    pub async fn apply_policy_of(
        self: &Arc<Self>,
        resources: &[Arc<Resource>],
        loaded: Instant,
    ) -> Result<(), RecordError> {
        self.put_in_force_since(resources, loaded);
        // Before a session of this proxy writes: until all of them are enforced here, nobody says that they are.
        self.announce().await?;
        self.ask_when_loaded().await?;
        for resource in resources {
            let failed = |error| RecordError::Resource { resource: resource.name.clone(), error };
            self.record_policy(resource).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The half of [`Database::apply_policy`] that takes place in this process.
    pub fn put_in_force(&self, resources: &[Arc<Resource>]) {
        self.put_in_force_since(resources, Instant::now());
    }

    fn put_in_force_since(&self, resources: &[Arc<Resource>], loaded: Instant) {
        let mut policies = self.policies.write();
        // Those that are recorded once more claim no later time.
        let loaded_there = if policies.loaded == loaded { policies.loaded_there } else { 0 };
        if policies.loaded != loaded {
            self.superseded.lock().clear();
        }
        *policies = InForce::of(resources, loaded, loaded_there);
        drop(policies);
        self.enforced.keep(resources);
    }

    /// Some resource is in force.
    pub(super) fn has_policies(&self) -> bool {
        !self.policies.read().resources.is_empty()
    }

    /// The resource is in force as it is.
    pub(super) fn resource_in_force(&self, resource: &Resource) -> bool {
        self.policies.read().fingerprints.contains(&resource.fingerprint)
    }

    /// When the policies in force were loaded, if the resource is of them, by the clock of the database. Proxies' own clocks
    /// need not agree. 0, which is before all others, while that is not known.
    pub(super) fn loaded(&self, resource: &Resource) -> i64 {
        if self.resource_in_force(resource) { self.policies.read().loaded_there } else { 0 }
    }

    /// The resources that have a lease, those of keys left out.
    pub(super) fn leased_resources(&self) -> Vec<Arc<Resource>> {
        self.policies.read().resources.iter().filter(|it| it.lease().is_some()).cloned().collect()
    }

    /// Some resource in force is such a keyed one.
    pub(super) fn has_keys(&self, is_such: fn(&Resource) -> bool) -> bool {
        self.policies.read().resources.iter().any(|it| is_such(it))
    }

    /// The resources of keys to which a session of this proxy is admitted.
    pub(crate) fn keys_in_use(&self) -> Vec<Arc<Resource>> {
        let mut names = BTreeSet::new();
        self.sessions.iter().for_each(|session| session.add_presented(&mut names));
        names.iter().filter_map(|name| self.resource(name)).filter(|it| it.family.is_some()).collect()
    }

    /// Asked once, and kept. Whatever the answer takes, it is not later than they were loaded.
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

    /// Looks whether another proxy has recorded policies that were loaded later. Nothing is asked before these were recorded.
    /// Keyed resources are checked by an Admit. Cancel-safe.
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

    /// Says so once.
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

    /// The resources for which another proxy has recorded policies that were loaded later, as far as is known; of keyed ones
    /// the name of their lock.
    pub fn superseded(&self) -> BTreeSet<String> {
        self.superseded.lock().clone()
    }

    /// The resource in force of that name, or that of a key; the latter is made anew each time, since there may be any
    /// number of them.
    pub(crate) fn resource(&self, name: &str) -> Option<Arc<Resource>> {
        self.policies.read().resources.iter().find_map(|resource| resource.called(name))
    }

    /// The names of the resources in force that are not keyed.
    pub(super) fn plain_resources(&self) -> Vec<String> {
        let policies = self.policies.read();
        let plain = policies.resources.iter().filter(|resource| resource.keyed.is_none());
        plain.map(|resource| resource.name.clone()).collect()
    }
}
