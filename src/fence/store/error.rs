//! Errors between the control connection and the server.
//!
//! Owns what clients are told of it. Must never pass the server's own message on to clients: it may name the control role, or
//! the server's address.

use super::StoreError;
use super::control::{LIMIT, VERSION};
use crate::fence::fence_error::{Blocker, Cause, Remedy, TABLES_LOCKED, named};
use crate::sql;
use crate::tls::{self, ControlConfig, Diagnosis, Told};
use std::fmt;
use tokio_postgres::error::{DbError, SqlState};

/// Why a control connection did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::fence) enum ControlError {
    #[error("the control connection cannot be opened: {0}")]
    Unreachable(Words),
    #[error("{0}")]
    NoDatabase(String),
    #[error("database {0} has no fencegate schema: run `fencegate init`")]
    Uninitialised(String),
    #[error("the schema fencegate of database {database} is {found:?}, not {VERSION:?}: run `fencegate init`")]
    Version { database: String, found: String },
    #[error("the schema fencegate of database {database} is {found:?}, and this program knows {VERSION:?} only")]
    Newer { database: String, found: String },
    #[error("the control role {role} lacks a privilege: GRANT {grant} TO {role}")]
    Privilege { role: String, grant: String },
    #[error("the database is being dropped")]
    Vacated,
    #[error("the server is in recovery: on a standby nothing fenced can be written")]
    Standby,
    #[error(
        "the control role {role} lacks privileges in the schemas of fencegate in database {database} ({lacking}): run `fencegate init --role {role}` there"
    )]
    Tables { role: String, database: String, lacking: String },
    #[error("the database refused the control role: {0}")]
    Denied(String),
    #[error("the control connection did not answer within {} s", LIMIT.as_secs())]
    TimedOut,
    #[error("a lock that it needs was not given back within {} s", LIMIT.as_secs())]
    Locked,
    #[error("{}", named(TABLES_LOCKED, .0))]
    TablesLocked(Vec<Blocker>),
    #[error("the control connection was lost: {0}")]
    Lost(Words),
    #[error("the database refused: {0}")]
    Refused(Words),
}

impl ControlError {
    /// The database answered, and has not done it.
    pub(in crate::fence) fn is_answer(&self) -> bool {
        matches!(self, ControlError::Refused(_) | ControlError::Denied(_) | ControlError::Locked)
    }
}

impl From<ControlError> for Cause {
    fn from(error: ControlError) -> Self {
        let (remedy, told) = match &error {
            ControlError::Unreachable(Words { public, .. }) => {
                (Remedy::Connect, Some(format!("the control connection cannot be opened: {public}")))
            }
            ControlError::Lost(Words { public, .. }) => {
                (Remedy::TryAgain, Some(format!("the control connection was lost: {public}")))
            }
            ControlError::Refused(Words { public, .. }) => {
                (Remedy::TryAgain, Some(format!("the database refused: {public}")))
            }
            ControlError::Privilege { grant, .. } => {
                (Remedy::Grant, Some(format!("the control role lacks a privilege: GRANT {grant} TO the role")))
            }
            ControlError::Tables { database, lacking, .. } => {
                let schemas = format!("in the schemas of fencegate in database {database}");
                (Remedy::Init, Some(format!("the control role lacks privileges {schemas} ({lacking})")))
            }
            ControlError::Uninitialised(_) | ControlError::Version { .. } | ControlError::Denied(_) => {
                (Remedy::Init, None)
            }
            ControlError::Newer { .. } => (Remedy::Upgrade, None),
            ControlError::TablesLocked(_) => (Remedy::EndThem, None),
            ControlError::NoDatabase(_)
            | ControlError::Vacated
            | ControlError::TimedOut
            | ControlError::Locked
            | ControlError::Standby => (Remedy::TryAgain, None),
        };
        Cause::new(error.to_string(), remedy).told(told)
    }
}

impl From<ControlError> for StoreError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Uninitialised(_) => StoreError::Unprepared(error.into()),
            ControlError::TablesLocked(by) => StoreError::TablesLocked(by),
            error => StoreError::Unavailable(error.into()),
        }
    }
}

/// An error in words: for the log, which [`fmt::Display`] writes, and for clients.
#[derive(Clone, Debug)]
pub(in crate::fence) struct Words {
    log: String,
    pub(in crate::fence) public: String,
}

impl fmt::Display for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.log)
    }
}

impl From<&tokio_postgres::Error> for Words {
    fn from(error: &tokio_postgres::Error) -> Self {
        if let Some(refusal) = error.as_db_error() {
            return refusal.into();
        }
        let log = sql::message(error);
        let public = match tls::trouble(error, Told::Url) {
            // After the colon TLS itself may tell names.
            Some(Diagnosis { message, .. }) => message.split(": ").next().unwrap_or_default().to_owned(),
            None => log.clone(),
        };
        Words { log, public }
    }
}

impl From<&DbError> for Words {
    fn from(refusal: &DbError) -> Self {
        let public = match refusal.code() {
            code if *code == SqlState::INVALID_PASSWORD => "the server does not take its password".to_owned(),
            code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                "the server does not let its role log in".to_owned()
            }
            code if *code == SqlState::TOO_MANY_CONNECTIONS => "the server has no connection left for it".to_owned(),
            code => format!("the server answered with SQLSTATE {}", code.code()),
        };
        Words { log: refusal.message().to_owned(), public }
    }
}

/// FATAL errors that come from outside the statement.
pub(super) fn ends_process(code: &SqlState) -> bool {
    [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code)
}

/// The connection's prepared statements are gone, or return other types since a table was changed. The statement had no effect.
pub(super) fn spoils_statements(code: &SqlState) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED].contains(code)
}

/// The only privilege that a login itself needs is CONNECT.
pub(super) fn not_connected(config: &ControlConfig, error: tokio_postgres::Error) -> ControlError {
    match unreachable(error) {
        ControlError::Denied(_) => {
            let grant = format!("CONNECT ON DATABASE \"{}\"", config.database().replace('"', "\"\""));
            ControlError::Privilege { role: config.role().to_owned(), grant }
        }
        error => error,
    }
}

pub(super) fn unreachable(error: tokio_postgres::Error) -> ControlError {
    match error.as_db_error() {
        Some(refusal) if *refusal.code() == SqlState::INSUFFICIENT_PRIVILEGE => {
            ControlError::Denied(refusal.message().to_owned())
        }
        _ if is_no_database(&error) => ControlError::NoDatabase(sql::message(&error)),
        _ => ControlError::Unreachable((&error).into()),
    }
}

pub(in crate::fence) fn is_no_database(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INVALID_CATALOG_NAME)
}
