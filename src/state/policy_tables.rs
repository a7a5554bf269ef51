//! Which tables of the policies exist, as they were read last.
//!
//! Must never read them: the server does.

use fencegate_catalog::DatabaseNames;
use fencegate_policy::{PolicySet, Resource};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The names in policies as they were read last, and the time of the next reading.
#[derive(Debug, Default)]
pub struct PolicyTables {
    /// The last reading.
    pub read: Mutex<TablesRead>,
    /// Wakes the task that reads them.
    pub due: Notify,
}

/// The last reading.
#[derive(Debug, Default)]
pub struct TablesRead {
    /// The policies that they were read for; None: nothing was read yet.
    pub policies: Option<Arc<PolicySet>>,
    /// Databases of the server, or those that the policies name.
    pub databases: BTreeMap<String, DatabaseNames>,
    /// When that began.
    pub at: Option<Instant>,
    /// The resources, by [`Resource::family_name`], one of whose tables has existed.
    pub had_table: HashSet<String>,
    /// The missing tables, in words, that the log has named.
    pub logged: HashSet<String>,
    /// The databases that have a table, of policies that name none.
    pub logged_databases: Vec<String>,
}

impl TablesRead {
    /// Notes which of these policies' resources have a table.
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
