//! TLS of one proxy: with clients, with the server, and of its control connections.

use crate::config::Settings;
use crate::tls::{Acceptor, ClientSide};
use fencegate_postgres::tls::{Connector, ControlConfig, ServerSide, TlsFileError};
use std::sync::Arc;

/// Certificates and keys that have been read.
#[derive(Debug)]
pub struct TlsMaterial {
    /// None: no TLS for clients.
    pub clients: Option<Acceptor>,
    /// For sessions' server connections.
    pub server: Arc<Connector>,
    /// For control connections.
    control: Arc<Connector>,
}

/// Certificates and keys that were read but are not in force yet.
#[derive(Debug)]
pub struct NewCertificates {
    clients: Option<ClientSide>,
    server: ServerSide,
    /// None: same as `server`.
    control: Option<ServerSide>,
}

impl TlsMaterial {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, TlsFileError> {
        let server = Arc::new(Connector::new(settings.upstream_tls.clone()).map_err(TlsFileError::of_upstream)?);
        let control = match settings.control_tls == settings.upstream_tls {
            true => server.clone(),
            false => Arc::new(Connector::new(settings.control_tls.clone())?),
        };
        Ok(TlsMaterial { clients: settings.tls.clone().map(Acceptor::new).transpose()?, server, control })
    }

    /// Reads the files again; the previous contents stay in force. Blocks on the file system.
    ///
    /// # Errors
    /// All invalid files.
    pub fn read_anew(&self) -> Result<NewCertificates, Vec<TlsFileError>> {
        let clients = self.clients.as_ref().map(Acceptor::read_anew).transpose();
        let own_control = Some(&self.control).filter(|control| !Arc::ptr_eq(control, &self.server));
        let control = own_control.map(|control| control.read_anew()).transpose();
        match (clients, self.server.read_anew().map_err(TlsFileError::of_upstream), control) {
            (Ok(clients), Ok(server), Ok(control)) => Ok(NewCertificates { clients, server, control }),
            (clients, server, control) => {
                Err([clients.err(), server.err(), control.err()].into_iter().flatten().collect())
            }
        }
    }

    /// Applies the certificates to new connections; existing sessions keep theirs. Returns the settings whose files
    /// have changed.
    pub fn put_in_force(&self, new: NewCertificates) -> Vec<String> {
        let clients = self.clients.as_ref().zip(new.clients).map(|(clients, new)| clients.put_in_force(new));
        let server = self.server.put_in_force(new.server);
        let control = new.control.map(|new| self.control.put_in_force(new));
        // Files that the URL of the control connection names have no setting of their own.
        let sides =
            [("", clients.unwrap_or_default()), ("upstream_", server), ("control ", control.unwrap_or_default())];
        sides.into_iter().flat_map(|(prefix, files)| files.into_iter().map(move |it| format!("{prefix}{it}"))).collect()
    }

    /// How to open the control connection of one database.
    pub fn control_for(&self, settings: &Settings, database: &str) -> ControlConfig {
        ControlConfig::new(settings.control_for(database), self.control.clone())
    }
}
