//! TLS to the server: `sslmode` as in libpq, and the verification of the server's certificate: none, its authority, or
//! its authority and name.

use super::{ConfiguredIn, NoTls, diagnose};
use super::{Contents, PemFile, TlsFileError};
use super::{Secured, provider};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The packet that requests TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// One way to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Without TLS.
    Plain,
    /// With TLS if the server offers it.
    Offered,
    /// With TLS or not at all.
    Encrypted,
}

/// TLS with a server, with the contents of the files as they were read.
#[derive(Debug)]
pub struct Connector {
    settings: ServerTls,
    config: Arc<ClientConfig>,
    contents: Contents,
}

/// A server's answer to a request for TLS.
pub enum Negotiated<S> {
    /// Encrypted from now on.
    Tls(Box<TlsStream<S>>, Secured),
    /// The server has no TLS.
    Plain(S),
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

    /// The settings that name a file whose content has changed.
    pub fn changed_since(&self, before: &Connector) -> Vec<&'static str> {
        self.contents.changed_since(&before.contents)
    }

    /// Returns true if the settings and the content of their files are the same.
    pub(super) fn is_same(&self, other: &Connector) -> bool {
        self.settings == other.settings && self.changed_since(other).is_empty()
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

    /// Requests TLS, and performs the handshake if the server supports it. Not cancel-safe: the connection is lost.
    ///
    /// # Errors
    /// The handshake fails, or the certificate is not accepted; [`super::diagnose`] explains these errors.
    pub async fn negotiate<S>(&self, mut stream: S, host: &str) -> io::Result<Negotiated<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        stream.write_all(&SSL_REQUEST).await?;
        let mut answer = [0; 2];
        match (stream.read(&mut answer).await?, answer[0]) {
            (1, b'S') => {}
            (1, b'N') => return Ok(Negotiated::Plain(stream)),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Further bytes would be mistaken for encrypted data (CVE-2021-23222). An unencrypted error cannot be
            // trusted either.
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
    if diagnose(&error, ConfiguredIn::Settings).is_some() {
        error
    } else {
        io::Error::new(error.kind(), NoTls::BrokenOff)
    }
}

/// Reads the files that the settings name. Blocks on the file system.
fn read(settings: &ServerTls) -> Result<(ClientConfig, Contents), TlsFileError> {
    let mut contents = Contents::default();
    // Like libpq, do not read files that will not be used.
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

/// Encryption of connections to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerTls {
    /// Mode, as in libpq.
    pub mode: SslMode,
    /// Authorities, PEM; `system` for those that the system trusts. If set, every mode verifies the certificate, as in
    /// libpq.
    pub root_certificate: Option<PathBuf>,
    /// The proxy's certificate and its key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// libpq's `sslmode` (PostgreSQL documentation, 34.19.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SslMode {
    /// Never.
    Disable,
    /// Only if the server refuses unencrypted connections.
    Allow,
    /// If the server supports it.
    #[default]
    Prefer,
    /// Always.
    Require,
    /// Always, with a certificate of a trusted authority.
    VerifyCa,
    /// Always, with a certificate of a trusted authority for the server's name.
    VerifyFull,
}

/// Why a root certificate does not fit an sslmode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootCertificateError {
    /// The mode verifies the server's certificate.
    #[error("is required to verify the server's certificate; `system` selects the system's authorities")]
    Missing,
    /// The mode does not verify the server's name.
    #[error("`system` requires verify-full: the system's authorities issue certificates to anyone")]
    SystemWithoutVerifyFull,
}

impl ServerTls {
    /// Checks that the root certificate fits the mode.
    pub fn check_root_certificate(&self) -> Result<(), RootCertificateError> {
        match (&self.root_certificate, self.mode) {
            (None, SslMode::VerifyCa | SslMode::VerifyFull) => Err(RootCertificateError::Missing),
            (Some(path), mode) if is_system(path) && mode != SslMode::VerifyFull => {
                Err(RootCertificateError::SystemWithoutVerifyFull)
            }
            _ => Ok(()),
        }
    }
}

/// True if the authorities are those that the system trusts.
pub fn is_system(root_certificate: &Path) -> bool {
    root_certificate.as_os_str() == "system"
}

/// Verifies certificates as an `sslmode` requires.
#[derive(Debug)]
pub(super) struct Verifier {
    /// None: any certificate is accepted.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// True if the certificate must also match the name.
    name: bool,
}

impl Verifier {
    pub(super) fn new(authorities: Option<RootCertStore>, name: bool) -> Result<Self, VerifierBuilderError> {
        let build = |roots| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        Ok(Verifier { authorities: authorities.map(build).transpose()?, name })
    }

    /// A certificate that is too old or malformed proves nothing. If any certificate is accepted, nothing is lost.
    fn may_be_odd(&self, certificate: &CertificateDer<'_>) -> bool {
        self.authorities.is_none() && ParsedCertificate::try_from(certificate).is_err()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        match authorities.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // rustls verifies the name last, when everything else is valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.may_be_odd(certificate) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.may_be_odd(certificate) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
