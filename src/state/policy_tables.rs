//! Which tables of the policies exist, as of the last reading.
//!
//! Must never read the tables: `server` does.

use fencegate_catalog::DatabaseNames;
use fencegate_policy::{PolicySet, Resource};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Names in policies as of the last reading, and the signal for the next reading.
#[derive(Debug, Default)]
pub struct PolicyTables {
    /// The last reading.
    pub read: Mutex<TablesRead>,
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
