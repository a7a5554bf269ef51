//! TLS: with clients, as the server they see; with the server, as a client with libpq's `sslmode`; and for the control
//! connections.
//!
//! Owns certificates, keys and what is checked of the other side's. Must never know sessions, nor print a key.

mod clients;
mod control;
mod diagnosis;
mod files;
mod server;
mod verifier;

pub use clients::{Acceptor, ClientSide};
pub use control::{ControlConfig, Encrypted};
pub use diagnosis::{Diagnosis, NoTls, Told, trouble};
pub use files::TlsFileError;
pub use server::{Attempt, Connector, Negotiated, ServerSide};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// Facts about a TLS connection.
#[derive(Clone, Debug)]
pub struct Secured {
    /// Certificate of the accepting side, to which channel binding binds.
    pub server_certificate: CertificateDer<'static>,
    /// The side that connected has one too, and it has been checked.
    pub has_client_certificate: bool,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
