//! TLS with the server, as a client with libpq's `sslmode`: for sessions and for control connections; and its errors as
//! human-readable messages with a remedy.
//!
//! Owns certificates and keys in PEM files, changes of their contents, and the verification of peers. Must never use
//! sessions or print the content of a key.

mod control;
pub(crate) mod hosts;
pub(crate) mod server;

pub use control::{ControlConfig, Encrypted, Primary};
pub use server::{Attempt, Connector, Negotiated};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::{CertificateError as Bad, Error as Tls, InconsistentKeys, RootCertStore};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::fs::File;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::time::Validity;

/// Facts about a TLS connection.
#[derive(Clone, Debug)]
pub struct Secured {
    /// Certificate of the accepting side, which channel binding uses.
    pub server_certificate: CertificateDer<'static>,
    /// True if the connecting side has presented a certificate, and it was verified.
    pub has_client_certificate: bool,
}

/// The cryptography of all connections: ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Maximum number of bytes read from a file. A system's list of authorities has about 200 KiB.
const LARGEST: u64 = 16 * 1024 * 1024;

/// A one-line error about a file, which names the file.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {}: {why}", file.display())]
pub struct TlsFileError {
    setting: String,
    file: PathBuf,
    why: String,
}

/// The files that were read, and the digest of each.
#[derive(Debug, Default)]
pub struct Contents(Vec<(&'static str, PathBuf, Vec<u8>)>);

impl Contents {
    /// The settings that name a file whose content has changed.
    pub fn changed_since(&self, before: &Contents) -> Vec<&'static str> {
        let changed = self.0.iter().filter(|file| !before.0.contains(file));
        changed.map(|(setting, ..)| *setting).collect()
    }
}

impl TlsFileError {
    /// The setting is one of the proxy's settings for the server: `upstream_` and the name of a connection parameter.
    pub fn of_upstream(self) -> Self {
        TlsFileError { setting: format!("upstream_{}", self.setting), ..self }
    }
}

/// A file and the setting that names it.
#[derive(Clone, Copy)]
pub struct PemFile<'a> {
    /// The setting's name in errors.
    pub setting: &'static str,
    /// The file.
    pub path: &'a Path,
}

impl PemFile<'_> {
    /// An error about this file.
    pub fn fault(self, why: impl ToString) -> TlsFileError {
        TlsFileError { setting: self.setting.to_owned(), file: self.path.to_owned(), why: why.to_string() }
    }

    /// All certificates in the file, at least one.
    pub fn certificates(self, contents: &mut Contents) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
        let bytes = self.read(contents)?;
        let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(certificates) if certificates.is_empty() => Err(self.fault("contains no certificate (PEM)")),
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(self.fault(format!("is not a PEM file of certificates: {error}"))),
        }
    }

    /// The proxy's own certificate, with the intermediate ones. Warns if clients will reject it because of its dates.
    pub fn own_certificates(self, contents: &mut Contents) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
        let certificates = self.certificates(contents)?;
        let own = certificates.first().and_then(|own| Certificate::from_der(own).ok());
        if let Some(Validity { not_before, not_after }) = own.map(|own| own.tbs_certificate.validity) {
            let now = SystemTime::now();
            if now < not_before.to_system_time() || not_after.to_system_time() < now {
                tracing::warn!(file = %self.path.display(), %not_before, %not_after, "certificate_not_valid");
            }
        }
        Ok(certificates)
    }

    /// The first private key in the file.
    pub fn key(self, contents: &mut Contents) -> Result<PrivateKeyDer<'static>, TlsFileError> {
        PrivateKeyDer::from_pem_slice(&self.read(contents)?).map_err(|error| match error {
            pem::Error::NoItemsFound => self.fault("contains no readable private key (PEM, not encrypted)"),
            error => self.fault(format!("is not a PEM file of a private key: {error}")),
        })
    }

    /// The certificates of the file, as trusted authorities.
    pub fn authorities(self, contents: &mut Contents) -> Result<RootCertStore, TlsFileError> {
        let mut authorities = RootCertStore::empty();
        for certificate in self.certificates(contents)? {
            authorities
                .add(certificate)
                .map_err(|error| self.fault(format!("contains an invalid certificate: {error}")))?;
        }
        Ok(authorities)
    }

    /// Why a certificate and this key cannot be used together.
    pub fn mismatch(self, error: &rustls::Error, certificate: PemFile<'_>) -> TlsFileError {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                self.fault(format!("is not the key of the certificate in {}", certificate.path.display()))
            }
            rustls::Error::InvalidCertificate(_) => {
                certificate.fault("contains a certificate that cannot be used: X.509 version 3 is required")
            }
            error => {
                self.fault(format!("cannot be used with the certificate in {}: {error}", certificate.path.display()))
            }
        }
    }

    fn read(self, contents: &mut Contents) -> Result<Vec<u8>, TlsFileError> {
        let unreadable = |error: io::Error| self.fault(format!("cannot read the file: {error}"));
        let mut bytes = Vec::new();
        File::open(self.path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
        if bytes.len() as u64 > LARGEST {
            return Err(self.fault("is larger than 16 MiB"));
        }
        contents.0.push((self.setting, self.path.to_owned(), Sha256::digest(&bytes).to_vec()));
        Ok(bytes)
    }
}

