//! When a new fence counts as enforced. Writes forwarded before the fence existed have no admission. The fence
//! therefore counts as enforced once the transactions that were open then have ended, in all proxies.
//!
//! Owns that wait, and each proxy's announcement in `fencegate_state.proxy`. Must never end a transaction: it began
//! before a token was required. The result is for people. No write is permitted because of it.

use super::database::Database;
use super::session::SessionFence;
use super::store::{Enforcement, Key, Reach, StoreError};
use fencegate_policy::Resource;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A proxy repeats its announcement after this time, so that it counts as recently seen if it is lost.
const REPEATED: Duration = Duration::from_secs(60);

/// Pause between two looks at the transactions.
const PAUSE: Duration = Duration::from_millis(500);

/// The fences that this process enforces, and its last announcement of them.
#[derive(Debug, Default)]
pub(super) struct Enforced(Mutex<EnforcedFences>);

#[derive(Debug, Default)]
struct EnforcedFences {
    /// By fingerprint.
    fences: BTreeSet<String>,
    /// The last announcement, its connection and its time; `None` before the first.
    announced: Option<(u64, BTreeSet<String>, Instant)>,
}

impl Enforced {
    /// Forgets fences other than these, which are no longer in force.
    pub(super) fn keep(&self, resources: &[Arc<Resource>]) {
        let in_force: HashSet<&str> = resources.iter().map(|it| it.fingerprint.as_str()).collect();
        self.0.lock().fences.retain(|fence| in_force.contains(fence.as_str()));
    }

    /// Returns true if the same was announced over this connection recently.
    fn is_announced(&self, connection: u64) -> bool {
        let known = self.0.lock();
        connection != 0
            && known.announced.as_ref().is_some_and(|(over, fences, at)| {
                *over == connection && *fences == known.fences && at.elapsed() < REPEATED
            })
    }
}

impl Database {
    /// Reads which proxies enforce these fences. Cancel-safe.
    pub async fn enforcement(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
        self.announce().await?;
        let mut enforcement = self.store().enforcement(resources).await?;
        if enforcement.reach.values().any(|reach| reach.lost > 0) {
            let own: Vec<Key> = self.sessions.iter().map(|session| session.key().clone()).collect();
            let may_have_sessions = self.store().has_other_sessions(&own).await?;
            if !may_have_sessions {
                enforcement.reach.values_mut().for_each(Reach::forget_lost);
            }
        }
        Ok(enforcement)
    }

    /// Announces in the database which fences this proxy enforces, unless it did so recently over the same connection.
    pub(super) async fn announce(self: &Arc<Self>) -> Result<(), StoreError> {
        let connection = self.store.proxy_connection();
        if self.enforced.is_announced(connection) {
            return Ok(());
        }
        let fences = self.enforced.0.lock().fences.clone();
        let fingerprints: Vec<_> = fences.iter().cloned().collect();
        self.store().announce_enforced(&fingerprints).await?;
        // If this has opened the connection, or the connection has changed since, the next announcement repeats it.
        self.enforced.0.lock().announced = Some((connection, fences, Instant::now()));
        Ok(())
    }

    /// Waits until all work forwarded before the resource was put in force has ended: first the messages of own sessions, which
    /// may lie unread in the server's socket without a transaction, then every transaction that is open in the database.
    /// Cancel-safe.
    pub async fn enforced(self: &Arc<Self>, resource: &Resource) -> Result<(), StoreError> {
        // A session within a step may still judge by the previous policies.
        self.while_the_same(SessionFence::step).await;
        self.while_the_same(SessionFence::rests_while_busy).await;
        let mut open = self.store().open_transactions().await?;
        while !open.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let still = self.store().open_transactions().await?;
            open.retain(|transaction| still.contains(transaction));
        }
        // Other policies may have been put in force in the meantime.
        if self.resource_in_force(resource) {
            self.enforced.0.lock().fences.insert(resource.fingerprint.clone());
            self.memory.wake.notify_one();
        }
        Ok(())
    }

    /// Waits until `is_so` has changed for every session for which it is Some now. Cancel-safe.
    async fn while_the_same(&self, is_so: fn(&SessionFence) -> Option<u64>) {
        let mut left: Vec<(Key, u64)> =
            self.sessions.iter().filter_map(|it| Some((it.key().clone(), is_so(&it)?))).collect();
        while !left.is_empty() {
            tokio::time::sleep(PAUSE).await;
            left.retain(|(key, which)| self.sessions.get(key).is_some_and(|it| is_so(&it) == Some(*which)));
        }
    }
}
