//! Why the guard was not changed or read.

use crate::{InitError, InitLockError};
use fencegate_postgres::sql;

/// Why the guard was not installed, read or removed; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum GuardError {
    /// No connection.
    #[error("cannot connect: {}", sql::message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The schema of its functions does not exist.
    #[error("database {0} has no fencegate schema: run `fencegate init` first")]
    Uninitialised(String),
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
        "others in database {database} depend on what would be removed; nothing was removed. Drop them first{}:{dependents}",
        if *.may_keep { ", or keep the function fencegate.token with --keep-token" } else { "" }
    )]
    Needed { database: String, dependents: String, may_keep: bool },
}
