//! Failures of operations on the protected database.
//!
//! Owns the classification of driver errors, and the text that clients receive. Must never forward the server's message to
//! clients, except that of 42501: others may name the control role or the server's address.

use super::sql::VERSION;
use crate::obstacle::{Blocker, Remedy, named};
use fencegate_catalog::CatalogError;
use fencegate_postgres::sql;
use fencegate_postgres::tls;
use fencegate_postgres::tls::{ConfiguredIn, ControlConfig, Diagnosis};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use fencegate_wire::error::ErrorText;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// Time limit of each action on a control connection: connecting, or one Query.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Why an operation failed. Unless the error is an answer of the database, the operation may still have taken effect, or may
/// do so later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum StoreError {
    /// No connection.
    #[error("cannot open the control connection: {0}")]
    Unreachable(#[source] ConnectionError),
    /// The connection broke, or the server ended it.
    #[error("the control connection was lost: {0}")]
    Lost(#[source] ConnectionError),
    /// The server reported an error of the statement.
    #[error("the database refused: {0}")]
    Refused(#[source] ConnectionError),
    /// The server reported 42501, but no missing privilege was found.
    #[error("the database refused the control role: {0}")]
    Denied(#[source] ConnectionError),
    /// No answer within this time.
    #[error("the control connection did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The server's lock_timeout has passed.
    #[error("timed out after {} s waiting for a lock", LIMIT.as_secs())]
    LockNotAvailable,
    /// These processes hold the resource's lock, and have not ended.
    #[error("{}", named("its lock is held by", .0))]
    Blocked(Vec<Blocker>),
    /// These processes hold locks on fencegate's tables, and have not ended.
    #[error("{}", named("tables of fencegate are locked", .0))]
    TablesLocked(Vec<Blocker>),
    /// The database does not exist.
    #[error("database \"{database}\" does not exist")]
    NoDatabase { database: String },
    /// A pending statement needs the database exclusively, so no connection opens.
    #[error("the database is being dropped")]
    Vacated,
    /// The server is in recovery.
    #[error("the server is in recovery: a standby accepts no writes")]
    Standby,
    /// The server accepts writes, or did, but another one is the primary.
    #[error("the control connection leads to a server that is not the primary of the list")]
    Superseded,
    /// There was never an admission.
    #[error("database {database} has no fencegate schema: run `fencegate init`")]
    Unprepared { database: String },
    /// The schema is older than this program.
    #[error("the schema fencegate of database {database} is {found:?}, not {VERSION:?}: run `fencegate init`")]
    Version { database: String, found: String },
    /// The schema is newer than this program.
    #[error("the schema fencegate of database {database} is {found:?}, and this program supports only {VERSION:?}")]
    Newer { database: String, found: String },
    /// The control role lacks a privilege on the server or the database.
    #[error("the control role {role} lacks a privilege: GRANT {grant} TO {role}")]
    Privilege { role: String, grant: String },
    /// The control role lacks privileges that `fencegate init` grants.
    #[error(
        "the control role {role} lacks privileges in the schemas of fencegate in database {database} ({lacking}): run `fencegate init --role {role}` there"
    )]
    SchemaPrivileges { role: String, database: String, lacking: String },
    /// The server lacks features of PostgreSQL that the protocol needs.
    #[error(transparent)]
    Engine(#[from] UnsuitableEngine),
    /// This program cannot decode the returned rows.
    #[error("the database's response to {0} has an unknown format")]
    UnknownForm(&'static str),
    /// The catalog was read, but cannot be used.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The catalog cannot be read for the session whose temporary relations are in this schema.
    #[error("{error}{}", of_session(schema))]
    CatalogOfSession {
        schema: String,
        #[source]
        error: Box<StoreError>,
    },
}

fn of_session(schema: &str) -> String {
    format!(", with the temporary relations of this session (schema {schema})")
}

impl StoreError {
    /// The failure of a login to the configured database.
    pub(super) fn on_connect(config: &ControlConfig, error: tokio_postgres::Error) -> Self {
        match StoreError::on_opening(config, error) {
            // A login itself needs only this privilege.
            StoreError::Denied(_) => {
                let grant = format!("CONNECT ON DATABASE \"{}\"", config.database().replace('"', "\"\""));
                StoreError::Privilege { role: config.role(), grant }
            }
            error => error,
        }
    }

    /// The failure of a connection that is being set up after the login.
    pub(super) fn on_opening(config: &ControlConfig, error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Denied(error.into()),
            _ if is_no_database(&error) => StoreError::NoDatabase { database: config.database().to_owned() },
            _ => StoreError::Unreachable(error.into()),
        }
    }

    /// The failure of a Query on an open connection.
    pub(super) fn on_query(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::LockNotAvailable,
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Denied(error.into()),
            Some(code) if !ends_process(code) && !spoils_statements(code) => StoreError::Refused(error.into()),
            _ => StoreError::Lost(error.into()),
        }
    }

    /// Returns true if the database answered, so that the operation certainly had no effect.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, StoreError::Refused(_) | StoreError::Denied(_) | StoreError::LockNotAvailable)
    }

    /// The remedy for this error.
    pub fn remedy(&self) -> Remedy {
        match self {
            StoreError::Unreachable(_) => Remedy::Connect,
            StoreError::Blocked(_) | StoreError::TablesLocked(_) => Remedy::EndThem,
            StoreError::Privilege { .. } => Remedy::Grant,
            StoreError::Unprepared { .. }
            | StoreError::Version { .. }
            | StoreError::SchemaPrivileges { .. }
            | StoreError::Denied(_) => Remedy::Init,
            StoreError::Newer { .. } => Remedy::Upgrade,
            StoreError::Engine(_) => Remedy::Engine,
            StoreError::CatalogOfSession { error, .. } => error.remedy(),
            StoreError::Lost(_)
            | StoreError::Refused(_)
            | StoreError::TimedOut(_)
            | StoreError::LockNotAvailable
            | StoreError::NoDatabase { .. }
            | StoreError::Vacated
            | StoreError::Standby
            | StoreError::Superseded
            | StoreError::UnknownForm(_)
            | StoreError::Catalog(_) => Remedy::TryAgain,
        }
    }

    /// The processes and prepared transactions that block the Query, for an error that names them.
    pub fn blockers(&self) -> &[Blocker] {
        match self {
            StoreError::Blocked(by) | StoreError::TablesLocked(by) => by,
            _ => &[],
        }
    }

    /// The message for clients, without the control role's name and the server's own message.
    fn public_message(&self) -> String {
        match self {
            StoreError::Unreachable(error) => {
                format!("cannot open the control connection: {}", error.public_message())
            }
            StoreError::Lost(error) => format!("the control connection was lost: {}", error.public_message()),
            StoreError::Refused(error) => format!("the database refused: {}", error.public_message()),
            StoreError::Privilege { grant, .. } => {
                format!("the control role lacks a privilege: GRANT {grant} TO the role")
            }
            StoreError::SchemaPrivileges { database, lacking, .. } => {
                let schemas = format!("in the schemas of fencegate in database {database}");
                format!("the control role lacks privileges {schemas} ({lacking})")
            }
            StoreError::CatalogOfSession { schema, error } => error.public_message() + &of_session(schema),
            other => other.to_string(),
        }
    }
}

