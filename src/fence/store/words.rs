//! What went wrong between the control connection and the server, in words.
//!
//! Owns what of it clients are told, who may be anybody. Must never tell them the server's own words: they may name the
//! control role, and where the server is.

use crate::tls::{self, Told, Trouble};
use std::fmt;
use tokio_postgres::error::{DbError, SqlState};

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
        let log = text(error);
        let public = match tls::trouble(error, Told::Url) {
            // After the colon TLS itself may tell names.
            Some(Trouble { message, .. }) => message.split(": ").next().unwrap_or_default().to_owned(),
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

/// In place of "password missing".
const NO_PASSWORD: &str = "the server asks for a password, and none is given: put it into the URL, \
     into PGPASSWORD, or into the file that PGPASSFILE names (default: ~/.pgpass)";

/// tokio-postgres says only "db error"; the message is in the source.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    if let Some(Trouble { message, hint }) = tls::trouble(error, Told::Url) {
        return format!("{message}. {hint}");
    }
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => refusal.message().to_owned(),
        (None, Some(source)) if source.to_string() == "password missing" => NO_PASSWORD.to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
