//! `SHOW REJECTIONS`: the writes that were rejected last, without the values in them.

use super::Console;
use super::answer::{Answer, Column, Kind};
use crate::fence::session::Token;
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

pub(super) const COLUMNS: [Column; 11] = [
    Column("time", Kind::Time),
    Column("session", Kind::Integer),
    Column("user", Kind::Text),
    Column("database", Kind::Text),
    Column("resource", Kind::Text),
    Column("verdict", Kind::Text),
    Column("sqlstate", Kind::Text),
    Column("presented", Kind::Integer),
    Column("highest", Kind::Integer),
    Column("statement", Kind::Text),
    Column("table", Kind::Text),
];

/// A row per rejection, the latest first.
pub(super) fn show(console: &Console) -> Answer {
    let rejections = console.proxy.rejections();
    let row = |it: &std::sync::Arc<Rejected>| {
        vec![
            it.time.into(),
            it.session.into(),
            it.user.clone().into(),
            it.database.clone().into(),
            it.resource.clone().into(),
            it.verdict.into(),
            it.sqlstate.into(),
            it.presented.into(),
            it.highest.into(),
            it.statement.clone().into(),
            it.table.clone().into(),
        ]
    };
    Answer::show(&COLUMNS, rejections.iter().map(row).collect())
}
