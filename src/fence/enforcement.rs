//! From when on a new fence holds: writes that were forwarded before it have no admission, so it
//! counts as enforced once the transactions that were open then have ended, in all proxies.
//!
//! Owns that wait, and what each proxy says of itself in `fencegate_state.proxy`. Must never end anybody's transaction: nobody was
//! asked for a token then. What it says is for people: no write is let through because of it.

use super::database::Database;
use super::session::SessionFence;
use super::store::{Key, StoreError};
use crate::policy::{QualifiedName, Resource};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A proxy says again after this time which fences it enforces, to be known as lately seen should it be lost.
const REPEATED: Duration = Duration::from_secs(60);

/// Between two looks at the transactions.
const PAUSE: Duration = Duration::from_millis(500);

/// The fences that this process enforces, and what it has said of them.
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
    /// Only these may be enforced any more: the others are not in force.
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

/// How far a fence is enforced: by how many of the proxies that have sessions in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// All proxies: live and lost ones.
    pub proxies: u64,
    /// Proxies that have lost their control connection lately without signing off: whether their sessions go on, and under
    /// which policies, is not known.
    pub lost: u64,
    /// Live proxies that enforce it, without open transactions from before.
    pub enforcing: u64,
}

impl Reach {
    /// The lost proxies have no sessions left, and a proxy without sessions does not count.
    fn forget_lost(&mut self) {
        self.proxies -= self.lost;
        self.lost = 0;
    }
}

/// How far the fences of a database are enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// By the resource's fingerprint.
    pub reach: HashMap<String, Reach>,
    /// The tables that do not exist.
    pub unresolved: HashSet<QualifiedName>,
}

impl Database {
    /// How far these fences are enforced. Cancel-safe.
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

    /// Says in the database which fences this proxy enforces, unless that was said over the same connection lately.
    pub(super) async fn announce(self: &Arc<Self>) -> Result<(), StoreError> {
        let connection = self.store.proxy_connection();
        if self.enforced.is_announced(connection) {
            return Ok(());
        }
        let fences = self.enforced.0.lock().fences.clone();
        let fingerprints: Vec<_> = fences.iter().cloned().collect();
        self.store().announce_enforced(&fingerprints).await?;
        // The connection may have been opened for this, or be another one by now: then the next announcement repeats it.
        self.enforced.0.lock().announced = Some((connection, fences, Instant::now()));
        Ok(())
    }

    /// Waits until everything has ended that was forwarded before the resource was put in force: what own sessions were
    /// given, also what no transaction shows that lies unread in the server's socket, and then every transaction that is
    /// open in the database. Cancel safe.
    pub async fn enforced(self: &Arc<Self>, resource: &Resource) -> Result<(), StoreError> {
        // A session in the middle of a step may still judge by the policies of before.
        self.while_the_same(SessionFence::step).await;
        self.while_the_same(SessionFence::rests_while_busy).await;
        let mut open = self.store().open_transactions().await?;
        while !open.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let still = self.store().open_transactions().await?;
            open.retain(|transaction| still.contains(transaction));
        }
        // Unless other policies are in force by now.
        if self.resource_in_force(resource) {
            self.enforced.0.lock().fences.insert(resource.fingerprint.clone());
            self.memory.wake.notify_one();
        }
        Ok(())
    }

    /// Waits until each session of which something is so now has left it. Cancel safe.
    async fn while_the_same(&self, is_so: fn(&SessionFence) -> Option<u64>) {
        let mut left: Vec<(Key, u64)> =
            self.sessions.iter().filter_map(|it| Some((it.key().clone(), is_so(&it)?))).collect();
        while !left.is_empty() {
            tokio::time::sleep(PAUSE).await;
            left.retain(|(key, which)| self.sessions.get(key).is_some_and(|it| is_so(&it) == Some(*which)));
        }
    }
}
