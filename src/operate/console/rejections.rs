//! `SHOW REJECTIONS`: the latest writes that were rejected, or would have been, without their values.

use super::result_set::ColumnType::{Integer, Text, Time};
use super::result_set::{Table, TableColumn};
use fencegate_fence::session::Token;
use std::sync::Arc;
use std::time::SystemTime;

/// A write that was rejected, or would have been.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Time of the rejection.
    pub time: SystemTime,
    /// The session's number in this process.
    pub session: u64,
    /// The role that logged in.
    pub user: String,
    /// The database.
    pub database: String,
    /// The resource, if the verdict is about one.
    pub resource: Option<String>,
    /// The verdict, as in metrics: stale, missing, …
    pub verdict: &'static str,
    /// SQLSTATE of the error: LF001, …
    pub sqlstate: &'static str,
    /// The token that the session presented, if the verdict is about one.
    pub presented: Option<Token>,
    /// The token in force, if known.
    pub highest: Option<Token>,
    /// Kind of the statement: INSERT, …
    pub statement: String,
    /// The table, if the verdict is about one.
    pub table: Option<String>,
    /// Mode of the fence. `observe`: the write has passed.
    pub mode: &'static str,
}

/// A row per rejection, latest first.
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
