//! Views of the program: `SHOW SESSIONS`, `SHOW HELP`, `SHOW VERSION`, `SHOW CONFIG`, `SHOW STATS`; and `SHOW DATABASES`, `SHOW CLIENTS`
//! and `SHOW SERVERS`, in the columns that users of PgBouncer know. Must never show a secret.

use super::client::Console;
use super::command::CommandHelp;
use super::result_set::ColumnType::{Boolean, Integer, Text, Time};
use super::result_set::{ResultSet, Table, TableColumn, shortened, unreadable};
use crate::config::{Fallback, Reload, Shown};
use crate::metrics::VERDICTS;
use fencegate_fence::Database;
use fencegate_fence::session::{Activity, Epoch};
use futures_util::{StreamExt, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Number of databases that are queried at the same time, each over its own connection.
const MOST_AT_ONCE: usize = 4;

/// A row of `SHOW DATABASES`.
pub(super) struct DatabaseRow {
    name: String,
    upstream: String,
    sessions: u64,
    is_fenced: bool,
    is_paused: bool,
    /// Processes that have locked fencegate's tables; `None` if there are none, or that is unknown.
    locked_by: Option<String>,
}

/// A row per database.
pub(super) fn databases() -> Table<DatabaseRow> {
    vec![
        TableColumn("name", Text, |it| (&it.name).into()),
        TableColumn("host", Text, |it| (&it.upstream).into()),
        TableColumn("current_connections", Integer, |it| it.sessions.into()),
        TableColumn("fenced", Boolean, |it| it.is_fenced.into()),
        TableColumn("paused", Boolean, |it| it.is_paused.into()),
        TableColumn("locked_by", Text, |it| it.locked_by.clone().into()),
    ]
}

/// Databases that have had sessions recently, or that are paused. Cancel-safe.
pub(super) async fn show_databases(console: &Console) -> ResultSet {
    let proxy = &console.proxy;
    let (policies, paused, upstream) = (proxy.policies(), proxy.paused(), proxy.settings().upstream.to_string());
    let mut sessions: BTreeMap<String, u64> = BTreeMap::new();
    sessions.extend(proxy.databases().iter().filter(|it| !it.is_missing()).map(|it| (it.name().to_owned(), 0)));
    sessions.extend(paused.iter().map(|name| (name.clone(), 0)));
    proxy.sessions().into_iter().for_each(|session| *sessions.entry(session.database).or_default() += 1);
    let fenced = console.fenced_databases(&policies);
    let mut notices = Vec::new();
    let mut locked: BTreeMap<String, String> = BTreeMap::new();
    let in_use: Vec<_> = fenced.iter().filter(|database| database.has_sessions()).cloned().collect();
    let ask = |database: Arc<Database>| async {
        let found = database.table_locks().await;
        (database, found)
    };
    let mut asked = stream::iter(in_use.into_iter().map(ask)).buffer_unordered(MOST_AT_ONCE);
    while let Some((database, found)) = asked.next().await {
        match found {
            Ok(None) => {}
            Ok(Some(identity)) => drop(locked.insert(database.name().to_owned(), identity)),
            Err(reason) => notices.extend(unreadable(&policies, &database, &reason)),
        }
    }
    let row = |(name, sessions): (String, u64)| DatabaseRow {
        upstream: upstream.clone(),
        sessions,
        is_fenced: fenced.iter().any(|it| it.name() == name),
        is_paused: paused.contains(&name),
        locked_by: locked.get(&name).cloned(),
        name,
    };
    ResultSet::show(&databases(), sessions.into_iter().map(row)).with_notices(notices)
}

/// A session in `SHOW SESSIONS`.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Number of the session in this process.
    pub number: u64,
    /// The database.
    pub database: String,
    /// The role that logged in.
    pub user: String,
    /// Address of the client.
    pub address: String,
    /// The session's `application_name` in the server.
    pub application_name: String,
    /// The server process.
    pub pid: Option<i32>,
    /// Start time of the session.
    pub started: SystemTime,
    /// Activity of the server process, and the time since then.
    pub state: (Activity, SystemTime),
    /// True if the database is paused and the proxy reads nothing from the client.
    pub is_held: bool,
    /// The value of `lease.fence`; None if only the server knows it.
    pub presented: Option<String>,
    /// Resources that the server process may write, with the epochs.
    pub admitted: Vec<(String, Epoch)>,
    /// Simple queries, and executions of prepared statements.
    pub queries: u64,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
}

