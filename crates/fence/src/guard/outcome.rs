//! The reports of `guard install` and `guard status`, and why the guard was not changed or read.

use crate::{InitError, InitLockError};
use fencegate_postgres::sql;

/// The outcome of `install`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Number of triggers that the policies require.
    pub wanted: usize,
    /// Number of these triggers that exist as required.
    pub there: usize,
    /// Number of relations that require triggers.
    pub tables: usize,
    /// Number of changes. Each trigger statement counts as one; so do the functions, the leases and the event triggers.
    /// 0 if the guard was complete.
    pub changes: usize,
    /// The tables from which the guard was removed, because the policies no longer fence them.
    pub released: Vec<String>,
    /// Tables that stay unguarded, and why.
    pub warnings: Vec<String>,
    /// Statements that other roles still have to run.
    pub to_run: Vec<RemainingStatements>,
}

/// Statements that another role still has to run in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingStatements {
    /// The role that may run them.
    pub by: String,
    /// The statements of the transaction.
    pub statements: Vec<String>,
}

/// State of a part of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// As the policies require.
    Ok,
    /// Missing.
    Missing,
    /// Exists, but differs or is in none of the policies.
    Changed,
    /// Exists, but does not always fire.
    Disabled,
    /// Missing, but not required: event triggers that no superuser has created yet.
    NotMade,
    /// A subscription whose rows the guard rejects.
    Rejected,
}

impl GuardState {
    /// The word in `fencegate guard status`.
    pub fn name(self) -> &'static str {
        match self {
            GuardState::Ok => "ok",
            GuardState::Missing => "missing",
            GuardState::Changed => "changed",
            GuardState::Disabled => "disabled",
            GuardState::NotMade => "none",
            GuardState::Rejected => "rejected",
        }
    }

    /// Returns true if the state requires no action.
    pub fn is_well(self) -> bool {
        matches!(self, GuardState::Ok | GuardState::NotMade)
    }
}

/// A line of `fencegate guard status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// The relation, or the part of the guard that belongs to none.
    pub table: String,
    /// The resource's name; empty if the part belongs to none.
    pub resource: String,
    /// The state of its worst part.
    pub state: GuardState,
    /// The difference.
    pub difference: String,
}

/// Differences between the guard and the policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// A line for each relation and resource, then those of functions, event triggers and subscriptions.
    pub lines: Vec<StatusLine>,
    /// Tables that cannot be guarded, and why.
    pub warnings: Vec<String>,
}

/// Why the guard was not installed, read or removed; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum GuardError {
    /// No connection.
    #[error("cannot connect: {}", sql::message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The schema of its functions does not exist.
    #[error("database {0} has no fencegate schema: run `fencegate init` first")]
    Uninitialized(String),
    /// The schema lacks objects that this version of the guard needs.
    #[error("database {0} has the fencegate schema of an earlier version: run `fencegate init` first")]
    Outdated(String),
    /// The triggers need functions that the connecting role may not create.
    #[error(
        "the guard functions of this version are not installed, and only a superuser or {0}, the owner of the schema fencegate, may create them: run `fencegate guard install` as such a role, then again as this role"
    )]
    FunctionsFirst(String),
    /// The policies do not apply to the database.
    #[error(
        "the policies fence nothing in database {0}, which has a guard: correct `databases`, or run `fencegate guard remove`; \
         --force removes the guard as well"
    )]
    OtherDatabase(String),
    /// The proxies have other policies in force.
    #[error(
        "the proxies do not have these policies in force: {}. Reload the proxies first, or use --force. After a restart, a proxy records its policies when the first client connects to the database", .0.join("; ")
    )]
    OtherPolicies(Vec<String>),
    /// A name in the policies is probably misspelled: the guard of the table that was meant would be removed.
    #[error("{missing} The guard of {meant} would be removed: correct the policies, or use --force")]
    Misspelled { missing: String, meant: String },
    /// The server refused a statement.
    #[error("cannot {}: {}", .0, sql::message(.1))]
    Refused(String, #[source] tokio_postgres::Error),
    /// Other processes hold locks on the tables, which are a list of SQL literals.
    #[error("cannot lock the tables, which are locked by {by}: {}", sql::message(.source))]
    HeldUp { relations: String, by: String, source: tokio_postgres::Error },
    /// Another command is running, or another process holds the lock.
    #[error(transparent)]
    Locked(#[from] InitLockError),
    /// The server at the address is not PostgreSQL.
    #[error("{}", InitError::Proxy)]
    Proxy,
    /// The guard has parts that this program does not know.
    #[error("database {database} has the {version}, which is newer than this program: run the newer fencegate")]
    Newer { database: String, version: String },
    /// Only owners may drop objects, and the connecting role is not a member of these owners.
    #[error("role {role} may not remove all objects. Connect as a superuser, or as a member of {others}")]
    NotAllowed { role: String, others: String },
    /// The connecting role cannot see sessions of other roles.
    #[error(
        "role {0} cannot see whether a proxy uses the database. Connect as a superuser or as the proxy's control role, or GRANT pg_read_all_stats TO {0}"
    )]
    Blind(String),
    /// `users` has a line for each.
    #[error("a proxy uses database {database}; nothing was removed. Stop it, or end these processes:{users}")]
    InUse { database: String, users: String },
    /// `dependents` has a line for each.
    #[error(
        "other objects in database {database} depend on fencegate's objects; nothing was removed. Drop them first{}:{dependents}",
        if *.may_keep { ", or keep the function fencegate.token with --keep-token" } else { "" }
    )]
    Needed { database: String, dependents: String, may_keep: bool },
}
