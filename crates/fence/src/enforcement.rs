//! The policies in force as the database records them, and when a new fence counts as enforced. Writes forwarded before the
//! fence existed have no admission. The fence therefore counts as enforced once the transactions that were open then have
//! ended, in all proxies.
//!
//! Owns that wait, each proxy's announcement in `fencegate_state.proxy`, and the comparison with the recorded policies, by which
//! proxies with different policies are refused. Must never end a transaction, because it began before a token was required, or
//! replace recorded policies by older ones.

use super::policies::Load;
use super::session::SessionFence;
use super::step::Context;
use super::store::{Enforcement, Key, Reach, StoreError};
use fencegate_policy::Resource;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two looks at the transactions.
const PAUSE: Duration = Duration::from_millis(500);

/// Reads which proxies enforce these fences. Cancel-safe.
pub(super) async fn read(context: Context<'_>, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
    announce(context).await?;
    let mut enforcement = context.store().enforcement(resources).await?;
    if enforcement.reach.values().any(|reach| reach.lost > 0) {
        let own: Vec<Key> = context.sessions.keys();
        let may_have_sessions = context.store().has_other_sessions(&own).await?;
        if !may_have_sessions {
            enforcement.reach.values_mut().for_each(Reach::forget_lost);
        }
    }
    Ok(enforcement)
}

/// Announces in the database which fences this proxy enforces, unless it did so recently over the same connection.
pub(super) async fn announce(context: Context<'_>) -> Result<(), StoreError> {
    let connection = context.unwatched.proxy_connection();
    if context.policies.is_announced(connection) {
        return Ok(());
    }
    let fences = context.policies.enforced();
    let fingerprints: Vec<_> = fences.iter().cloned().collect();
    context.store().announce_enforced(&fingerprints).await?;
    // If this has opened the connection, or the connection has changed since, the next announcement repeats it.
    context.policies.announced(connection, fences);
    Ok(())
}

/// Waits until all work forwarded before the resource was put in force has ended: first the messages of own sessions, which
/// may lie unread in the server's socket without a transaction, then every transaction that is open in the database.
/// Cancel-safe.
pub(super) async fn wait(context: Context<'_>, resource: &Resource) -> Result<(), StoreError> {
    // A session within a step may still judge by the previous policies.
    wait_for_change(context, SessionFence::step).await;
    wait_for_change(context, SessionFence::rests_while_busy).await;
    let mut open = context.store().open_transactions().await?;
    while !open.is_empty() {
        tokio::time::sleep(PAUSE).await;
        let still = context.store().open_transactions().await?;
        open.retain(|transaction| still.contains(transaction));
    }
    // Other policies may have been put in force in the meantime.
    if context.policies.is_in_force(resource) {
        context.policies.enforce(resource);
        context.memory.wake.notify_one();
    }
    Ok(())
}

/// Waits until `state` has changed for every session for which it is Some now. Cancel-safe.
async fn wait_for_change(context: Context<'_>, state: fn(&SessionFence) -> Option<u64>) {
    let mut left = context.sessions.in_state(state);
    while !left.is_empty() {
        tokio::time::sleep(PAUSE).await;
        left.retain(|(key, which)| context.sessions.get(key).is_some_and(|it| state(&it) == Some(*which)));
    }
}

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
