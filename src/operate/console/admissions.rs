//! `SHOW ADMISSIONS`: the server processes that may write now, through this proxy or another.

use super::answer::{Answer, Column, Kind, Value};
use super::{Console, OpenSession, unreadable};
use crate::fence::{Admission, Database};
use crate::wire::error::{ErrorText, Severity};

pub(super) const COLUMNS: [Column; 10] = [
    Column("database", Kind::Text),
    Column("resource", Kind::Text),
    Column("generation", Kind::Integer),
    Column("token", Kind::Integer),
    Column("pid", Kind::Integer),
    Column("backend_start", Kind::Time),
    Column("admitted", Kind::Time),
    Column("proxy", Kind::Text),
    Column("session", Kind::Integer),
    Column("alive", Kind::Boolean),
];

/// A row per database, resource, epoch and process. Cancel-safe.
pub(super) async fn show(console: &Console) -> Answer {
    let (policies, sessions) = (console.proxy.policies(), console.proxy.sessions());
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    for database in console.fenced_databases(&policies) {
        match database.admissions().await {
            Ok(admissions) => {
                rows.extend(admissions.list.iter().map(|admission| row(&database, admission, &sessions)));
                if admissions.left_out > 0 {
                    notices.push(left_out(&database, admissions.left_out));
                }
            }
            Err(reason) => notices.extend(unreadable(&policies, &database, &reason)),
        }
    }
    Answer::show(&COLUMNS, rows).with_notices(notices)
}

fn row(database: &Database, admission: &Admission, sessions: &[OpenSession]) -> Vec<Value> {
    let is_its = |session: &&OpenSession| session.pid == Some(admission.pid) && session.database == database.name();
    let session = sessions.iter().find(is_its).filter(|_| admission.is_ours && admission.is_alive);
    vec![
        database.name().into(),
        admission.resource.clone().into(),
        admission.epoch.generation.into(),
        admission.epoch.token.into(),
        i64::from(admission.pid).into(),
        admission.backend_start.into(),
        admission.admitted.into(),
        admission.proxy.clone().into(),
        Value::Integer(session.map(|session| i64::try_from(session.number).unwrap_or(i64::MAX))),
        admission.is_alive.into(),
    ]
}

fn left_out(database: &Database, number: usize) -> (Severity, ErrorText) {
    let message = format!("database \"{}\" has {number} more admissions", database.name());
    let hint = "SELECT from fencegate.admission for all of them.";
    (Severity::Notice, ErrorText::new("00000", message).hint(hint))
}
