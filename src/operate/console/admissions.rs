//! `SHOW ADMISSIONS`: the server processes that may write now, through this proxy or another.

use super::client::Console;
use super::notices::{notice, unreadable};
use super::result_set::ColumnType::{Boolean, Integer, Text, Time};
use super::result_set::{ResultSet, Table, TableColumn};
use super::sessions::OpenSession;
use fencegate_fence::{Admission, Database};
use std::sync::Arc;

/// An admission in a database, and the number of its session in this proxy.
pub(super) type Row = (Arc<Database>, Admission, Option<u64>);

/// A row per database, resource, epoch and process.
pub(super) fn table() -> Table<Row> {
    vec![
        TableColumn("database", Text, |(database, ..)| database.name().into()),
        TableColumn("resource", Text, |(_, it, _)| (&it.resource).into()),
        TableColumn("generation", Integer, |(_, it, _)| it.epoch.generation.into()),
        TableColumn("token", Integer, |(_, it, _)| it.epoch.token.into()),
        TableColumn("pid", Integer, |(_, it, _)| it.pid.into()),
        TableColumn("backend_start", Time, |(_, it, _)| it.backend_start.into()),
        TableColumn("admitted", Time, |(_, it, _)| it.admitted.into()),
        TableColumn("proxy", Text, |(_, it, _)| (&it.proxy).into()),
        TableColumn("session", Integer, |(.., session)| (*session).into()),
        TableColumn("alive", Boolean, |(_, it, _)| it.is_alive.into()),
    ]
}

/// Cancel-safe.
pub(super) async fn show(console: &Console) -> ResultSet {
    let (policies, sessions) = (console.proxy.policies(), console.proxy.sessions());
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    for database in console.fenced_databases(&policies) {
        match database.admissions().await {
            Ok(admissions) => {
                let row = |it| {
                    let session = session_of(&database, &it, &sessions);
                    (database.clone(), it, session)
                };
                rows.extend(admissions.list.into_iter().map(row));
                if admissions.left_out > 0 {
                    let (name, number) = (database.name(), admissions.left_out);
                    let message = format!("database \"{name}\" has {number} more admissions");
                    notices.push(notice(message, "SELECT from fencegate_state.admission for all of them."));
                }
            }
            Err(reason) => notices.extend(unreadable(&policies, &database, &reason)),
        }
    }
    ResultSet::show(&table(), rows).with_notices(notices)
}

fn session_of(database: &Database, admission: &Admission, sessions: &[OpenSession]) -> Option<u64> {
    let is_its = |session: &&OpenSession| session.is_of(database, admission.pid);
    let session = sessions.iter().find(is_its).filter(|_| admission.is_ours && admission.is_alive);
    session.map(|session| session.number)
}
