//! From when on a new fence holds: writes that were forwarded before it have no admission, so it
//! counts as enforced once their transactions have ended, in all proxies.
//!
//! Owns that wait, and what each proxy says of itself in `fencegate.proxy`. Must never end anybody's transaction: nobody was
//! asked for a token then. What it says is for people: no write is let through because of it.

use super::control::{ControlError, column, number};
use super::database::Database;
use super::sql;
use crate::policy::{QualifiedName, Resource};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks at the transactions.
const PAUSE: Duration = Duration::from_millis(500);

/// The fences that this process enforces, and what it has said of them.
#[derive(Debug, Default)]
pub(super) struct Enforced(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By fingerprint.
    fences: BTreeSet<String>,
    /// What was announced last, and over which connection; none yet.
    announced: Option<(u64, BTreeSet<String>)>,
}

impl Enforced {
    /// Only these may be enforced any more: the others are not in force.
    pub(super) fn keep(&self, resources: &[Arc<Resource>]) {
        let in_force: HashSet<&str> = resources.iter().map(|it| it.fingerprint.as_str()).collect();
        self.known().fences.retain(|fence| in_force.contains(fence.as_str()));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a fence is enforced: by how many of the proxies that have sessions in the database and reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The proxies that live.
    pub proxies: u64,
    /// Those of them that enforce it, and in which nothing is open from before.
    pub enforcing: u64,
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
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn enforcement(self: &Arc<Self>, resources: &[Arc<Resource>]) -> Result<Enforcement, String> {
        self.announce().await.map_err(|error| error.to_string())?;
        let fingerprints: Vec<_> = resources.iter().map(|resource| resource.fingerprint.as_str()).collect();
        let tables: Vec<_> = resources.iter().flat_map(|resource| resource.tables.iter().map(|it| &it.name)).collect();
        let answers = self.look(&sql::enforcement(&fingerprints, &tables)).await.map_err(|error| error.to_string())?;
        let [reach, unresolved] = answers.as_slice() else {
            return Err("the database's answer about its proxies has an unknown form".to_owned());
        };
        let of_fence = |row| {
            let reach = Reach { proxies: number(row, "proxies")?, enforcing: number(row, "enforcing")? };
            Some((column(row, "fingerprint")?.to_owned(), reach))
        };
        let table = |row| {
            Some(QualifiedName { schema: column(row, "schema")?.to_owned(), name: column(row, "name")?.to_owned() })
        };
        let unresolved = unresolved.rows.iter().filter_map(table).collect();
        Ok(Enforcement { reach: reach.rows.iter().filter_map(of_fence).collect(), unresolved })
    }

    /// Says in the database which fences this proxy enforces, unless that was said over the same connection.
    pub(super) async fn announce(self: &Arc<Self>) -> Result<(), ControlError> {
        let listener = self.memory.listener();
        let fences = {
            let known = self.enforced.known();
            if listener != 0 && known.announced.as_ref() == Some(&(listener, known.fences.clone())) {
                return Ok(());
            }
            known.fences.clone()
        };
        let fingerprints: Vec<_> = fences.iter().cloned().collect();
        self.look(&sql::announce_enforced(&self.proxy, &fingerprints)).await?;
        // The connection may be another one by now: then it is said once more.
        self.enforced.known().announced = Some((listener, fences));
        Ok(())
    }

    /// Waits until every transaction that holds a lock on the resource's relations now, as only
    /// writers do, has ended. Cancel safe.
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn enforced(self: &Arc<Self>, resource: &Resource) -> Result<(), String> {
        let writers = |error: ControlError| error.to_string();
        let mut open = self.writers(resource).await.map_err(writers)?;
        while !open.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let still = self.writers(resource).await.map_err(writers)?;
            open.retain(|transaction| still.contains(transaction));
        }
        // Unless other policies are in force by now.
        if self.resource_in_force(resource) {
            self.enforced.known().fences.insert(resource.fingerprint.clone());
            self.memory.wake.notify_one();
        }
        Ok(())
    }

    async fn writers(self: &Arc<Self>, resource: &Resource) -> Result<HashSet<String>, ControlError> {
        let answers = self.look(&sql::writers(resource)).await?;
        let rows = answers.iter().flat_map(|answer| &answer.rows);
        Ok(rows.filter_map(|row| column(row, "transaction").map(str::to_owned)).collect())
    }
}
