//! `SHOW REJECTIONS`: the writes that were rejected last, or would have been, without the values in them.

use super::result_set::ColumnType::{Integer, Text, Time};
use super::result_set::{Table, TableColumn};
use fencegate_fence::session::Token;
use std::sync::Arc;
use std::time::SystemTime;

/// A write that was rejected, or would have been.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// When.
    pub time: SystemTime,
    /// The session's number in this process.
    pub session: u64,
    /// The role that logged in.
    pub user: String,
    /// The database.
    pub database: String,
    /// The resource, where the verdict is about one.
    pub resource: Option<String>,
    /// As in metrics: stale, missing, …
    pub verdict: &'static str,
    /// LF001, …
    pub sqlstate: &'static str,
    /// The token that the session presented, where the verdict is about one.
    pub presented: Option<Token>,
    /// The token in force, as far as it is known.
    pub highest: Option<Token>,
    /// Kind of the statement: INSERT, …
    pub statement: String,
    /// The table, as far as the verdict is about one.
    pub table: Option<String>,
    /// `observe`: it has passed.
    pub mode: &'static str,
}

/// A row per rejection, the latest first.
pub(super) fn table() -> Table<Arc<Rejected>> {
    vec![
        TableColumn("time", Time, |it| it.time.into()),
        TableColumn("session", Integer, |it| it.session.into()),
        TableColumn("user", Text, |it| (&it.user).into()),
        TableColumn("database", Text, |it| (&it.database).into()),
        TableColumn("resource", Text, |it| it.resource.clone().into()),
        TableColumn("verdict", Text, |it| it.verdict.into()),
        TableColumn("sqlstate", Text, |it| it.sqlstate.into()),
        TableColumn("presented", Integer, |it| it.presented.into()),
        TableColumn("highest", Integer, |it| it.highest.into()),
        TableColumn("statement", Text, |it| (&it.statement).into()),
        TableColumn("table", Text, |it| it.table.clone().into()),
        TableColumn("mode", Text, |it| it.mode.into()),
    ]
}
