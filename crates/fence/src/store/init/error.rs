//! Why `init` fails, in words for its user.

use crate::store::error::UnsuitableEngine;
use crate::store::init_lock::InitLockError;

/// Why the schema was not created.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// No connection.
    #[error("cannot connect: {}", fencegate_postgres::sql::message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The server refused an action.
    #[error("cannot {}: {}", .0, fencegate_postgres::sql::message(.1))]
    Refused(&'static str, #[source] tokio_postgres::Error),
    /// The server lacks features of PostgreSQL that the protocol needs.
    #[error(transparent)]
    Engine(#[from] UnsuitableEngine),
    /// Another command is running, or another process holds the lock.
    #[error(transparent)]
    Locked(#[from] InitLockError),
    /// The address does not lead to a PostgreSQL server.
    #[error(
        "this is a fencegate proxy, not the server behind it: use the server's own address, as in the proxy's setting `upstream`"
    )]
    Proxy,
    /// An existing schema, or an object in it, belongs to an untrusted role. Its triggers and grants would remain.
    #[error(
        "the schema fencegate or fencegate_state, or an object in it, belongs to role {0}, which is neither a superuser nor a member of pg_signal_backend. If {0} is the proxy's control role, name it with --role. Otherwise find out who uses the schema. DROP SCHEMA … CASCADE removes it, with all its tokens"
    )]
    Foreign(String),
    /// The connecting role may not create the schema for the control role. Includes the statements that would permit it.
    #[error("cannot create the schema: {}; run as a role that may: {}", fencegate_postgres::sql::message(.0), .1.join("; "))]
    NotAllowed(#[source] tokio_postgres::Error, Vec<String>),
    /// A superuser owns the schema, and the connecting role is not a superuser.
    #[error(
        "the schema fencegate belongs to the superuser {0}, so only a superuser may change it: connect as a superuser, and name the proxy's control role with --role"
    )]
    Superuser(String),
}

pub(super) fn refused<T>(what: &'static str, result: Result<T, tokio_postgres::Error>) -> Result<T, InitError> {
    result.map_err(|source| InitError::Refused(what, source))
}
