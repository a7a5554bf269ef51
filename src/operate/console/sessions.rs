//! `SHOW SESSIONS`: who is connected through this proxy, and under which tokens.

use super::Console;
use super::answer::{Answer, Column, Kind};
use crate::fence::session::{Activity, Epoch};
use std::time::SystemTime;

/// A session as it is shown.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Its number in this process.
    pub number: u64,
    /// The database.
    pub database: String,
    /// The role that logged in.
    pub user: String,
    /// Where the client is.
    pub address: String,
    /// What the client called itself when it started.
    pub application_name: String,
    /// Its server process.
    pub pid: Option<i32>,
    /// When it started.
    pub started: SystemTime,
    /// What its server process does, and since when.
    pub state: (Activity, SystemTime),
    /// The value of `lease.fence`, as far as it is known: None where the server has to be asked.
    pub presented: Option<String>,
    /// What its server process is admitted to.
    pub admitted: Vec<(String, Epoch)>,
    /// Queries: simple ones, and executions of prepared ones.
    pub queries: u64,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
}

pub(super) const COLUMNS: [Column; 14] = [
    Column("session", Kind::Integer),
    Column("database", Kind::Text),
    Column("user", Kind::Text),
    Column("address", Kind::Text),
    Column("application_name", Kind::Text),
    Column("pid", Kind::Integer),
    Column("started", Kind::Time),
    Column("state", Kind::Text),
    Column("state_since", Kind::Time),
    Column("presented", Kind::Text),
    Column("admitted", Kind::Text),
    Column("queries", Kind::Integer),
    Column("received_bytes", Kind::Integer),
    Column("sent_bytes", Kind::Integer),
];

/// Of the resources that a session is admitted to, so many are named.
const MOST_NAMED: usize = 20;

/// A row per session.
pub(super) fn show(console: &Console) -> Answer {
    let row = |it: OpenSession| {
        vec![
            it.number.into(),
            it.database.into(),
            it.user.into(),
            it.address.into(),
            it.application_name.into(),
            it.pid.map(i64::from).into(),
            it.started.into(),
            doing(it.state.0).into(),
            it.state.1.into(),
            it.presented.into(),
            admitted(it.admitted).into(),
            it.queries.into(),
            it.received.into(),
            it.sent.into(),
        ]
    };
    Answer::show(&COLUMNS, console.proxy.sessions().into_iter().map(row).collect())
}

/// In the words of pg_stat_activity, save the last.
fn doing(activity: Activity) -> &'static str {
    match activity {
        Activity::Idle => "idle",
        Activity::Waiting => "idle in transaction",
        Activity::Busy => "active",
        Activity::CutOff => "cut off",
    }
}

/// As a value of `lease.fence` lists tokens.
fn admitted(mut admissions: Vec<(String, Epoch)>) -> String {
    admissions.sort();
    let more = admissions.len().saturating_sub(MOST_NAMED);
    let mut named: Vec<_> =
        admissions.iter().take(MOST_NAMED).map(|(resource, epoch)| format!("{resource}={}", epoch.token)).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admissions_are_sorted_and_few() {
        let admissions = (0..30).rev().map(|key| (format!("shard/{key:02}"), Epoch { generation: 1, token: 7 }));
        let shown = admitted(admissions.collect());
        assert!(shown.starts_with("shard/00=7, shard/01=7") && shown.ends_with("shard/19=7, and 10 more"), "{shown}");
        assert_eq!(admitted(Vec::new()), "");
    }
}
