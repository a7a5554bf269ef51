//! The settings for encrypted connections. `tls` reads the files.

use super::sources::Texts;
use super::table::{choice, ssl_mode};
use super::{ConfigError, SettingError};
use fencegate_postgres::{RootCertificateError, ServerTls};
use std::path::PathBuf;

/// Encryption of clients' connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Whether encryption is optional or required.
    pub encryption: Encryption,
    /// The proxy's certificate and its chain, PEM.
    pub certificate: PathBuf,
    /// Key of the certificate, PEM.
    pub key: PathBuf,
    /// Whether clients present certificates.
    pub client_certificates: ClientCertificates,
    /// Minimum TLS version.
    pub min_version: TlsVersion,
}

/// Whether clients' encryption is optional or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Optional.
    Allow,
    /// Required, except over Unix sockets.
    Require,
}

/// Whether clients present certificates. The PEM file has the authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The proxy does not request certificates.
    Off,
    /// Optional, but a presented certificate must be valid.
    Optional(PathBuf),
    /// A valid certificate is required.
    Required(PathBuf),
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2.
    Tls12,
    /// 1.3.
    Tls13,
}

const NO_CERTIFICATE: SettingError =
    SettingError::Needs { settings: "tls_cert and tls_key", role: "the proxy's certificate and its key" };

const NO_AUTHORITY: SettingError =
    SettingError::Needs { settings: "tls_client_ca", role: "the authorities that verify the certificates" };

/// TLS settings for clients.
/// Errors: contradictory settings.
pub(super) fn client(texts: &Texts) -> Result<Option<ClientTls>, ConfigError> {
    let path = |key| texts.one(key).map(|given| PathBuf::from(&given.text));
    let modes = [("off", None), ("allow", Some(Encryption::Allow)), ("require", Some(Encryption::Require))];
    let mode = texts.read_one("tls", |text| choice(text, &modes))?;
    let min_version = texts.require("tls_min_version", |text| {
        choice(text, &[("TLSv1.2", TlsVersion::Tls12), ("TLSv1.3", TlsVersion::Tls13)])
    })?;
    let ca = path("tls_client_ca");
    let client_certificates = texts.require("tls_client_certificates", |text| {
        let ca = || ca.clone().ok_or(NO_AUTHORITY);
        match choice(text, &[("off", 0), ("optional", 1), ("required", 2)])? {
            0 => Ok::<_, SettingError>(ClientCertificates::Off),
            1 => Ok(ClientCertificates::Optional(ca()?)),
            _ => Ok(ClientCertificates::Required(ca()?)),
        }
    })?;
    let needs = |key, settings, role| texts.fault(key, SettingError::Needs { settings, role });
    let asks = client_certificates != ClientCertificates::Off;
    let encryption = match (mode, path("tls_cert"), path("tls_key")) {
        (Some(None), ..) => return Ok(None),
        (_, Some(certificate), Some(key)) => (mode.flatten().unwrap_or(Encryption::Allow), certificate, key),
        (_, Some(_), None) => return Err(needs("tls_cert", "tls_key", "the key of the certificate")),
        (_, None, Some(_)) => return Err(needs("tls_key", "tls_cert", "the certificate of the key")),
        (Some(_), None, None) => return Err(texts.fault("tls", NO_CERTIFICATE)),
        (None, None, None) if asks => return Err(texts.fault("tls_client_certificates", NO_CERTIFICATE)),
        (None, None, None) => return Ok(None),
    };
    let is_default = matches!(texts.one("tls_client_certificates"), Some(given) if given.is_default());
    if ca.is_some() && is_default {
        return Err(texts.fault("tls_client_ca", SettingError::UnusedAuthority));
    }
    let (encryption, certificate, key) = encryption;
    Ok(Some(ClientTls { encryption, certificate, key, client_certificates, min_version }))
}

/// TLS settings for the server.
/// Errors: contradictory settings.
pub(super) fn server(texts: &Texts) -> Result<ServerTls, ConfigError> {
    let path = |key| texts.one(key).map(|given| PathBuf::from(&given.text));
    let mode = texts.require("upstream_sslmode", ssl_mode)?;
    let root_certificate = path("upstream_sslrootcert");
    let needs = |key, settings, role| texts.fault(key, SettingError::Needs { settings, role });
    let identity = match (path("upstream_sslcert"), path("upstream_sslkey")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err(needs("upstream_sslcert", "upstream_sslkey", "its key")),
        (None, Some(_)) => return Err(needs("upstream_sslkey", "upstream_sslcert", "its certificate")),
    };
    let tls = ServerTls { mode, root_certificate, identity };
    match tls.check_root_certificate() {
        Err(error @ RootCertificateError::Missing) => {
            Err(texts.fault("upstream_sslmode", SettingError::NeedsRootCertificate(error)))
        }
        Err(error) => Err(texts.fault("upstream_sslrootcert", error)),
        Ok(()) => Ok(tls),
    }
}
