//! When a new fence counts as enforced. Writes forwarded before the fence existed have no admission. The fence
//! therefore counts as enforced once the transactions that were open then have ended, in all proxies.
//!
//! Owns that wait, and each proxy's announcement in `fencegate_state.proxy`. Must never end a transaction: it began
//! before a token was required. The result is for people. No write is permitted because of it.

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
    while_the_same(context, SessionFence::step).await;
    while_the_same(context, SessionFence::rests_while_busy).await;
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

/// Waits until `is_so` has changed for every session for which it is Some now. Cancel-safe.
async fn while_the_same(context: Context<'_>, is_so: fn(&SessionFence) -> Option<u64>) {
    let mut left = context.sessions.in_state(is_so);
    while !left.is_empty() {
        tokio::time::sleep(PAUSE).await;
        left.retain(|(key, which)| context.sessions.get(key).is_some_and(|it| is_so(&it) == Some(*which)));
    }
}