impl OpenSession {
    /// Activity of the server process.
    pub(in crate::operate) fn state_shown(&self) -> &'static str {
        doing(self.state.0)
    }

    /// Resources and tokens of the server process, in the form of `lease.fence`.
    pub(in crate::operate) fn admitted_shown(&self) -> String {
        admitted(&self.admitted)
    }

    /// True if the session has this server process of the database.
    pub(super) fn is_of(&self, database: &Database, pid: i32) -> bool {
        self.pid == Some(pid) && self.database == database.name()
    }
}

/// Maximum number of admitted resources that are named.
const MOST_NAMED: usize = 20;

/// A row per session.
pub(super) fn sessions() -> Table<OpenSession> {
    vec![
        TableColumn("session", Integer, |it| it.number.into()),
        TableColumn("database", Text, |it| (&it.database).into()),
        TableColumn("user", Text, |it| (&it.user).into()),
        TableColumn("address", Text, |it| (&it.address).into()),
        TableColumn("application_name", Text, |it| (&it.application_name).into()),
        TableColumn("pid", Integer, |it| it.pid.into()),
        TableColumn("started", Time, |it| it.started.into()),
        TableColumn("state", Text, |it| doing(it.state.0).into()),
        TableColumn("state_since", Time, |it| it.state.1.into()),
        TableColumn("presented", Text, |it| it.presented.clone().into()),
        TableColumn("admitted", Text, |it| admitted(&it.admitted).into()),
        TableColumn("queries", Integer, |it| it.queries.into()),
        TableColumn("received_bytes", Integer, |it| it.received.into()),
        TableColumn("sent_bytes", Integer, |it| it.sent.into()),
    ]
}

/// The terms of pg_stat_activity, except the last.
fn doing(activity: Activity) -> &'static str {
    match activity {
        Activity::Idle => "idle",
        Activity::Waiting => "idle in transaction",
        Activity::Busy => "active",
        Activity::CutOff => "cut off",
    }
}

/// Lists tokens in the form of `lease.fence`.
fn admitted(admissions: &[(String, Epoch)]) -> String {
    let named = admissions.iter().map(|(resource, epoch)| format!("{resource}={}", epoch.token));
    let mut named: Vec<_> = named.collect();
    named.sort();
    shortened(named, MOST_NAMED, ", ")
}

/// A row per client.
pub(super) fn clients() -> Table<OpenSession> {
    vec![
        TableColumn("type", Text, |_| "C".into()),
        TableColumn("user", Text, |it| (&it.user).into()),
        TableColumn("database", Text, |it| (&it.database).into()),
        TableColumn("state", Text, |it| if it.is_held { "paused".into() } else { doing(it.state.0).into() }),
        TableColumn("addr", Text, |it| (&it.address).into()),
        TableColumn("application_name", Text, |it| (&it.application_name).into()),
        TableColumn("connect_time", Time, |it| it.started.into()),
        TableColumn("request_time", Time, |it| it.state.1.into()),
        TableColumn("remote_pid", Integer, |it| it.pid.into()),
        TableColumn("session", Integer, |it| it.number.into()),
    ]
}

/// A server behind the proxy, in `SHOW SERVERS`.
#[derive(Clone, Debug)]
pub struct ServerRow {
    /// The address in the settings.
    pub host: String,
    /// True if it accepted a connection at the last look.
    pub is_up: bool,
    /// Its role; None if there is only one server, whose role the proxy does not use.
    pub role: Option<&'static str>,
    /// Its timeline, when it was last seen.
    pub timeline: Option<i64>,
    /// Its cluster, when it was last seen.
    pub system_identifier: Option<String>,
    /// Time when it was last seen.
    pub seen: Option<SystemTime>,
    /// Sessions of this proxy on it.
    pub sessions: u64,
    /// Why it is not known.
    pub error: Option<String>,
}

