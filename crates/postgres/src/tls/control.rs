//! Connections by tokio-postgres with the same TLS as those of sessions.

use super::hosts;
use super::{Attempt, Connector, Told};
use crate::password;
use fencegate_leader::Connect;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use tokio_postgres::config::{Host, SslMode as Offer};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The encrypted stream of such a connection.
pub type Encrypted = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Address, user and encryption of a control connection.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    config: Config,
    tls: Arc<Connector>,
}

impl ControlConfig {
    /// Ignores the TLS settings in `config`. Looks up a missing password for each new connection.
    pub fn new(config: Config, tls: Arc<Connector>) -> Self {
        ControlConfig { config, tls }
    }

    /// The database; without a name of its own, that of the role.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_else(|| self.role())
    }

    /// The role that logs in.
    pub fn role(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// This configuration with another database.
    pub fn with_database(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.config.dbname(name);
        other
    }

    /// Connects, by one way after the other. Cancel-safe: a connection that is half open is closed.
    ///
    /// # Errors
    /// Those of the last way that was tried. If the server lets in by neither, those of the encrypted one: of the other one it
    /// says only that it is not encrypted.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, Encrypted>), Error> {
        let on_tcp = |host: &Host| matches!(host, Host::Tcp(_));
        // libpq does not use TLS over Unix sockets either.
        let attempts = match self.config.get_hosts().iter().any(on_tcp) || !self.config.get_hostaddrs().is_empty() {
            true => self.tls.attempts(),
            false => &[Attempt::Plain],
        };
        let config = self.with_password().await;
        let mut result = self.attempt(&config, attempts.first()).await;
        for attempt in attempts.iter().skip(1) {
            match &result {
                Err(error) if may_differ(error) => {}
                _ => break,
            }
            match self.attempt(&config, Some(attempt)).await {
                Err(error) if *attempt == Attempt::Plain && may_differ(&error) => {}
                other => result = other,
            }
        }
        result
    }

    /// With the password that the environment or the password file has now.
    async fn with_password(&self) -> Config {
        let mut config = self.config.clone();
        if config.get_password().is_none_or(<[u8]>::is_empty) {
            let wanted = config.clone();
            // The file may be on a file system that does not answer.
            if let Ok(Some(password)) = spawn_blocking(move || password(&wanted)).await {
                config.password(password);
            }
        }
        config
    }

    async fn attempt(
        &self,
        config: &Config,
        attempt: Option<&Attempt>,
    ) -> Result<(Client, Connection<Socket, Encrypted>), Error> {
        let mut config = config.clone();
        config.ssl_mode(match attempt {
            Some(Attempt::Encrypted) => Offer::Require,
            Some(Attempt::Offered) => Offer::Prefer,
            Some(Attempt::Plain) | None => Offer::Disable,
        });
        let tls = MakeRustlsConnect::new(Arc::unwrap_or_clone(self.tls.current()));
        // Its state takes tens of kilobytes. Each operation that may have to connect would contain and move it.
        Box::pin(hosts::connect(&config, &tls)).await
    }
}

impl Connect for ControlConfig {
    type Stream = Encrypted;

    async fn connect(&self) -> Result<(Client, Connection<Socket, Self::Stream>), Error> {
        self.connect().await
    }
}

/// With more or less encryption the server might report a different error.
fn may_differ(error: &Error) -> bool {
    match error.as_db_error() {
        Some(refusal) => *refusal.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => super::trouble(error, Told::Url).is_some(),
    }
}
