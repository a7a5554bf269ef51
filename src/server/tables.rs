//! Checks that the policies' tables exist: at startup, at a reload, and repeatedly while one is missing.
//!
//! Owns the reports of missing tables. Must never decide on a write, nor keep a connection open.

use crate::state::shared::Shared;
use fencegate_catalog::{DatabaseNames, LostFence, NamesFound, fences_at_risk, lost_fences, missing_text, with_tables};
use fencegate_fence::store::StoreError;
use fencegate_fence::{read_names, read_names_in};
use fencegate_policy::{FencedTable, PolicySet, Resource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum interval between searches for missing tables. Requests for metrics or health trigger them.
const AGAIN: Duration = Duration::from_secs(10);

/// Maximum number of missing tables that `/readyz` names.
const MOST_SHOWN: usize = 20;

/// Whether a table of the policies exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TableState {
    /// The table exists in a database that the policies cover.
    Resolved,
    /// The table exists in no such database. Holds the reason.
    Unresolved(String),
    /// No database that may have it could be read yet.
    Unknown,
}

/// A table of the policies.
#[derive(Clone, Debug)]
pub(super) struct TableReport {
    pub(super) resource: String,
    pub(super) table: String,
    pub(super) state: TableState,
}

impl TableReport {
    /// The table and the reason, if it does not exist.
    fn missing(self) -> Option<(Self, String)> {
        match self.state.clone() {
            TableState::Unresolved(reason) => Some((self, reason)),
            TableState::Resolved | TableState::Unknown => None,
        }
    }
}

/// State of a table, derived from the databases that were read. `has` returns whether a database has it.
pub(super) fn state_in<'a>(
    table: &FencedTable,
    databases: impl IntoIterator<Item = (&'a String, &'a DatabaseNames)>,
    has: impl Fn(&str, &NamesFound) -> bool,
) -> TableState {
    let (mut missing, mut is_unread): (Vec<(u8, String)>, bool) = (Vec::new(), false);
    for (database, names) in databases.into_iter().filter(|(database, _)| table.is_expected_in(database)) {
        match names {
            DatabaseNames::Found(found) if has(database, found) => return TableState::Resolved,
            DatabaseNames::Found(found) => {
                let nearest = found.nearest(&table.name);
                let rank = if nearest.is_some() { 2 } else { u8::from(found.is_prepared || found.has_tables()) };
                missing.push((rank, missing_text(&table.name.to_string(), database, nearest)));
            }
            DatabaseNames::NoDatabase => {
                missing.push((0, format!("{} does not exist: database {database} does not exist", table.name)));
            }
            DatabaseNames::Unread(_) => is_unread = true,
        }
    }
    let is_one = missing.len() == 1;
    // Report the most likely database: one with a similar name, or else one that matches the policies in some way.
    match missing.into_iter().max_by_key(|(rank, _)| *rank) {
        None => TableState::Unknown,
        Some(_) if is_unread => TableState::Unknown,
        Some((0, _)) if !is_one => TableState::Unresolved(format!("{} does not exist in any database", table.name)),
        Some((_, text)) => TableState::Unresolved(text),
    }
}

impl Shared {
    /// Looks up these policies' names in the databases that they cover. Cancel-safe.
    ///
    /// # Errors
    /// The databases cannot be listed.
    pub(super) async fn read_names(&self, sets: &[&PolicySet]) -> Result<BTreeMap<String, DatabaseNames>, StoreError> {
        let settings = self.settings();
        let known = self.shared_databases().iter().map(|it| it.fence.name().to_owned()).collect();
        let control = |database: &str| self.control_for(database);
        read_names(control, sets, settings.control_database(), &known).await
    }

    /// Fences that new policies would remove from resources that they keep. Reads no database if none can be lost.
    /// Cancel-safe.
    pub(super) async fn lost_fences(&self, new: &PolicySet) -> Vec<LostFence> {
        let old = self.policies.borrow().clone();
        let at_risk = fences_at_risk(&old, new);
        if at_risk.is_empty() {
            return Vec::new();
        }
        let databases = match self.read_names(&[&old, new]).await {
            Ok(databases) => databases,
            Err(reason) => {
                let reason = format!("cannot determine which tables exist: {reason}");
                let lost = |(_, it): (_, Arc<Resource>)| LostFence {
                    resource: it.name.clone(),
                    table: None,
                    reason: reason.clone(),
                };
                return at_risk.into_iter().map(lost).collect();
            }
        };
        // If the policies name no databases, an unreadable database without sessions does not matter.
        let matters = |database: &String| {
            let is_named = |set: &PolicySet| set.databases.as_ref().is_some_and(|all| all.contains(database));
            is_named(&old) || is_named(new) || self.shared_databases().iter().any(|it| it.fence.name() == database)
        };
        let databases = databases
            .into_iter()
            .filter(|(database, names)| !matches!(names, DatabaseNames::Unread(_)) || matters(database))
            .collect();
        lost_fences(&old, new, &databases, &self.policy_tables.read.lock().had_table)
    }

    /// Reads the tables of the policies in force when the policies change or a search is due. Cancel-safe.
    pub(super) async fn follow_tables(self: Arc<Self>) {
        let mut policies = self.policies.subscribe();
        loop {
            let current = policies.borrow_and_update().clone();
            self.read_tables(&current).await;
            tokio::select! {
                changed = policies.changed() => if changed.is_err() { return },
                () = self.policy_tables.due.notified() => {}
            }
        }
    }

