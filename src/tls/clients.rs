//! TLS with clients: the proxy's certificate, which can be replaced, and the clients' certificates.

use crate::config::{ClientCertificates, ClientTls, Encryption, TlsVersion};
use fencegate_postgres::tls::{Contents, PemFile, Secured, TlsFileError, provider};
use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The ALPN protocol of clients that start TLS directly, registered for PostgreSQL.
const ALPN: &[u8] = b"postgresql";

/// TLS with clients.
#[derive(Debug)]
pub struct Acceptor {
    settings: ClientTls,
    current: RwLock<Arc<ClientSide>>,
}

/// Contents of the files, for connections that begin while they are in force.
#[derive(Debug)]
pub struct ClientSide {
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
        let current = RwLock::new(Arc::new(ClientSide::read(&settings)?));
        Ok(Acceptor { settings, current })
    }

    /// Reads the files again; the previous contents stay in force. Blocks on the file system.
    ///
    /// # Errors
    /// Same as [`Self::new`].
    pub fn read_anew(&self) -> Result<ClientSide, TlsFileError> {
        ClientSide::read(&self.settings)
    }

    /// Applies the certificates to new connections. Returns the settings whose files have changed.
    pub fn put_in_force(&self, new: ClientSide) -> Vec<&'static str> {
        let mut current = self.current.write();
        let changed = new.contents.changed_since(&current.contents);
        *current = Arc::new(new);
        changed
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
    pub async fn accept(&self, stream: TcpStream, direct: bool) -> io::Result<(TlsStream<TcpStream>, Secured)> {
        let current = self.current.read().clone();
        let stream = TlsAcceptor::from(current.config.clone()).accept(stream).await?;
        let (_, connection) = stream.get_ref();
        if direct && connection.alpn_protocol() != Some(ALPN) {
            return Err(io::Error::other(
                "the client began with TLS at once and did not ask for the protocol postgresql",
            ));
        }
        let secured = Secured {
            server_certificate: current.certificate.clone(),
            has_client_certificate: connection.peer_certificates().is_some(),
        };
        Ok((stream, secured))
    }
}

impl ClientSide {
    fn read(settings: &ClientTls) -> Result<Self, TlsFileError> {
        let mut contents = Contents::default();
        let file = PemFile { setting: "tls_cert", path: &settings.certificate };
        let key_file = PemFile { setting: "tls_key", path: &settings.key };
        let (chain, key) = (file.own_certificates(&mut contents)?, key_file.key(&mut contents)?);
        let certificate = chain.first().cloned().ok_or_else(|| file.fault("has no certificate in it"))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(settings.min_version))
            .map_err(|error| file.fault(error))?;
        let builder = match &settings.client_certificates {
            ClientCertificates::Optional(path) | ClientCertificates::Required(path) => {
                let file = PemFile { setting: "tls_client_ca", path };
                // A client without a certificate receives an error after its startup packet, which is clearer than an
                // alert.
                let authorities = Arc::new(file.authorities(&mut contents)?);
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
        Ok(ClientSide { config: Arc::new(config), certificate, contents })
    }
}

fn versions(minimum: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
    match minimum {
        TlsVersion::Tls12 => &BOTH,
        TlsVersion::Tls13 => &BOTH[1..],
    }
}
