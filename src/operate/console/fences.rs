//! `SHOW FENCES`: every resource in every database that has had sessions, and the keys used last.

use super::answer::Kind::{Boolean, Integer, Text};
use super::answer::{Answer, Column, Table};
use super::{Console, no_databases, notice, unreadable};
use crate::fence::session::Token;
use crate::fence::{Database, Fence};
use crate::policy::Resource;
use std::sync::Arc;

/// A resource, or that of a key, in a database.
pub(super) struct Row {
    database: Arc<Database>,
    resource: Arc<Resource>,
    fence: Option<Fence>,
    leader: Option<Token>,
}

/// A row per database and resource. A resource that nobody has written to under a token has no epoch, and neither has a
/// keyed resource: its keys follow it.
pub(super) fn table() -> Table<Row> {
    vec![
        Column("database", Text, |it| it.database.name().into()),
        Column("resource", Text, |it| (&it.resource.name).into()),
        Column("mode", Text, |it| it.resource.mode.name().into()),
        Column("election", Text, |it| it.resource.election_shown().into()),
        Column("generation", Integer, |it| it.fence.map(|fence| fence.epoch.generation).into()),
        Column("token", Integer, |it| it.fence.map(|fence| fence.epoch.token).into()),
        Column("drained", Boolean, |it| it.fence.map(|fence| fence.drained).into()),
        Column("admissions", Integer, |it| it.fence.map(|fence| fence.admissions).into()),
        Column("leader", Integer, |it| it.leader.into()),
    ]
}

/// Cancel-safe.
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
        let row = |resource: Arc<Resource>, fence: Option<&Fence>| {
            let leader = resource.election.as_ref().and_then(|election| leaders.get(election)).copied();
            Row { database: database.clone(), resource, fence: fence.copied(), leader }
        };
        for resource in &policies.resources {
            rows.push(row(resource.clone(), fences.plain.get(&resource.name)));
            let keys = fences.of_keys.iter().filter(|_| resource.keyed.is_some());
            rows.extend(keys.filter_map(|(name, fence)| Some(row(resource.called(name)?, Some(fence)))));
        }
        if fences.left_out > 0 {
            let (name, number) = (database.name(), fences.left_out);
            let message = format!("database \"{name}\" has the fences of {number} more keys");
            let hint = "These are the ones updated last. SELECT from fencegate.epoch for the others.";
            notices.push(notice(message, hint));
        }
    }
    Answer::show(&table(), rows).with_notices(notices)
}
