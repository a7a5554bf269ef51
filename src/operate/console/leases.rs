//! `SHOW LEASES`: leases of the fenced databases and their holders.

use super::client::Console;
use super::notices::{notice, unreadable};
use super::result_set::ColumnType::{Integer, Text, Time};
use super::result_set::{ResultSet, Table, TableColumn};
use fencegate_fence::{Database, StoredLease};
use std::sync::Arc;

/// A lease in a database.
pub(super) type Row = (Arc<Database>, StoredLease);

/// A row per database and election.
pub(super) fn table() -> Table<Row> {
    vec![
        TableColumn("database", Text, |(database, _)| database.name().into()),
        TableColumn("election", Text, |(_, it)| (&it.election).into()),
        TableColumn("token", Integer, |(_, it)| it.token.into()),
        TableColumn("state", Text, |(_, it)| it.state.name().into()),
        TableColumn("holder", Text, |(_, it)| (&it.holder).into()),
        TableColumn("role", Text, |(_, it)| (&it.role).into()),
        TableColumn("acquired", Time, |(_, it)| it.acquired.into()),
        TableColumn("renewed", Time, |(_, it)| it.renewed.into()),
        TableColumn("expires", Time, |(_, it)| it.expires.into()),
    ]
}

/// Cancel-safe.
pub(super) async fn show(console: &Console) -> ResultSet {
    let policies = console.proxy.policies();
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    for database in console.fenced_databases(&policies) {
        match database.leases().await {
            Ok(leases) => {
                rows.extend(leases.list.into_iter().map(|it| (database.clone(), it)));
                if leases.left_out > 0 {
                    let (name, number) = (database.name(), leases.left_out);
                    let message = format!("database \"{name}\" has the leases of {number} more elections");
                    let hint = "The latest acquired are shown. For the others, query fencegate_state.lease.";
                    notices.push(notice(message, hint));
                }
            }
            Err(reason) => notices.extend(unreadable(&policies, &database, &reason)),
        }
    }
    ResultSet::show(&table(), rows).with_notices(notices)
}
