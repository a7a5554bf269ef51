//! TLS to the server: `sslmode` as in libpq, and the verification of the server's certificate.

use super::diagnosis::{NoTls, Told, trouble};
use super::files::{Contents, PemFile, TlsFileError};
use super::verifier::Verifier;
use super::{Secured, provider};
use crate::{ServerTls, SslMode, is_system};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The packet that requests TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// One way to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Without TLS.
    Plain,
    /// With TLS where the server offers it.
    Offered,
    /// With TLS or not at all.
    Encrypted,
}

/// TLS with a server, with the contents that the files had when they were read.
#[derive(Debug)]
pub struct Connector {
    settings: ServerTls,
    config: Arc<ClientConfig>,
    contents: Contents,
}

/// A server's answer to a request for TLS.
pub enum Negotiated {
    /// Encrypted from now on.
    Tls(Box<TlsStream<TcpStream>>, Secured),
    /// The server has no TLS.
    Plain(TcpStream),
}

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// The first one that cannot be used.
    pub fn new(settings: ServerTls) -> Result<Self, TlsFileError> {
        let (config, contents) = read(&settings)?;
        Ok(Connector { settings, config: Arc::new(config), contents })
    }

    /// The settings that name a file whose content differs from the one read before.
    pub fn changed_since(&self, before: &Connector) -> Vec<&'static str> {
        self.contents.changed_since(&before.contents)
    }

    /// Attempts in this order, until the server accepts one.
    pub fn attempts(&self) -> &'static [Attempt] {
        match self.settings.mode {
            SslMode::Disable => &[Attempt::Plain],
            SslMode::Allow => &[Attempt::Plain, Attempt::Encrypted],
            SslMode::Prefer => &[Attempt::Offered, Attempt::Plain],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[Attempt::Encrypted],
        }
    }

    /// The configuration for tokio-postgres.
    pub(super) fn config(&self) -> ClientConfig {
        ClientConfig::clone(&self.config)
    }

    /// Asks a server for TLS, and shakes hands if it has it. Not cancel-safe: the connection is lost.
    ///
    /// # Errors
    /// When the two do not agree, or the certificate does not pass; [`super::trouble`] explains them.
    pub async fn negotiate(&self, mut stream: TcpStream, host: &str) -> io::Result<Negotiated> {
        stream.write_all(&SSL_REQUEST).await?;
        let mut answer = [0; 2];
        match (stream.read(&mut answer).await?, answer[0]) {
            (1, b'S') => {}
            (1, b'N') => return Ok(Negotiated::Plain(stream)),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // It would be taken for encrypted (CVE-2021-23222). Nor can an error that is not encrypted be believed.
            _ => return Err(io::Error::other(NoTls::BadAnswer)),
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| io::Error::other(NoTls::BadName))?;
        let stream = TlsConnector::from(self.config.clone()).connect(name, stream).await.map_err(explained)?;
        let (_, connection) = stream.get_ref();
        let certificate = connection.peer_certificates().and_then(|chain| chain.first());
        let secured = Secured {
            server_certificate: certificate.cloned().unwrap_or_else(|| Vec::new().into()),
            has_client_certificate: self.settings.identity.is_some(),
        };
        Ok(Negotiated::Tls(Box::new(stream), secured))
    }
}

/// The reason for a failed handshake, if TLS does not report it.
fn explained(error: io::Error) -> io::Error {
    if trouble(&error, Told::Settings).is_some() { error } else { io::Error::new(error.kind(), NoTls::BrokenOff) }
}

/// Reads the files that the settings name. Blocks on the file system.
fn read(settings: &ServerTls) -> Result<(ClientConfig, Contents), TlsFileError> {
    let mut contents = Contents::default();
    // Like libpq, which does not look at files that it will not use.
    let is_used = settings.mode != SslMode::Disable;
    let root_certificate = settings.root_certificate.as_deref().filter(|_| is_used);
    let file = PemFile { setting: "sslrootcert", path: root_certificate.unwrap_or(Path::new("")) };
    let authorities = match root_certificate {
        None => None,
        Some(path) if is_system(path) => Some(system_authorities(file)?),
        Some(_) => Some(file.authorities(&mut contents)?),
    };
    let verifier =
        Verifier::new(authorities, settings.mode == SslMode::VerifyFull).map_err(|error| file.fault(error))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| file.fault(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &settings.identity {
        Some((certificate, key)) if is_used => {
            let certificate = PemFile { setting: "sslcert", path: certificate };
            let key = PemFile { setting: "sslkey", path: key };
            builder
                .with_client_auth_cert(certificate.own_certificates(&mut contents)?, key.key(&mut contents)?)
                .map_err(|error| key.mismatch(&error, certificate))?
        }
        _ => builder.with_no_client_auth(),
    };
    // Without resumption, every connection verifies the certificate again.
    config.resumption = Resumption::disabled();
    Ok((config, contents))
}

fn system_authorities(file: PemFile<'_>) -> Result<RootCertStore, TlsFileError> {
    let mut authorities = RootCertStore::empty();
    let (added, _) = authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 { Err(file.fault("the system has no authorities")) } else { Ok(authorities) }
}
