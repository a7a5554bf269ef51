//! The proxy's own state: whether it is stopping, the result of the last check, and which tables of the policies exist.
//!
//! Must never perform a check or read the tables: `server` does.

use fencegate_catalog::DatabaseNames;
use fencegate_fence::store::StoreError;
use fencegate_policy::{PolicySet, Resource};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

/// The proxy's own state.
#[derive(Debug, Default)]
pub struct Health {
    stopping: AtomicBool,
    /// The last check. Held during a check, so that concurrent callers share its result.
    pub found: Mutex<Found>,
    /// The status page, and the time when it was rendered. Held while it is rendered.
    pub status: Mutex<Option<(Instant, String)>>,
}

/// The last check.
#[derive(Debug, Default)]
pub struct Found {
    /// Start of the check.
    pub asked: Option<Instant>,
    /// None if the check was canceled because its caller has gone.
    pub condition: Option<Condition>,
}

/// Why the proxy is not ready for clients.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum NotReady {
    #[error("the proxy is stopping")]
    Stopping,
    /// A control connection is missing.
    #[error(transparent)]
    Control(StoreError),
    /// The reason is the system's or the TLS library's.
    #[error("the server at {address} cannot be reached: {reason}")]
    Upstream { address: String, reason: String },
    /// The servers cannot be known. Each server's message.
    #[error("no server lets the control role log in: check the user and the password in `control`: {0}")]
    ControlRefused(String),
    /// While another proxy's policies are in force, no session is admitted.
    #[error(
        "database {database}: another proxy has since loaded different policies of {resource}: reload this proxy (SIGHUP, or RELOAD in its console)"
    )]
    Superseded { database: String, resource: String },
}

/// Condition of the proxy.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The proxy is ready for clients, or why not.
    pub ready: Result<(), NotReady>,
    /// True if the server accepts connections.
    pub upstream: bool,
    /// True if etcd answers; None if etcd is not configured.
    pub etcd: Option<bool>,
}

impl Health {
    /// Marks the proxy as stopping: it is no longer ready.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// True if the proxy is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Names in policies as of the last reading, and the signal for the next reading.
#[derive(Debug, Default)]
pub struct PolicyTables {
    /// The last reading.
    pub read: parking_lot::Mutex<TablesRead>,
    /// Wakes the task that reads the tables.
    pub due: Notify,
}

/// The last reading.
#[derive(Debug, Default)]
pub struct TablesRead {
    /// The policies of the reading; None: nothing was read yet.
    pub policies: Option<Arc<PolicySet>>,
    /// Databases of the server, or those that the policies name.
    pub databases: BTreeMap<String, DatabaseNames>,
    /// Start of the reading.
    pub at: Option<Instant>,
    /// Resources, by [`Resource::family_name`], that have had an existing table.
    pub had_table: HashSet<String>,
    /// Descriptions of the missing tables that were logged.
    pub logged: HashSet<String>,
    /// Databases that were logged because they have a table of policies without `databases`.
    pub logged_databases: Vec<String>,
}

impl TablesRead {
    /// Records the resources of these policies that have a table.
    pub fn note_tables(&mut self, policies: &PolicySet) {
        let has_some = |resource: &Resource| {
            self.databases.iter().any(|(database, names)| {
                policies.applies_to(database) && matches!(names, DatabaseNames::Found(it) if it.has_some_of(resource))
            })
        };
        let families: Vec<String> =
            policies.resources.iter().filter(|it| has_some(it)).map(|it| it.family_name()).collect();
        self.had_table.extend(families);
    }
}