    async fn read_tables(&self, policies: &Arc<PolicySet>) {
        if policies.resources.is_empty() {
            *self.policy_tables.read.lock() = Default::default();
            return;
        }
        let at = Instant::now();
        let again = {
            let read = self.policy_tables.read.lock();
            let is_same = read.policies.as_ref().is_some_and(|it| Arc::ptr_eq(it, policies));
            is_same.then(|| self.worth_reading_again(&read.databases)).filter(|databases| !databases.is_empty())
        };
        let databases = match again {
            Some(again) => {
                let control = |database: &str| self.control_for(database);
                read_names_in(control, &[policies], again).await
            }
            None => self.read_names(&[policies]).await.unwrap_or_default(),
        };
        {
            let mut read = self.policy_tables.read.lock();
            read.policies = Some(policies.clone());
            (read.databases, read.at) = (databases, Some(at));
            read.note_tables(policies);
        }
        self.log_tables(policies);
    }

    /// Databases that match the policies in some way. A missing table is expected in one of them.
    fn worth_reading_again(&self, databases: &BTreeMap<String, DatabaseNames>) -> BTreeSet<String> {
        let known: BTreeSet<String> = self.shared_databases().iter().map(|it| it.fence.name().to_owned()).collect();
        let named = self.policies.borrow().databases.clone().unwrap_or_default();
        let concerns = |(database, names): &(&String, &DatabaseNames)| match names {
            DatabaseNames::Found(found) => found.is_prepared || found.has_tables() || known.contains(*database),
            DatabaseNames::NoDatabase => false,
            DatabaseNames::Unread(_) => known.contains(*database),
        };
        databases.iter().filter(concerns).map(|(database, _)| database.clone()).chain(named).collect()
    }

    fn log_tables(&self, policies: &PolicySet) {
        let missing: Vec<(TableReport, String)> =
            self.table_states().into_iter().filter_map(TableReport::missing).collect();
        let mut read = self.policy_tables.read.lock();
        for (TableReport { resource, table, .. }, reason) in missing.iter().filter(|(_, it)| !read.logged.contains(it))
        {
            tracing::warn!(resource, table, reason, "policy_table_unresolved");
        }
        read.logged = missing.into_iter().map(|(_, reason)| reason).collect();
        let databases = with_tables(policies, &read.databases);
        if databases.len() > 1 && databases != read.logged_databases {
            tracing::warn!(databases = databases.join(", "), "policies_fence_several_databases");
        }
        read.logged_databases = databases;
    }

    /// State of each table of the policies in force. For databases with sessions it uses the current catalog, for the
    /// others the last reading.
    pub(super) fn table_states(&self) -> Vec<TableReport> {
        let policies = self.policies.borrow().clone();
        let in_use = self.shared_databases();
        let read = self.policy_tables.read.lock();
        let is_read = read.policies.as_ref().is_some_and(|it| Arc::ptr_eq(it, &policies));
        let report = |(resource, table): (&Arc<Resource>, &FencedTable)| {
            let in_use = in_use.iter().filter(|it| policies.applies_to(it.fence.name()));
            let live: BTreeMap<&str, bool> =
                in_use.filter_map(|it| Some((it.fence.name(), it.has_table(&table.name)?))).collect();
            let is_live = live.iter().any(|(database, has)| *has && table.is_expected_in(database));
            let databases = read.databases.iter().filter(|(database, _)| policies.applies_to(database));
            let state = match is_live {
                true => TableState::Resolved,
                false if !is_read => TableState::Unknown,
                false => state_in(table, databases, |database, found| {
                    live.get(database).copied().unwrap_or_else(|| found.has_table(&table.name))
                }),
            };
            TableReport { resource: resource.name.clone(), table: table.name.to_string(), state }
        };
        let tables = policies.resources.iter().flat_map(|it| it.tables.iter().map(move |table| (it, table)));
        tables.map(report).collect()
    }

    /// Requests another reading after a while if a table is missing.
    fn read_again_if_due(&self, reports: &[TableReport]) {
        let is_old = self.policy_tables.read.lock().at.is_some_and(|at| at.elapsed() > AGAIN);
        if is_old && reports.iter().any(|it| it.state != TableState::Resolved) {
            self.policy_tables.due.notify_one();
        }
    }

    /// Number of tables by state.
    pub(super) fn counted_tables(&self) -> Vec<(&'static str, usize)> {
        let reports = self.table_states();
        self.read_again_if_due(&reports);
        let count = |is_it: fn(&TableState) -> bool| reports.iter().filter(|it| is_it(&it.state)).count();
        vec![
            ("resolved", count(|it| matches!(it, TableState::Resolved))),
            ("unresolved", count(|it| matches!(it, TableState::Unresolved(_)))),
            ("unknown", count(|it| matches!(it, TableState::Unknown))),
        ]
    }

    /// Warnings about missing tables for `/readyz`.
    pub(super) fn unresolved_tables(&self) -> Vec<String> {
        let reports = self.table_states();
        self.read_again_if_due(&reports);
        let missing = reports.into_iter().filter_map(TableReport::missing);
        let mut lines: Vec<String> =
            missing.map(|(it, reason)| format!("unresolved: resource {}: {reason}", it.resource)).collect();
        if lines.len() > MOST_SHOWN {
            let more = lines.len() - MOST_SHOWN;
            lines.truncate(MOST_SHOWN);
            lines.push(format!("unresolved: {more} more"));
        }
        lines
    }
}
