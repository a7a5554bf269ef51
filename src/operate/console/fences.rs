//! `SHOW FENCES`: every resource in every database that has had sessions, and the keys used last.

use super::answer::{Answer, Column, Kind, Value};
use super::{Console, no_databases, unreadable};
use crate::fence::{Database, Fence, Leaders};
use crate::policy::Resource;
use crate::wire::error::{ErrorText, Severity};

pub(super) const COLUMNS: [Column; 9] = [
    Column("database", Kind::Text),
    Column("resource", Kind::Text),
    Column("mode", Kind::Text),
    Column("election", Kind::Text),
    Column("generation", Kind::Integer),
    Column("token", Kind::Integer),
    Column("drained", Kind::Boolean),
    Column("admissions", Kind::Integer),
    Column("leader", Kind::Integer),
];

/// A row per database and resource; what nobody has written to under a token has no epoch, and so has a keyed resource:
/// its keys follow it. Cancel-safe.
pub(super) async fn show(console: &Console) -> Answer {
    let (policies, leaders) = (console.proxy.policies(), console.proxy.leaders());
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    let databases = console.fenced_databases(&policies);
    if databases.is_empty() {
        notices.push(no_databases());
    }
    for database in databases {
        let fences = match database.fences(&policies.resources).await {
            Ok(fences) => fences,
            Err(reason) => {
                notices.extend(unreadable(&policies, &database, &reason));
                continue;
            }
        };
        for resource in &policies.resources {
            rows.push(row(&leaders, &database, resource, fences.plain.get(&resource.name)));
            let keys = fences.of_keys.iter().filter(|_| resource.keyed.is_some());
            let of_it = keys.filter_map(|(name, fence)| Some((resource.called(name)?, fence)));
            rows.extend(of_it.map(|(key, fence)| row(&leaders, &database, &key, Some(fence))));
        }
        if fences.left_out > 0 {
            notices.push(left_out(&database, fences.left_out));
        }
    }
    Answer::show(&COLUMNS, rows).with_notices(notices)
}

fn row(leaders: &Leaders, database: &Database, resource: &Resource, fence: Option<&Fence>) -> Vec<Value> {
    vec![
        database.name().into(),
        resource.name.clone().into(),
        resource.mode.name().into(),
        resource.election_shown().into(),
        fence.map(|fence| fence.epoch.generation).into(),
        fence.map(|fence| fence.epoch.token).into(),
        fence.map(|fence| fence.drained).into(),
        fence.map(|fence| i64::try_from(fence.admissions).unwrap_or(i64::MAX)).into(),
        resource.election.as_ref().and_then(|election| leaders.get(election)).copied().into(),
    ]
}

fn left_out(database: &Database, number: usize) -> (Severity, ErrorText) {
    let message = format!("database \"{}\" has the fences of {number} more keys", database.name());
    let hint = "These are the ones updated last. SELECT from fencegate.epoch for the others.";
    (Severity::Notice, ErrorText::new("00000", message).hint(hint))
}
