//! `SHOW SESSIONS`: the sessions of this proxy, and their tokens.

use super::result_set::ColumnType::{Integer, Text, Time};
use super::result_set::{Table, TableColumn, shortened};
use fencegate_fence::Database;
use fencegate_fence::session::{Activity, Epoch};
use std::time::SystemTime;

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
pub(super) fn table() -> Table<OpenSession> {
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
pub(super) fn doing(activity: Activity) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_admissions_are_sorted_and_limited() {
        let admissions = (0..30).rev().map(|key| (format!("shard/{key:02}"), Epoch { generation: 1, token: 7 }));
        let shown = admitted(&admissions.collect::<Vec<_>>());
        assert!(shown.starts_with("shard/00=7, shard/01=7") && shown.ends_with("shard/19=7, and 10 more"), "{shown}");
        assert_eq!(admitted(&[]), "");
    }
}
