//! The TLS of one proxy: with clients, with the server, and of its control connections.

use crate::config::Settings;
use crate::tls::{Acceptor, Connector, ControlConfig, TlsFileError};
use std::sync::Arc;

/// Certificates and keys, read.
#[derive(Debug)]
pub struct Encryption {
    /// None: clients do not get any.
    pub clients: Option<Acceptor>,
    /// For sessions.
    pub server: Arc<Connector>,
    /// For the proxy's own connections.
    control: Arc<Connector>,
}

impl Encryption {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// The first one that cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, TlsFileError> {
        let server = Arc::new(Connector::new(settings.upstream_tls.clone()).map_err(TlsFileError::of_upstream)?);
        let control = match settings.control_tls == settings.upstream_tls {
            true => server.clone(),
            false => Arc::new(Connector::new(settings.control_tls.clone())?),
        };
        Ok(Encryption { clients: settings.tls.clone().map(Acceptor::new).transpose()?, server, control })
    }

    /// Reads the files anew, for connections that begin from now on: sessions go on as they are. Returns what cannot be
    /// used, which is logged; what was read before stays in its place. Blocks on the file system.
    pub fn reload(&self) -> Vec<TlsFileError> {
        let clients = self.clients.as_ref().map_or(Ok(()), Acceptor::reload);
        let server = self.server.reload().map_err(TlsFileError::of_upstream);
        let control = if Arc::ptr_eq(&self.server, &self.control) { Ok(()) } else { self.control.reload() };
        let errors: Vec<_> = [clients, server, control].into_iter().filter_map(Result::err).collect();
        for error in &errors {
            tracing::error!(%error, "certificate_not_loaded: the one in force stays");
        }
        errors
    }

    /// How to open the control connection of one database.
    pub fn control_for(&self, settings: &Settings, database: &str) -> ControlConfig {
        ControlConfig::new(settings.control_for(database), self.control.clone())
    }
}
