//! Connections by tokio-postgres with the same TLS as those of sessions.

use super::hosts;
use super::{Attempt, ConfiguredIn, Connector};
use crate::password;
use fencegate_leader::Connect;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_postgres::config::{Host, SslMode as Offer};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The encrypted stream of such a connection.
pub type Encrypted = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Reports which server is the primary.
pub trait Primary: fmt::Debug + Send + Sync {
    /// The index of the primary in the list of hosts; None if it is unknown or not in the list.
    fn place(&self, config: &Config) -> Option<usize>;

    /// Returns true if this server is known not to be the primary.
    fn is_superseded(&self, system_identifier: &str, postmaster_start: &str) -> bool;
}

/// Address, user and encryption of the control connections to one database.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    access: Arc<watch::Sender<Access>>,
    database: String,
    primary: Option<Arc<dyn Primary>>,
}

/// How to reach the server, for all databases.
#[derive(Clone, Debug)]
struct Access {
    config: Config,
    tls: Arc<Connector>,
    /// Raised when open connections become outdated.
    version: u64,
}

impl ControlConfig {
    /// Ignores the TLS settings in `config`. Looks up a missing password for each new connection.
    pub fn new(config: Config, tls: Arc<Connector>) -> Self {
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default().to_owned();
        ControlConfig {
            access: Arc::new(watch::Sender::new(Access { config, tls, version: 0 })),
            database,
            primary: None,
        }
    }

    /// This configuration, for connections to the primary.
    pub fn with_primary(self, primary: Arc<dyn Primary>) -> Self {
        ControlConfig { primary: Some(primary), ..self }
    }

    /// This configuration with another host, regardless of the host's role. `limit` applies to each address. Does not
    /// follow [`Self::replace`].
    pub fn with_host(&self, host: &Host, port: u16, limit: Duration) -> Self {
        let Access { config, tls, .. } = self.access.borrow().clone();
        let mut config = hosts::to_host(&config, host, port);
        config.dbname(&self.database).connect_timeout(limit);
        ControlConfig::new(config, tls)
    }

    /// Returns true if a connection has led to a server that is known not to be the primary.
    pub fn is_superseded(&self, system_identifier: &str, postmaster_start: &str) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.is_superseded(system_identifier, postmaster_start))
    }

    /// The database; if none is set, the one with the role's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The role that logs in.
    pub fn role(&self) -> String {
        self.access.borrow().config.get_user().unwrap_or_default().to_owned()
    }

    /// This configuration with another database. Both follow [`Self::replace`].
    pub fn with_database(&self, name: &str) -> Self {
        ControlConfig { database: name.to_owned(), ..self.clone() }
    }

    /// Replaces address, user and encryption for all databases, from the next connection on. If they differ, open connections
    /// become outdated.
    pub fn replace(&self, config: Config, tls: Arc<Connector>) {
        self.access.send_modify(|access| {
            let differs = access.config != config || !access.tls.is_same(&tls);
            let version = access.version + u64::from(differs);
            *access = Access { config, tls, version };
        });
    }

    /// Makes all open connections outdated, because another server is the primary.
    pub fn outdate(&self) {
        self.access.send_modify(|access| access.version += 1);
    }

    /// A connection that was opened at an earlier version is outdated.
    pub fn version(&self) -> u64 {
        self.access.borrow().version
    }

    /// Waits until connections of that version are outdated. Cancel-safe.
    pub async fn outdated(&self, version: u64) {
        // This owns the sender, so the channel stays open.
        self.access.subscribe().wait_for(|access| access.version != version).await.ok();
    }

    /// Connects as [`Self::connect`] does. The connection ends when the client is dropped. Cancel-safe.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn client(&self) -> Result<Client, Error> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Tries one kind of connection after the other. Cancel-safe: a half-open connection is closed.
    ///
    /// # Errors
    /// The error of the last attempt. If the server refuses both, the error of the encrypted one: that of the other
    /// says only that the connection is not encrypted.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, Encrypted>), Error> {
        let Access { config, tls, .. } = self.access.borrow().clone();
        let place = self.primary.as_ref().and_then(|primary| primary.place(&config));
        let mut config = place.and_then(|place| hosts::only(&config, place)).unwrap_or(config);
        config.dbname(&self.database);
        let on_tcp = |host: &Host| matches!(host, Host::Tcp(_));
        // libpq does not use TLS over Unix sockets either.
        let attempts = match config.get_hosts().iter().any(on_tcp) || !config.get_hostaddrs().is_empty() {
            true => tls.attempts(),
            false => &[Attempt::Plain],
        };
        add_password(&mut config).await;
        let mut result = attempt(&config, &tls, attempts.first()).await;
        for way in attempts.iter().skip(1) {
            match &result {
                Err(error) if may_differ(error) => {}
                _ => break,
            }
            match attempt(&config, &tls, Some(way)).await {
                Err(error) if *way == Attempt::Plain && may_differ(&error) => {}
                other => result = other,
            }
        }
        result
    }
}

/// Adds the current password of the environment or the password file, unless the configuration has one.
async fn add_password(config: &mut Config) {
    if config.get_password().is_none_or(<[u8]>::is_empty) {
        let wanted = config.clone();
        // The file may be on an unresponsive file system.
        if let Ok(Some(password)) = spawn_blocking(move || password(&wanted)).await {
            config.password(password);
        }
    }
}

async fn attempt(
    config: &Config,
    tls: &Connector,
    way: Option<&Attempt>,
) -> Result<(Client, Connection<Socket, Encrypted>), Error> {
    let mut config = config.clone();
    config.ssl_mode(match way {
        Some(Attempt::Encrypted) => Offer::Require,
        Some(Attempt::Offered) => Offer::Prefer,
        Some(Attempt::Plain) | None => Offer::Disable,
    });
    let tls = MakeRustlsConnect::new(tls.config());
    // Its state takes tens of kilobytes. Each operation that may have to connect would contain and move it.
    Box::pin(hosts::connect(&config, &tls)).await
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
        None => super::diagnose(error, ConfiguredIn::Url).is_some(),
    }
}
