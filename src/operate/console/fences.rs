//! `SHOW FENCES`: every resource in every database that has had sessions, and the keys used last.

use super::client::Console;
use super::notices::{no_databases, notice, unreadable};
use super::result_set::ColumnType::{Boolean, Integer, Text};
use super::result_set::{ResultSet, Table, TableColumn};
use fencegate_fence::session::Token;
use fencegate_fence::{Database, Fence, followed_leader};
use fencegate_policy::Resource;
use std::sync::Arc;

/// A resource in a database, or the resource of a key.
pub(super) struct Row {
    database: Arc<Database>,
    resource: Arc<Resource>,
    fence: Option<Fence>,
    /// The leader of a followed election, if known.
    leader: Option<LeaderState>,
}

#[derive(Clone, Copy)]
enum LeaderState {
    Leads(Token),
    Nobody,
    Unknown,
}

/// A row per database and resource. A resource that was never written under a token has no epoch. Neither has a keyed
/// resource; its keys follow it.
pub(super) fn table() -> Table<Row> {
    vec![
        TableColumn("database", Text, |it| it.database.name().into()),
        TableColumn("resource", Text, |it| (&it.resource.name).into()),
        TableColumn("mode", Text, |it| it.resource.mode.name().into()),
        TableColumn("election", Text, |it| it.resource.issuer_shown().into()),
        TableColumn("generation", Integer, |it| it.fence.map(|fence| fence.epoch.generation).into()),
        TableColumn("token", Integer, |it| it.fence.map(|fence| fence.epoch.token).into()),
        TableColumn("drained", Boolean, |it| it.fence.map(|fence| fence.drained).into()),
        TableColumn("admissions", Integer, |it| it.fence.map(|fence| fence.admissions).into()),
        TableColumn("leader", Integer, |it| match it.leader {
            Some(LeaderState::Leads(token)) => Some(token).into(),
            _ => None::<Token>.into(),
        }),
        TableColumn("leader_state", Text, |it| {
            let state = it.leader.map(|leader| match (leader, it.fence) {
                (LeaderState::Leads(token), Some(fence)) if token < fence.epoch.token => "gone back",
                (LeaderState::Leads(_), _) => "leads",
                (LeaderState::Nobody, _) => "nobody",
                (LeaderState::Unknown, _) => "unknown",
            });
            state.into()
        }),
    ]
}

/// Cancel-safe.
pub(super) async fn show(console: &Console) -> ResultSet {
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
        // Leases that cannot be read are unknown.
        let leased = database.read_leases(&policies.resources).await.unwrap_or_default();
        let row = |resource: Arc<Resource>, fence: Option<&Fence>| {
            // There may be any number of keys.
            let issuer = resource.issuer.as_ref().filter(|_| resource.family.is_none());
            let leader = issuer.map(|_| match followed_leader(&resource, &leaders, &leased) {
                Some(Some(token)) => LeaderState::Leads(token),
                Some(None) => LeaderState::Nobody,
                None => LeaderState::Unknown,
            });
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
            let hint = "The latest updates are shown. For the others, query fencegate_state.epoch.";
            notices.push(notice(message, hint));
        }
    }
    ResultSet::show(&table(), rows).with_notices(notices)
}
