//! `SHOW POLICIES`: what is fenced in each database, and how far the fences are enforced.

use super::answer::{Answer, Column, Kind, Value};
use super::{Console, is_concerned, no_databases, unreadable};
use crate::fence::{Enforcement, Reach};
use crate::policy::{FencedTable, Mode, PolicySet, Resource};
use std::sync::Arc;

pub(super) const COLUMNS: [Column; 12] = [
    Column("database", Kind::Text),
    Column("resource", Kind::Text),
    Column("table", Kind::Text),
    Column("operations", Kind::Text),
    Column("key", Kind::Text),
    Column("functions", Kind::Text),
    Column("on_missing", Kind::Text),
    Column("mode", Kind::Text),
    Column("election", Kind::Text),
    Column("status", Kind::Text),
    Column("enforcing", Kind::Integer),
    Column("proxies", Kind::Integer),
];

/// A row per database, resource and table; one without a table where a resource has none. Without databases, what the
/// policies say. Cancel-safe.
pub(super) async fn show(console: &Console) -> Answer {
    let policies = console.proxy.policies();
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    let databases = console.fenced_databases(&policies);
    for database in &databases {
        let enforcement = database.enforcement(&policies.resources).await;
        if let Err(reason) = &enforcement {
            notices.extend(unreadable(&policies, database, reason));
        }
        if !is_concerned(&policies, database) {
            continue;
        }
        rows.extend(of_database(&policies, Some(database.name()), enforcement.as_ref().ok()));
    }
    if databases.is_empty() {
        rows.extend(of_database(&policies, None, None));
        notices.push(no_databases());
    }
    Answer::show(&COLUMNS, rows).with_notices(notices)
}

fn of_database(policies: &PolicySet, database: Option<&str>, enforcement: Option<&Enforcement>) -> Vec<Vec<Value>> {
    let of_resource = |resource: &Arc<Resource>| {
        let tables = resource.tables.iter().map(Some).chain(resource.tables.is_empty().then_some(None));
        tables.map(|table| row(database, resource, table, enforcement)).collect::<Vec<_>>()
    };
    policies.resources.iter().flat_map(of_resource).collect()
}

fn row(
    database: Option<&str>,
    resource: &Resource,
    table: Option<&FencedTable>,
    enforcement: Option<&Enforcement>,
) -> Vec<Value> {
    let functions: Vec<_> = resource.functions.iter().map(ToString::to_string).collect();
    let reach = enforcement.map(|it| it.reach.get(&resource.fingerprint).copied().unwrap_or_default());
    let is_missing = enforcement.zip(table).is_some_and(|(it, table)| it.unresolved.contains(&table.name));
    vec![
        database.map(str::to_owned).into(),
        resource.name.clone().into(),
        table.map(|table| table.name.to_string()).into(),
        table.map(|table| table.operation_names().join(", ")).into(),
        table.and_then(|table| table.key.clone()).into(),
        functions.join(", ").into(),
        resource.on_missing.name().into(),
        resource.mode.name().into(),
        resource.election_shown().into(),
        reach.map_or("unknown", |reach| status(reach, resource.mode, is_missing)).into(),
        reach.map(|reach| count(reach.enforcing)).into(),
        reach.map(|reach| count(reach.proxies)).into(),
    ]
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

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
