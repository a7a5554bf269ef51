//! Encryption of connections to the server, with libpq's names.

use std::path::{Path, PathBuf};

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
