//! TLS with the server, as a client with libpq's `sslmode`: for sessions and for control connections.
//!
//! Owns certificates, keys and the verification of peers. Must never use sessions or print a key.

mod control;
mod diagnosis;
mod files;
mod hosts;
mod server;
mod verifier;

pub use control::{ControlConfig, Encrypted, Primary};
pub use diagnosis::{Diagnosis, NoTls, Told, trouble};
pub use files::{Contents, PemFile, TlsFileError};
pub use server::{Attempt, Connector, Negotiated};

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

/// The cryptography of all connections: ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