/// Why there is no encrypted connection, except for errors of TLS itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTls {
    /// The server answered N.
    #[error("the server does not support TLS, which sslmode requires")]
    NotOffered,
    /// The server's answer was invalid or too long.
    #[error("the server sent an invalid response to the TLS request")]
    BadAnswer,
    /// The server closed the connection.
    #[error("the server closed the connection during the TLS handshake")]
    BrokenOff,
    /// A certificate cannot contain that name.
    #[error("the host is neither a name nor an address that a certificate can contain")]
    BadName,
}

/// An error and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The error.
    pub message: String,
    /// The remedy.
    pub hint: &'static str,
}

/// Place of the TLS settings, for hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfiguredIn {
    /// In the proxy's settings for connections to the server.
    Settings,
    /// In the connection's URL, which overrides the settings for the proxy's own connections.
    Url,
}

/// Explains an error of a server connection if TLS caused it.
pub fn diagnose(error: &(dyn Error + 'static), configured_in: ConfiguredIn) -> Option<Diagnosis> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(why) = error.downcast_ref::<NoTls>() {
            return Some(Diagnosis { message: why.to_string(), hint: no_tls_hint(*why, configured_in) });
        }
        if let Some(why) = error.downcast_ref::<Tls>() {
            return Some(diagnose_tls(why, configured_in));
        }
        // An io::Error's source() skips the contained error.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        };
    }
    None
}

fn no_tls_hint(why: NoTls, configured_in: ConfiguredIn) -> &'static str {
    match why {
        NoTls::NotOffered => match configured_in {
            ConfiguredIn::Settings => "Set ssl = on in the server, or choose another upstream_sslmode.",
            ConfiguredIn::Url => "Set ssl = on in the server, or choose another sslmode in the connection's URL.",
        },
        NoTls::BadAnswer => "Check that it is a PostgreSQL server, without a proxy in between.",
        NoTls::BrokenOff => "The server's log has the reason.",
        NoTls::BadName => "Connect to the server by a name, or by an IP address without a zone.",
    }
}

fn diagnose_tls(error: &Tls, configured_in: ConfiguredIn) -> Diagnosis {
    let (message, hint) = match error {
        Tls::InvalidCertificate(Bad::UnknownIssuer) => (
            "the server's certificate is not signed by a known authority".to_owned(),
            match configured_in {
                ConfiguredIn::Settings => "Set upstream_sslrootcert to the file of its authority.",
                ConfiguredIn::Url => "Set the file of its authority in the connection's URL: sslrootcert=FILE.",
            },
        ),
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            ("the server's certificate has expired".to_owned(), "Renew it on the server. Check both clocks.")
        }
        Tls::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            ("the server's certificate is not valid yet".to_owned(), "Check both clocks.")
        }
        Tls::InvalidCertificate(why @ (Bad::NotValidForName | Bad::NotValidForNameContext { .. })) => (
            format!("the server's certificate is for another name: {why}"),
            match configured_in {
                ConfiguredIn::Settings => {
                    "Connect to the server by a name in the certificate's subjectAltName, or set upstream_sslmode to verify-ca."
                }
                ConfiguredIn::Url => {
                    "Connect to the server by a name in the certificate's subjectAltName, or with sslmode=verify-ca in the connection's URL."
                }
            },
        ),
        Tls::InvalidCertificate(why) => (
            format!("the server's certificate is not acceptable: {why}"),
            "It must be an X.509 version 3 certificate that is not an authority's own (basicConstraints CA:FALSE).",
        ),
        Tls::AlertReceived(alert) => (
            match configured_in {
                ConfiguredIn::Settings => format!("the server refused TLS with the proxy: {alert:?}"),
                ConfiguredIn::Url => format!("the server refused TLS: {alert:?}"),
            },
            match configured_in {
                ConfiguredIn::Settings => {
                    "Check that the server knows the authority of upstream_sslcert and supports TLS 1.2 or later. The server's log has the details."
                }
                ConfiguredIn::Url => {
                    "Check whether the server requires a certificate of an authority that it knows (sslcert=FILE and sslkey=FILE in the connection's URL), and whether it supports TLS 1.2 or later. The server's log has the details."
                }
            },
        ),
        other => (format!("TLS with the server failed: {other}"), "Check that the server supports TLS 1.2 or later."),
    };
    Diagnosis { message, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::AlertDescription;

    #[test]
    fn hints_name_the_place_of_the_settings() {
        let for_another = Bad::NotValidForName;
        let errors = [Bad::UnknownIssuer, for_another].map(Tls::InvalidCertificate);
        let refused = Tls::AlertReceived(AlertDescription::CertificateRequired);
        let mut errors: Vec<io::Error> = errors.into_iter().chain([refused]).map(io::Error::other).collect();
        errors.push(io::Error::other(NoTls::NotOffered));
        for error in errors {
            let hint = |configured_in| diagnose(&error, configured_in).unwrap().hint;
            assert!(hint(ConfiguredIn::Settings).contains("upstream_ssl"), "{error}");
            assert!(
                hint(ConfiguredIn::Url).contains("URL") && !hint(ConfiguredIn::Url).contains("upstream_"),
                "{error}"
            );
        }
    }
}
