//! Connection strings: address, role, and libpq's TLS parameters, which tokio-postgres does not support.
//!
//! Must never print a password.

use super::table::{ChoiceError, choice, ssl_mode};
use fencegate_policy::percent_decoded;
use fencegate_postgres::{RootCertificateError, ServerTls, SslMode, is_system};
use std::path::PathBuf;
use tokio_postgres::Config;
use tokio_postgres::config::TargetSessionAttrs;

/// Why a connection string cannot be used. Messages must not repeat text that may belong to a password: no value except
/// an invalid sslmode, and not the parser's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConnectionStringError {
    #[error("is not a connection string: write postgres://user:password@host/ or key=value pairs")]
    Unreadable,
    #[error("has no user: write postgres://user:password@host/")]
    NoUser,
    #[error("has no host: write postgres://user:password@host/")]
    NoHost,
    #[error("has the unknown parameter `{0}`: remove it")]
    UnknownParameter(String),
    #[error("has an invalid sslmode: {0}")]
    SslMode(#[source] ChoiceError),
    #[error("has an invalid target_session_attrs: {0}")]
    Target(#[source] ChoiceError),
    #[error("has sslcert without sslkey")]
    NoKey,
    #[error("has sslkey without sslcert")]
    NoCertificate,
    #[error("is incomplete: sslrootcert {0}")]
    RootCertificate(#[source] RootCertificateError),
}

/// TLS parameters of a connection string.
#[derive(Debug, Default, PartialEq, Eq)]
struct TlsParameters {
    mode: Option<SslMode>,
    root_certificate: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Parses a connection string.
///
/// # Errors
/// The connection string cannot be used.
pub fn connection(text: &str) -> Result<(Config, ServerTls), ConnectionStringError> {
    read(text, &ServerTls::default())
}

/// Parses a connection string. `default` supplies the TLS parameters that the string omits.
pub(super) fn read(text: &str, default: &ServerTls) -> Result<(Config, ServerTls), ConnectionStringError> {
    let (mut tls, mut needs_primary) = (TlsParameters::default(), false);
    let rest = without(text, &mut |key, value| match key {
        "target_session_attrs" => {
            needs_primary = self::needs_primary(value).map_err(ConnectionStringError::Target)?;
            Ok(true)
        }
        _ => tls.take(key, value),
    })?;
    let mut config: Config = rest.parse().map_err(|_| ConnectionStringError::Unreadable)?;
    if config.get_user().is_none_or(str::is_empty) {
        return Err(ConnectionStringError::NoUser);
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(ConnectionStringError::NoHost);
    }
    if config.get_hosts().is_empty() {
        // The address also replaces the host name in the certificate check.
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    if needs_primary {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    Ok((config, tls.or(default)?))
}

/// Reads `target_session_attrs`, which may be `primary` here but not in tokio-postgres. True if the host must accept writes.
fn needs_primary(text: &str) -> Result<bool, ChoiceError> {
    choice(text, &[("any", false), ("read-write", true), ("primary", true)])
}

impl TlsParameters {
    /// Consumes a parameter if it concerns TLS.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, ConnectionStringError> {
        match key {
            "sslmode" => self.mode = Some(ssl_mode(value).map_err(ConnectionStringError::SslMode)?),
            "sslrootcert" => self.root_certificate = Some(value.into()),
            "sslcert" => self.certificate = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn or(self, default: &ServerTls) -> Result<ServerTls, ConnectionStringError> {
        let of_system = self.root_certificate.as_deref().is_some_and(is_system);
        let identity = match (self.certificate, self.key) {
            (None, None) => default.identity.clone(),
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return Err(ConnectionStringError::NoKey),
            (None, Some(_)) => return Err(ConnectionStringError::NoCertificate),
        };
        let mode = self.mode.unwrap_or(if of_system { SslMode::VerifyFull } else { default.mode });
        let root_certificate = self.root_certificate.or_else(|| default.root_certificate.clone());
        let tls = ServerTls { mode, root_certificate, identity };
        tls.check_root_certificate().map_err(ConnectionStringError::RootCertificate)?;
        Ok(tls)
    }
}

/// The parameters of tokio-postgres.
const PARAMETERS: &str = "user password dbname options application_name sslnegotiation host hostaddr port \
    connect_timeout tcp_user_timeout keepalives keepalives_idle keepalives_interval keepalives_retries \
    channel_binding load_balance_hosts";

type TakeParameter<'a> = &'a mut dyn FnMut(&str, &str) -> Result<bool, ConnectionStringError>;

/// Removes the parameters that `take` accepts.
fn without(text: &str, take: TakeParameter<'_>) -> Result<String, ConnectionStringError> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        url_without(text, take)
    } else {
        pairs_without(text, take)
    }
}

fn url_without(text: &str, take: TakeParameter<'_>) -> Result<String, ConnectionStringError> {
    // A password ends at the first @, and may contain a question mark.
    let after_password = text.find('@').unwrap_or(0);
    let Some(question) = text[after_password..].find('?').map(|at| after_password + at) else {
        return Ok(text.to_owned());
    };
    let mut left = Vec::new();
    for parameter in text[question + 1..].split('&') {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let decoded = |text| percent_decoded(text).ok_or(ConnectionStringError::Unreadable);
        let key = decoded(key)?;
        if take(&key, &decoded(value)?)? {
            continue;
        }
        // Check keys only in URLs: in pairs, a text that looks like a key may belong to the password.
        if !PARAMETERS.split_whitespace().any(|known| known == key) {
            return Err(ConnectionStringError::UnknownParameter(key));
        }
        left.push(parameter);
    }
    let separator = if left.is_empty() { "" } else { "?" };
    Ok(format!("{}{separator}{}", &text[..question], left.join("&")))
}

/// Reads pairs as libpq does: `key = value`. Single quotes may enclose the value, and a backslash escapes a character.
fn pairs_without(text: &str, take: TakeParameter<'_>) -> Result<String, ConnectionStringError> {
    let mut left = String::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or(ConnectionStringError::Unreadable)?;
        let (value, length) = pair_value(after.trim_start()).ok_or(ConnectionStringError::Unreadable)?;
        let after = &after.trim_start()[length..];
        if !take(key.trim_end(), &value)? {
            left.extend([&rest[..rest.len() - after.len()], " "]);
        }
        rest = after.trim_start();
    }
    Ok(left)
}

/// The value at the start of the text, and its length in bytes. None if a quote or an escape is not closed.
fn pair_value(text: &str) -> Option<(String, usize)> {
    let quoted = text.starts_with('\'');
    let mut characters = text.char_indices().skip(usize::from(quoted));
    let mut value = String::new();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.push(characters.next()?.1),
            '\'' if quoted => return Some((value, at + 1)),
            character if !quoted && character.is_whitespace() => return Some((value, at)),
            character => value.push(character),
        }
    }
    (!quoted).then_some((value, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::Host;

    fn tls(text: &str) -> Result<ServerTls, ConnectionStringError> {
        read(text, &ServerTls::default()).map(|(_, tls)| tls)
    }

    #[test]
    fn tls_parameters_are_removed_from_the_connection_string() {
        for text in [
            "postgres://u:p?x@db:1/app?sslmode=verify-full&application_name=a%20b&sslrootcert=%2Fa%20b.pem",
            "user=u password='p?x' host = db port=1 dbname=app sslmode=verify-full application_name='a b' \
             sslrootcert = '/a b.pem'",
            "user=u password=p?x host=db port=1 dbname=app application_name=a\\ b sslrootcert=/a\\ b.pem sslmode=verify-full",
        ] {
            let (config, tls) = read(text, &ServerTls::default()).unwrap();
            assert_eq!((config.get_user(), config.get_password()), (Some("u"), Some(&b"p?x"[..])), "{text}");
            assert_eq!((config.get_dbname(), config.get_application_name()), (Some("app"), Some("a b")), "{text}");
            assert_eq!(tls.mode, SslMode::VerifyFull);
            assert_eq!(tls.root_certificate, Some("/a b.pem".into()), "{text}");
        }
    }

    #[test]
    fn omitted_settings_have_their_defaults() {
        let default = ServerTls {
            mode: SslMode::VerifyCa,
            root_certificate: Some("root".into()),
            identity: Some(("c".into(), "k".into())),
        };
        assert_eq!(read("postgres://u@db", &default).unwrap().1, default);
        let (_, own) = read("postgres://u@db?sslmode=require&sslcert=a&sslkey=b", &default).unwrap();
        assert_eq!((own.mode, own.identity), (SslMode::Require, Some(("a".into(), "b".into()))));
        assert_eq!(tls("postgres://u@db").unwrap(), ServerTls::default());
        assert_eq!(tls("host=db user=u sslrootcert=system").unwrap().mode, SslMode::VerifyFull);
    }

    #[test]
    fn invalid_settings_are_reported_without_the_password() {
        for (parameters, message) in [
            ("sslmode=maybe", "`maybe` is not one of disable"),
            ("sslmode=verify-ca", "sslrootcert is required"),
            ("sslmode=require&sslrootcert=system", "requires verify-full"),
            (
                "target_session_attrs=standby",
                "invalid target_session_attrs: `standby` is not one of any, read-write, primary",
            ),
            ("sslcert=a", "sslcert without sslkey"),
            ("sslmode=%zz", "is not a connection string"),
            ("gssencmode=disable", "has the unknown parameter `gssencmode`"),
        ] {
            let error = tls(&format!("postgres://u:secret@db?{parameters}")).unwrap_err().to_string();
            assert!(error.contains(message) && !error.contains("secret"), "{parameters}: {error}");
        }
        assert!(tls("user=u host=db password='secret").is_err());
    }

    #[test]
    fn a_list_may_require_the_primary() {
        for (text, target) in [("any", TargetSessionAttrs::Any), ("primary", TargetSessionAttrs::ReadWrite)] {
            for text in [
                format!("postgres://u@a:1,b:2/?target_session_attrs={text}"),
                format!("host=a,b port=1,2 user=u target_session_attrs={text}"),
            ] {
                let (config, _) = read(&text, &ServerTls::default()).unwrap();
                assert_eq!((config.get_target_session_attrs(), config.get_ports()), (target, &[1, 2][..]), "{text}");
            }
        }
    }

    #[test]
    fn hostaddr_serves_as_the_host_name() {
        let (config, _) = read("hostaddr=127.0.0.1 user=u", &ServerTls::default()).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("127.0.0.1".into())]);
    }
}