/// A row per server.
pub(super) fn servers() -> Table<ServerRow> {
    vec![
        TableColumn("host", Text, |it| (&it.host).into()),
        TableColumn("up", Boolean, |it| it.is_up.into()),
        TableColumn("role", Text, |it| it.role.map(str::to_owned).into()),
        TableColumn("timeline", Integer, |it| it.timeline.into()),
        TableColumn("system_identifier", Text, |it| it.system_identifier.clone().into()),
        TableColumn("last_seen", Time, |it| it.seen.into()),
        TableColumn("sessions", Integer, |it| it.sessions.into()),
        TableColumn("error", Text, |it| it.error.clone().into()),
    ]
}

/// Cancel-safe.
pub(super) async fn show_servers(console: &Console) -> ResultSet {
    ResultSet::show(&servers(), console.proxy.servers().await)
}

/// A row per command.
pub(super) fn commands<'a>() -> Table<&'a CommandHelp> {
    vec![
        TableColumn("command", Text, |it| format!("{} {}", it.command, it.arguments).trim_end().into()),
        TableColumn("description", Text, |it| it.help.into()),
    ]
}

/// One row.
pub(super) fn version<'a>() -> Table<&'a Console> {
    vec![
        TableColumn("fencegate", Text, |_| env!("CARGO_PKG_VERSION").into()),
        TableColumn("server", Text, |it| Some(&it.server_version).filter(|version| !version.is_empty()).into()),
        TableColumn("started", Time, |it| it.proxy.started().into()),
    ]
}

/// A row per setting, in the order of the table; `value` is NULL if it is not set, `default` if it has none.
pub(super) fn settings() -> Table<Shown> {
    vec![
        TableColumn("key", Text, |it| it.setting.key.into()),
        TableColumn("value", Text, |it| it.value.clone().into()),
        TableColumn("default", Text, |it| match it.setting.default {
            Fallback::Is(text) => Some(text).into(),
            Fallback::Required | Fallback::Nothing(_) => None::<&str>.into(),
        }),
        TableColumn("source", Text, |it| it.source.clone().into()),
        TableColumn("reload", Text, |it| match it.setting.reload {
            Reload::Applies => "applies".into(),
            Reload::Stays => "restart".into(),
        }),
    ]
}

/// Database, resource and mode.
type Labels = (String, String, String);

/// A count per verdict, in the order of [`VERDICTS`].
type Counts = [u64; VERDICTS.len()];

/// A row per database, resource and mode; `resource` is NULL if the statement does not reveal it.
pub(super) fn table() -> Table<(Labels, Counts)> {
    vec![
        TableColumn("database", Text, |(labels, _)| (&labels.0).into()),
        TableColumn("resource", Text, |(labels, _)| Some(&labels.1).filter(|name| !name.is_empty()).into()),
        TableColumn("mode", Text, |(labels, _)| (&labels.2).into()),
        TableColumn("admitted", Integer, |(_, counts)| counts[0].into()),
        TableColumn("stale", Integer, |(_, counts)| counts[1].into()),
        TableColumn("missing", Integer, |(_, counts)| counts[2].into()),
        TableColumn("invalid", Integer, |(_, counts)| counts[3].into()),
        TableColumn("unverifiable", Integer, |(_, counts)| counts[4].into()),
        TableColumn("unissued", Integer, |(_, counts)| counts[5].into()),
        TableColumn("unavailable", Integer, |(_, counts)| counts[6].into()),
        TableColumn("exempt", Integer, |(_, counts)| counts[7].into()),
    ]
}

/// The rows.
pub(super) fn counts(console: &Console) -> BTreeMap<Labels, Counts> {
    let mut counts: BTreeMap<Labels, Counts> = BTreeMap::new();
    for write in console.proxy.writes() {
        let of_resource = counts.entry((write.database, write.resource, write.mode)).or_default();
        if let Some(place) = VERDICTS.iter().position(|verdict| *verdict == write.verdict) {
            of_resource[place] += write.count;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_column() {
        let columns: Vec<_> = table()[3..].iter().map(|column| column.0).collect();
        assert_eq!(columns, VERDICTS);
    }

    #[test]
    fn shown_admissions_are_sorted_and_limited() {
        let admissions = (0..30).rev().map(|key| (format!("shard/{key:02}"), Epoch { generation: 1, token: 7 }));
        let shown = admitted(&admissions.collect::<Vec<_>>());
        assert!(shown.starts_with("shard/00=7, shard/01=7") && shown.ends_with("shard/19=7, and 10 more"), "{shown}");
        assert_eq!(admitted(&[]), "");
    }
}
