//! Checks of the server's certificate: none, its authority, or also its name.

use super::provider;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::VerifierBuilderError;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Checks certificates as an `sslmode` means it.
#[derive(Debug)]
pub(super) struct Verifier {
    /// None: any certificate will do.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// The name counts too.
    name: bool,
}

impl Verifier {
    pub(super) fn new(authorities: Option<RootCertStore>, name: bool) -> Result<Self, VerifierBuilderError> {
        let build = |roots| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        Ok(Verifier { authorities: authorities.map(build).transpose()?, name })
    }

    /// A certificate that is too old or too odd to be read proves nothing; where any will do, nothing is lost.
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
            // The name is looked at last, when everything else is right.
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
