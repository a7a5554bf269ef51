//! Records the policies in force in the database, so that proxies with different policies are refused.
//!
//! Owns the comparison with the recorded policies. Must never replace recorded policies by older ones.

use super::enforcement::announce;
use super::policies::Load;
use super::step::Context;
use super::store::StoreError;
use fencegate_policy::Resource;
use std::sync::Arc;

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

/// Records the fingerprints of the resources, which were put in force before, in existing epochs.
///
/// Not cancel-safe: some resources may be recorded and others not.
pub(super) async fn record(context: Context<'_>, resources: &[Arc<Resource>]) -> Result<(), RecordError> {
    // Before a session of this proxy writes, so that the fences do not count as enforced until this proxy enforces them.
    announce(context).await?;
    ask_when_loaded(context).await?;
    for resource in resources {
        let failed = |error| RecordError::Resource { resource: resource.name.clone(), error };
        record_policy(context, resource).await.map_err(failed)?;
    }
    Ok(())
}

/// Determines the load time by the database's clock, once per load. However long the answer takes, the result is never later
/// than the actual load.
async fn ask_when_loaded(context: Context<'_>) -> Result<(), StoreError> {
    let Load { at, .. } = context.policies.load();
    let now = context.store().now().await?;
    let age = tokio::time::Instant::now().into_std().saturating_duration_since(at);
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    context.policies.set_loaded_there(at, now.saturating_sub(age).max(0));
    Ok(())
}

/// Records the policies of a resource, if they were loaded after those that are recorded.
pub(super) async fn record_policy(context: Context<'_>, resource: &Resource) -> Result<(), StoreError> {
    let loaded = context.policies.loaded(resource);
    if loaded == 0 {
        return Ok(());
    }
    context.store().record_policy(resource, loaded).await
}

/// Checks whether another proxy has recorded policies that were loaded later. Does nothing while this proxy's load time is
/// unknown. Keyed resources are checked by an Admit instead. Cancel-safe.
pub(super) async fn check(context: Context<'_>) {
    let (plain, load) = context.policies.plain();
    if plain.is_empty() || load.there == 0 {
        return;
    }
    let Ok(found) = context.store().superseded(&plain, load.there).await else { return };
    if context.policies.load().at == load.at {
        for resource in plain {
            note_superseded(context, &resource, found.contains(&resource.name));
        }
    }
}

/// Records whether the resource's policies are superseded, and logs it once.
pub(super) fn note_superseded(context: Context<'_>, resource: &Resource, is_superseded: bool) {
    if context.policies.supersede(resource, is_superseded) {
        let database = context.environment.name.as_str();
        tracing::warn!(database, resource = resource.lock_name(), "policies_superseded");
    }
}
