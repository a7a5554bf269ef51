//! `SHOW POLICIES`: fenced tables in each database, and how far their fences are enforced.

use super::client::Console;
use super::result_set::ColumnType::{Integer, Text};
use super::result_set::{ResultSet, Table, TableColumn, is_concerned, no_databases, unreadable};
use fencegate_fence::{Database, Enforcement, Reach};
use fencegate_policy::{FencedTable, Mode, PolicySet, Resource};
use std::sync::Arc;

/// A table of a resource in a database, and how far its fence is enforced there, if that is known.
pub(super) struct Row<'a> {
    database: Option<String>,
    resource: &'a Resource,
    table: Option<&'a FencedTable>,
    reach: Option<Reach>,
    is_missing: bool,
    /// True if another proxy's policies are in force until this one reloads.
    is_superseded: bool,
}

/// A row per database, resource and table; a resource without tables has one row without a table. Without databases,
/// shows the policies themselves.
pub(super) fn table<'a>() -> Table<Row<'a>> {
    vec![
        TableColumn("database", Text, |it| it.database.clone().into()),
        TableColumn("resource", Text, |it| (&it.resource.name).into()),
        TableColumn("table", Text, |it| it.table.map(|table| table.name.to_string()).into()),
        TableColumn("operations", Text, |it| it.table.map(|table| table.operation_names().join(", ")).into()),
        TableColumn("key", Text, |it| it.table.and_then(|table| table.key.clone()).into()),
        TableColumn("functions", Text, |it| {
            let functions: Vec<_> = it.resource.functions.iter().map(ToString::to_string).collect();
            functions.join(", ").into()
        }),
        TableColumn("on_missing", Text, |it| it.resource.on_missing.name().into()),
        TableColumn("mode", Text, |it| it.resource.mode.name().into()),
        TableColumn("election", Text, |it| it.resource.issuer_shown().into()),
        TableColumn("status", Text, |it| {
            match it.is_superseded {
                true => "superseded",
                false => it.reach.map_or("unknown", |reach| status(reach, it.resource.mode, it.is_missing)),
            }
            .into()
        }),
        TableColumn("enforcing", Integer, |it| it.reach.map(|reach| reach.enforcing).into()),
        TableColumn("proxies", Integer, |it| it.reach.map(|reach| reach.proxies).into()),
    ]
}

impl Row<'_> {
    /// True unless the policies place the table in another database.
    fn is_expected(&self) -> bool {
        let (Some(database), Some(table)) = (&self.database, self.table) else { return true };
        table.is_expected_in(database)
    }
}

/// Cancel-safe.
pub(super) async fn show(console: &Console) -> ResultSet {
    let policies = console.proxy.policies();
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    let databases = console.fenced_databases(&policies);
    for database in &databases {
        let enforcement = database.enforcement(&policies.resources).await;
        if let Err(reason) = &enforcement {
            notices.extend(unreadable(&policies, database, reason));
        }
        if is_concerned(&policies, database) {
            database.check_policies().await;
            rows.extend(of_database(&policies, Some(database), enforcement.as_ref().ok()));
        }
    }
    if databases.is_empty() {
        rows.extend(of_database(&policies, None, None));
        notices.push(no_databases());
    }
    ResultSet::show(&table(), rows).with_notices(notices)
}

fn of_database<'a>(
    policies: &'a PolicySet,
    database: Option<&Arc<Database>>,
    enforcement: Option<&Enforcement>,
) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let superseded = database.map(|database| database.superseded()).unwrap_or_default();
    for resource in &policies.resources {
        let tables = resource.tables.iter().map(Some).chain(resource.tables.is_empty().then_some(None));
        rows.extend(tables.map(|table| Row {
            database: database.map(|database| database.name().to_owned()),
            resource,
            table,
            reach: enforcement.map(|it| it.reach.get(&resource.fingerprint).copied().unwrap_or_default()),
            is_superseded: superseded.contains(&resource.family_name()),
            is_missing: enforcement.zip(table).is_some_and(|(it, table)| it.unresolved.contains(&table.name)),
        }));
    }
    rows.retain(|row| !row.is_missing || row.is_expected());
    rows
}

fn status(reach: Reach, mode: Mode, is_missing: bool) -> &'static str {
    match reach {
        _ if is_missing => "unresolved",
        Reach { lost: 0, proxies, enforcing } if enforcing > 0 && enforcing == proxies => match mode {
            Mode::Enforce => "enforced",
            Mode::Observe => "observed",
        },
        Reach { lost, proxies, enforcing } if lost > 0 && enforcing + lost == proxies => "unknown",
        _ => "pending",
    }
}
