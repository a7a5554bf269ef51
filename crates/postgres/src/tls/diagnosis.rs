//! Errors between the proxy and the server, in words for people, and the remedy.

use rustls::CertificateError as Bad;
use rustls::Error as Tls;
use std::error::Error;
use std::io;

/// Why there is no encrypted connection, except for errors of TLS itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTls {
    /// The server answered N.
    #[error("the server does not support TLS, which sslmode requires")]
    NotOffered,
    /// The server answered something else, or more.
    #[error("the server sent an invalid response to the TLS request")]
    BadAnswer,
    /// The server closed the connection.
    #[error("the server closed the connection during the TLS handshake")]
    BrokenOff,
    /// No certificate could have that name.
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

/// Where the encryption is configured, for hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// In the proxy's settings for connections to the server.
    Settings,
    /// In the connection's URL; for the proxy's own connections it counts before the settings.
    Url,
}

/// Explains an error of a server connection if TLS caused it.
pub fn trouble(error: &(dyn Error + 'static), told: Told) -> Option<Diagnosis> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(why) = error.downcast_ref::<NoTls>() {
            return Some(Diagnosis { message: why.to_string(), hint: no_tls_hint(*why, told) });
        }
        if let Some(why) = error.downcast_ref::<Tls>() {
            return Some(of_tls(why, told));
        }
        // An io::Error's source() skips the contained error.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        };
    }
    None
}

fn no_tls_hint(why: NoTls, told: Told) -> &'static str {
    match why {
        NoTls::NotOffered => match told {
            Told::Settings => "Set ssl = on in the server, or choose another upstream_sslmode.",
            Told::Url => "Set ssl = on in the server, or choose another sslmode in the connection's URL.",
        },
        NoTls::BadAnswer => "Check that it is a PostgreSQL server, without a proxy in between.",
        NoTls::BrokenOff => "The server's log has the reason.",
        NoTls::BadName => "Connect to the server by a name, or by an IP address without a zone.",
    }
}

fn of_tls(error: &Tls, told: Told) -> Diagnosis {
    let (message, hint) = match error {
        Tls::InvalidCertificate(Bad::UnknownIssuer) => (
            "the server's certificate is not signed by a known authority".to_owned(),
            match told {
                Told::Settings => "Set upstream_sslrootcert to the file of its authority.",
                Told::Url => "Set the file of its authority in the connection's URL: sslrootcert=FILE.",
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
            match told {
                Told::Settings => {
                    "Connect to the server by a name in the certificate's subjectAltName, or set upstream_sslmode to verify-ca."
                }
                Told::Url => {
                    "Connect to the server by a name in the certificate's subjectAltName, or with sslmode=verify-ca in the connection's URL."
                }
            },
        ),
        Tls::InvalidCertificate(why) => (
            format!("the server's certificate is not acceptable: {why}"),
            "It must be an X.509 version 3 certificate that is not an authority's own (basicConstraints CA:FALSE).",
        ),
        Tls::AlertReceived(alert) => (
            match told {
                Told::Settings => format!("the server refused TLS with the proxy: {alert:?}"),
                Told::Url => format!("the server refused TLS: {alert:?}"),
            },
            match told {
                Told::Settings => {
                    "Check that the server knows the authority of upstream_sslcert and supports TLS 1.2 or later. The server's log has the details."
                }
                Told::Url => {
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
            let hint = |told| trouble(&error, told).unwrap().hint;
            assert!(hint(Told::Settings).contains("upstream_ssl"), "{error}");
            assert!(hint(Told::Url).contains("URL") && !hint(Told::Url).contains("upstream_"), "{error}");
        }
    }
}
