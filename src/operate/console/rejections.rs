//! `SHOW REJECTIONS`: the writes that were rejected last, without the values in them.

use super::answer::Kind::{Integer, Text, Time};
use super::answer::{Column, Table};
use crate::fence::session::Token;
use std::sync::Arc;
use std::time::SystemTime;

/// A write that was rejected.
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
    /// What kind of statement: INSERT, …
    pub statement: String,
    /// The table, as far as the verdict is about one.
    pub table: Option<String>,
}

/// A row per rejection, the latest first.
pub(super) fn table() -> Table<Arc<Rejected>> {
    vec![
        Column("time", Time, |it| it.time.into()),
        Column("session", Integer, |it| it.session.into()),
        Column("user", Text, |it| (&it.user).into()),
        Column("database", Text, |it| (&it.database).into()),
        Column("resource", Text, |it| it.resource.clone().into()),
        Column("verdict", Text, |it| it.verdict.into()),
        Column("sqlstate", Text, |it| it.sqlstate.into()),
        Column("presented", Integer, |it| it.presented.into()),
        Column("highest", Integer, |it| it.highest.into()),
        Column("statement", Text, |it| (&it.statement).into()),
        Column("table", Text, |it| it.table.clone().into()),
    ]
}
