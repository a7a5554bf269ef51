//! TLS of one proxy: with clients, with the server, and of its control connections.

use crate::config::Settings;
use crate::tls::Acceptor;
use fencegate_postgres::tls::{Connector, TlsFileError};
use std::sync::Arc;

/// Certificates and keys that have been read.
#[derive(Debug)]
pub struct TlsMaterial {
    /// None: no TLS for clients.
    pub clients: Option<Acceptor>,
    /// For sessions' server connections.
    pub server: Arc<Connector>,
    /// For control connections. The same one if the URL of the control connection has no files or mode of its own.
    pub control: Arc<Connector>,
}

impl TlsMaterial {
    /// Reads the files that the settings name. Blocks on the file system.
    ///
    /// # Errors
    /// All files that cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, Vec<TlsFileError>> {
        let clients = settings.tls.clone().map(Acceptor::new).transpose();
        let server = Connector::new(settings.upstream_tls.clone()).map(Arc::new).map_err(TlsFileError::of_upstream);
        let has_own = settings.control_tls != settings.upstream_tls;
        let own_control = has_own.then(|| Connector::new(settings.control_tls.clone()).map(Arc::new)).transpose();
        match (clients, server, own_control) {
            (Ok(clients), Ok(server), Ok(own_control)) => {
                let control = own_control.unwrap_or_else(|| server.clone());
                Ok(TlsMaterial { clients, server, control })
            }
            (clients, server, own_control) => {
                Err([clients.err(), server.err(), own_control.err()].into_iter().flatten().collect())
            }
        }
    }

    /// The settings whose files have changed.
    pub fn changed_since(&self, before: &TlsMaterial) -> Vec<String> {
        let clients = self.clients.as_ref().zip(before.clients.as_ref());
        let clients = clients.map(|(now, before)| now.changed_since(before)).unwrap_or_default();
        let server = self.server.changed_since(&before.server);
        // Files that the URL of the control connection names have no setting of their own.
        let control = match Arc::ptr_eq(&self.control, &self.server) {
            true => Vec::new(),
            false => self.control.changed_since(&before.control),
        };
        let sides = [("", clients), ("upstream_", server), ("control ", control)];
        sides.into_iter().flat_map(|(prefix, files)| files.into_iter().map(move |it| format!("{prefix}{it}"))).collect()
    }
}
