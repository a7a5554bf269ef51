//! Views of the fences in every database that has had sessions: `SHOW FENCES` (with the keys used last), `SHOW LEASES`,
//! `SHOW ADMISSIONS`, and `SHOW POLICIES`: fenced tables, and how far their fences are enforced.

use super::client::Console;
use super::result_set::ColumnType::{Boolean, Integer, Text, Time};
use super::result_set::{Notice, ResultSet, Table, TableColumn, is_concerned, no_databases, notice, unreadable};
use super::views::OpenSession;
use fencegate_fence::session::Token;
use fencegate_fence::store::StoreError;
use fencegate_fence::{Admission, Bounded, Database, Enforcement, Fence, Reach, StoredLease, followed_leader};
use fencegate_policy::{FencedTable, Mode, PolicySet, Resource};
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

/// The entries of each fenced database, with notices about unreadable databases and about entries that are left out (`more`).
async fn of_databases<T>(
    console: &Console,
    policies: &PolicySet,
    read: impl AsyncFn(&Database) -> Result<Bounded<T>, StoreError>,
    more: impl Fn(&str, usize) -> Notice,
) -> (Vec<(Arc<Database>, T)>, Vec<Notice>) {
    let (mut rows, mut notices) = (Vec::new(), Vec::new());
    for database in console.fenced_databases(policies) {
        match read(&database).await {
            Ok(Bounded { list, left_out }) => {
                rows.extend(list.into_iter().map(|it| (database.clone(), it)));
                notices.extend((left_out > 0).then(|| more(database.name(), left_out)));
            }
            Err(reason) => notices.extend(unreadable(policies, &database, &reason)),
        }
    }
    (rows, notices)
}

/// A lease in a database.
pub(super) type LeaseRow = (Arc<Database>, StoredLease);

/// A row per database and election.
pub(super) fn lease_table() -> Table<LeaseRow> {
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
pub(super) async fn show_leases(console: &Console) -> ResultSet {
    let policies = console.proxy.policies();
    let hint = "The latest acquired are shown. For the others, query fencegate_state.lease.";
    let more =
        |name: &str, number| notice(format!("database \"{name}\" has the leases of {number} more elections"), hint);
    let (rows, notices) = of_databases(console, &policies, async |it: &Database| it.leases().await, more).await;
    ResultSet::show(&lease_table(), rows).with_notices(notices)
}

/// An admission in a database, and the number of its session in this proxy.
pub(super) type AdmissionRow = (Arc<Database>, Admission, Option<u64>);

/// A row per database, resource, epoch and process.
pub(super) fn admission_table() -> Table<AdmissionRow> {
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
pub(super) async fn show_admissions(console: &Console) -> ResultSet {
    let (policies, sessions) = (console.proxy.policies(), console.proxy.sessions());
    let hint = "SELECT from fencegate_state.admission for all of them.";
    let more = |name: &str, number| notice(format!("database \"{name}\" has {number} more admissions"), hint);
    let (rows, notices) = of_databases(console, &policies, async |it: &Database| it.admissions().await, more).await;
    let with_session = |(database, it): (Arc<Database>, Admission)| {
        let session = session_of(&database, &it, &sessions);
        (database, it, session)
    };
    ResultSet::show(&admission_table(), rows.into_iter().map(with_session)).with_notices(notices)
}

fn session_of(database: &Database, admission: &Admission, sessions: &[OpenSession]) -> Option<u64> {
    let is_its = |session: &&OpenSession| session.is_of(database, admission.pid);
    let session = sessions.iter().find(is_its).filter(|_| admission.is_ours && admission.is_alive);
    session.map(|session| session.number)
}

/// A table of a resource in a database, and how far its fence is enforced there, if that is known.
pub(super) struct PolicyRow<'a> {
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
pub(super) fn policy_table<'a>() -> Table<PolicyRow<'a>> {
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

impl PolicyRow<'_> {
    /// True unless the policies place the table in another database.
    fn is_expected(&self) -> bool {
        let (Some(database), Some(table)) = (&self.database, self.table) else { return true };
        table.is_expected_in(database)
    }
}

/// Cancel-safe.
pub(super) async fn show_policies(console: &Console) -> ResultSet {
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
    ResultSet::show(&policy_table(), rows).with_notices(notices)
}

fn of_database<'a>(
    policies: &'a PolicySet,
    database: Option<&Arc<Database>>,
    enforcement: Option<&Enforcement>,
) -> Vec<PolicyRow<'a>> {
    let mut rows = Vec::new();
    let superseded = database.map(|database| database.superseded()).unwrap_or_default();
    for resource in &policies.resources {
        let tables = resource.tables.iter().map(Some).chain(resource.tables.is_empty().then_some(None));
        rows.extend(tables.map(|table| PolicyRow {
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