/// The engine lacks features that the protocol needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} cannot be fenced: it lacks {}", .lacking.join(", "))]
pub struct UnsuitableEngine {
    pub(super) engine: String,
    pub(super) lacking: Vec<&'static str>,
}

impl ClientError for StoreError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Unavailable
    }

    fn log_reason(&self) -> String {
        self.to_string()
    }

    fn text(&self) -> ErrorText {
        ErrorText::new("LF006", self.public_message()).hint(self.remedy().hint())
    }
}

/// The control connection's own error, as the driver reports it.
#[derive(Clone, Debug)]
pub struct ConnectionError(Arc<tokio_postgres::Error>);

impl ConnectionError {
    fn public_message(&self) -> String {
        if let Some(refusal) = self.0.as_db_error() {
            return match refusal.code() {
                code if *code == SqlState::INVALID_PASSWORD => "the server rejected its password".to_owned(),
                code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                    "the server does not permit its role to log in".to_owned()
                }
                code if *code == SqlState::TOO_MANY_CONNECTIONS => "the server has no connection slot left".to_owned(),
                code if *code == SqlState::DISK_FULL => "the server has no space left on a disk".to_owned(),
                code => format!("the server answered with SQLSTATE {}", code.code()),
            };
        }
        match tls::diagnose(&*self.0, ConfiguredIn::Url) {
            // The TLS library's text after the colon may contain names.
            Some(Diagnosis { message, .. }) => message.split(": ").next().unwrap_or_default().to_owned(),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&sql::message(&self.0))
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// Errors with the same text are equal, so that the log does not repeat one. Equality has no other use.
impl PartialEq for ConnectionError {
    fn eq(&self, other: &Self) -> bool {
        self.0.code() == other.0.code() && self.to_string() == other.to_string()
    }
}

impl Eq for ConnectionError {}

impl From<tokio_postgres::Error> for ConnectionError {
    fn from(error: tokio_postgres::Error) -> Self {
        ConnectionError(Arc::new(error))
    }
}

/// FATAL errors that come from outside the statement.
fn ends_process(code: &SqlState) -> bool {
    [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code)
}

/// Errors that mean that the connection's prepared statements are gone, or return other types because a table was changed. The
/// statement had no effect.
fn spoils_statements(code: &SqlState) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED].contains(code)
}

pub(crate) fn is_no_database(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INVALID_CATALOG_NAME)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
