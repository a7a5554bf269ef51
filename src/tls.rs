//! TLS of one proxy: with clients, as their server; with the server; and of its control connections.
//!
//! Owns the proxy's certificate, its key and the verification of clients. Must never use sessions or print a key.

use crate::config::{ClientCertificates, ClientTls, Encryption, Settings, TlsVersion};
use fencegate_postgres::tls::{Connector, Contents, PemFile, Secured, TlsFileError, provider};
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The ALPN protocol of clients that start TLS directly, registered for PostgreSQL.
const ALPN: &[u8] = b"postgresql";

/// TLS with clients, with the contents that the files had when they were read.
#[derive(Debug)]
pub struct Acceptor {
    settings: ClientTls,
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    contents: Contents,
}

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn new(settings: ClientTls) -> Result<Self, TlsFileError> {
        let mut contents = Contents::default();
        let (config, certificate) = read(&settings, &mut contents)?;
        Ok(Acceptor { settings, config: Arc::new(config), certificate, contents })
    }

    /// The settings that name a file whose content differs from the one read before.
    pub fn changed_since(&self, before: &Acceptor) -> Vec<&'static str> {
        self.contents.changed_since(&before.contents)
    }

    /// True if TCP clients must use TLS.
    pub fn is_required(&self) -> bool {
        self.settings.encryption == Encryption::Require
    }

    /// True if clients must present a certificate.
    pub fn requires_certificate(&self) -> bool {
        matches!(self.settings.client_certificates, ClientCertificates::Required(_))
    }

    /// Performs the TLS handshake with a client. `direct`: the client started TLS directly and must name the protocol.
    /// Not cancel-safe: the connection is lost.
    ///
    /// # Errors
    /// The handshake failed. The client has been told the reason if possible.
    pub async fn accept<S>(&self, stream: S, direct: bool) -> io::Result<(TlsStream<S>, Secured)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = TlsAcceptor::from(self.config.clone()).accept(stream).await?;
        let (_, connection) = stream.get_ref();
        if direct && connection.alpn_protocol() != Some(ALPN) {
            return Err(io::Error::other(
                "the client started TLS directly and did not request the protocol postgresql",
            ));
        }
        let secured = Secured {
            server_certificate: self.certificate.clone(),
            has_client_certificate: connection.peer_certificates().is_some(),
        };
        Ok((stream, secured))
    }
}

/// Reads the files that the settings name. Blocks on the file system.
fn read(
    settings: &ClientTls,
    contents: &mut Contents,
) -> Result<(ServerConfig, CertificateDer<'static>), TlsFileError> {
    let file = PemFile { setting: "tls_cert", path: &settings.certificate };
    let key_file = PemFile { setting: "tls_key", path: &settings.key };
    let (chain, key) = (file.own_certificates(contents)?, key_file.key(contents)?);
    let certificate = chain.first().cloned().ok_or_else(|| file.fault("contains no certificate"))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions(settings.min_version))
        .map_err(|error| file.fault(error))?;
    let builder = match &settings.client_certificates {
        ClientCertificates::Optional(path) | ClientCertificates::Required(path) => {
            let file = PemFile { setting: "tls_client_ca", path };
            // A client without a certificate receives an error after its startup packet, which is clearer than an
            // alert.
            let authorities = Arc::new(file.authorities(contents)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider())
                .allow_unauthenticated()
                .build()
                .map_err(|error| file.fault(error))?;
            builder.with_client_cert_verifier(verifier)
        }
        ClientCertificates::Off => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| key_file.mismatch(&error, file))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Like the server, do not resume TLS sessions: a certificate may have become invalid.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok((config, certificate))
}

fn versions(minimum: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
    match minimum {
        TlsVersion::Tls12 => &BOTH,
        TlsVersion::Tls13 => &BOTH[1..],
    }
}

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
