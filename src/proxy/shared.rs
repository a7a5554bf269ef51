//! What all sessions of the proxy share: settings, policies, databases, the cache of verdicts.

use crate::config::Settings;
use crate::fence::Database;
use crate::policy::{PolicySet, Resource};
use crate::statement::Cache;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What is known of a database's fenced tables is looked up anew when a session starts, unless it is this fresh.
const FRESH: Duration = Duration::from_secs(1);

/// One proxy process.
pub struct Shared {
    pub settings: Settings,
    pub policies: watch::Sender<Arc<PolicySet>>,
    pub cache: Cache,
    databases: Mutex<HashMap<String, Arc<Downstream>>>,
    /// Different for every proxy process: tells its admissions from others'.
    id: String,
}

/// A database that sessions are connected to.
pub struct Downstream {
    pub fence: Arc<Database>,
    /// The policies in force are recorded in it.
    recorded: tokio::sync::Mutex<bool>,
    /// Whether a fenced table exists in it.
    coverage: AtomicU8,
    looked: Mutex<Option<Instant>>,
}

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

impl Shared {
    /// A proxy without sessions.
    pub fn new(settings: Settings, policies: PolicySet, id: String) -> Arc<Self> {
        Arc::new(Shared {
            settings,
            policies: watch::Sender::new(Arc::new(policies)),
            cache: Cache::default(),
            databases: Mutex::default(),
            id,
        })
    }

    /// The database of that name, known from now on.
    pub fn downstream(&self, name: &str) -> Arc<Downstream> {
        let mut databases = self.databases();
        if let Some(known) = databases.get(name) {
            return known.clone();
        }
        let fence = Database::new(name, self.settings.control_for(name), self.id.clone());
        let downstream = Arc::new(Downstream {
            fence,
            recorded: tokio::sync::Mutex::default(),
            coverage: AtomicU8::new(UNKNOWN),
            looked: Mutex::default(),
        });
        databases.insert(name.to_owned(), downstream.clone());
        downstream
    }

    /// Puts policies in force, in all databases. Not cancel-safe: some databases may have them and others not.
    pub async fn apply(&self, policies: PolicySet) {
        let policies = Arc::new(policies);
        self.policies.send_replace(policies.clone());
        let databases: Vec<_> = self.databases().values().cloned().collect();
        for database in databases.iter().filter(|database| policies.applies_to(database.fence.name())) {
            database.forget();
            *database.recorded.lock().await = false;
            database.prepare(&policies).await;
        }
    }

    /// Forgets a database in which there are no sessions, and closes its control connections.
    pub async fn close_database(&self, name: &str) {
        let known = self.databases().get(name).cloned();
        if let Some(database) = known {
            database.fence.close().await;
        }
    }

    fn databases(&self) -> MutexGuard<'_, HashMap<String, Arc<Downstream>>> {
        self.databases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fence holds once the writes have ended that were let through before it.
async fn say_when_enforced(database: Arc<Database>, resource: Arc<Resource>) {
    let (name, resource_name) = (database.name(), &resource.name);
    match database.enforced(&resource).await {
        Ok(()) => tracing::info!(database = name, resource = resource_name, "fence_enforced"),
        Err(error) => tracing::warn!(database = name, resource = resource_name, %error, "fence_enforcement_unknown"),
    }
}

impl Downstream {
    /// Records the policies in the database, once, and looks for fenced tables, unless that was done a moment ago.
    pub async fn prepare(&self, policies: &PolicySet) {
        let mut recorded = self.recorded.lock().await;
        if !*recorded {
            match self.fence.apply_policy(&policies.resources).await {
                Ok(()) => {
                    *recorded = true;
                    for resource in &policies.resources {
                        tokio::spawn(say_when_enforced(self.fence.clone(), resource.clone()));
                    }
                }
                // Admit compares the policies again, and refuses.
                Err(refusal) => {
                    tracing::warn!(database = self.fence.name(), reason = %refusal, "policies_not_recorded");
                }
            }
        }
        if self.looked().is_none_or(|at| at.elapsed() > FRESH) {
            self.look(policies).await;
        }
    }

    /// True unless it is known that no fenced table exists.
    pub fn has_fenced_tables(&self) -> bool {
        self.coverage.load(Ordering::Acquire) != NONE
    }

    /// The catalogue has changed: until it is read, a fenced table may exist.
    pub fn forget(&self) {
        self.coverage.store(UNKNOWN, Ordering::Release);
        *self.looked() = None;
    }

    /// Reads whether a fenced table exists. What cannot be read counts as yes.
    pub async fn look(&self, policies: &PolicySet) {
        *self.looked() = Some(Instant::now());
        let tables = policies.resources.iter().flat_map(|resource| &resource.tables).map(|table| &table.name);
        let coverage = match self.fence.any_table_exists(tables).await {
            Ok(true) => SOME,
            Ok(false) => NONE,
            Err(error) => {
                tracing::warn!(database = self.fence.name(), %error, "catalogue_unreadable");
                UNKNOWN
            }
        };
        self.coverage.store(coverage, Ordering::Release);
    }

    fn looked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
