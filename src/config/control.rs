//! Connection strings: address, role, and libpq's parameters of TLS, which tokio-postgres does not know.
//!
//! Must never print a password.

use super::tls;
use super::tls::{ServerTls, SslMode};
use crate::policy::percent_decoded;
use std::path::PathBuf;
use tokio_postgres::Config;

/// What a connection string says of TLS.
#[derive(Debug, Default, PartialEq, Eq)]
struct TlsParameters {
    mode: Option<SslMode>,
    root_certificate: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Reads a connection string.
///
/// # Errors
/// What to change, in words that do not repeat a password.
pub fn connection(text: &str) -> Result<(Config, ServerTls), String> {
    read(text, &ServerTls::default())
}

/// Reads a connection string. What it does not say of TLS is as in `default`.
/// Errors: as [`connection`].
pub(super) fn read(text: &str, default: &ServerTls) -> Result<(Config, ServerTls), String> {
    // The parser's message is left out where it could repeat a part of the text: that may be the password.
    let unreadable =
        || "is not a connection string: write postgres://user:password@host/ or key=value pairs".to_owned();
    let mut tls = TlsParameters::default();
    let rest = without(text, |key, value| tls.take(key, value)).ok_or_else(unreadable)??;
    let mut config: Config = rest.parse().map_err(|_| unreadable())?;
    if config.get_user().is_none_or(str::is_empty) {
        return Err("names no user: write postgres://user:password@host/".to_owned());
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host: write postgres://user:password@host/".to_owned());
    }
    if config.get_hosts().is_empty() {
        // It is the name in the certificate, too.
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    Ok((config, tls.or(default)?))
}

impl TlsParameters {
    /// Takes a parameter, if it is one of TLS.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "sslmode" => self.mode = Some(tls::ssl_mode(value).map_err(|why| format!("has a bad sslmode: {why}"))?),
            "sslrootcert" => self.root_certificate = Some(value.into()),
            "sslcert" => self.certificate = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn or(self, default: &ServerTls) -> Result<ServerTls, String> {
        let of_system = self.root_certificate.as_deref().is_some_and(tls::is_system);
        let identity = match (self.certificate, self.key) {
            (None, None) => default.identity.clone(),
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return Err("has sslcert without sslkey".to_owned()),
            (None, Some(_)) => return Err("has sslkey without sslcert".to_owned()),
        };
        let mode = self.mode.unwrap_or(if of_system { SslMode::VerifyFull } else { default.mode });
        let root_certificate = self.root_certificate.or_else(|| default.root_certificate.clone());
        let tls = ServerTls { mode, root_certificate, identity };
        tls.contradiction().map_or(Ok(tls), |why| Err(format!("is not complete: sslrootcert {why}")))
    }
}

/// The parameters that are read beside those of TLS: what tokio-postgres knows.
const PARAMETERS: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

type TakeParameter<'a> = &'a mut dyn FnMut(&str, &str) -> Result<bool, String>;

/// The text without the parameters that are taken out of it. None: it is no connection string.
fn without(text: &str, mut take: impl FnMut(&str, &str) -> Result<bool, String>) -> Option<Result<String, String>> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        url_without(text, &mut take)
    } else {
        pairs_without(text, &mut take)
    }
}

fn url_without(text: &str, take: TakeParameter<'_>) -> Option<Result<String, String>> {
    // A password ends at the first @; what stands in it is not looked at.
    let after_password = text.find('@').unwrap_or(0);
    let Some(question) = text[after_password..].find('?').map(|at| after_password + at) else {
        return Some(Ok(text.to_owned()));
    };
    let mut left = Vec::new();
    for parameter in text[question + 1..].split('&') {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let key = percent_decoded(key)?;
        match take(&key, &percent_decoded(value)?) {
            Ok(true) => {}
            // In pairs what looks like a name may be a part of the password.
            Ok(false) if !PARAMETERS.contains(&key.as_str()) => {
                return Some(Err(format!("has the parameter `{key}`, which is not known here: remove it")));
            }
            Ok(false) => left.push(parameter),
            Err(why) => return Some(Err(why)),
        }
    }
    let separator = if left.is_empty() { "" } else { "?" };
    Some(Ok(format!("{}{separator}{}", &text[..question], left.join("&"))))
}

/// As libpq reads them: `key = value`, the value perhaps in single quotes, a backslash before what counts literally.
fn pairs_without(text: &str, take: TakeParameter<'_>) -> Option<Result<String, String>> {
    let mut left = String::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let (value, length) = pair_value(after.trim_start())?;
        let after = &after.trim_start()[length..];
        match take(key.trim_end(), &value) {
            Ok(true) => {}
            Ok(false) => left.extend([&rest[..rest.len() - after.len()], " "]),
            Err(why) => return Some(Err(why)),
        }
        rest = after.trim_start();
    }
    Some(Ok(left))
}

/// The value at the start of the text, and how many bytes it takes.
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

    fn tls(text: &str) -> Result<ServerTls, String> {
        read(text, &ServerTls::default()).map(|(_, tls)| tls)
    }

    #[test]
    fn parameters_of_tls_are_taken_out() {
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
    fn what_is_not_said_is_as_by_default() {
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
    fn what_cannot_work_is_told_without_the_password() {
        for (parameters, message) in [
            ("sslmode=maybe", "`maybe` is none of disable"),
            ("sslmode=verify-ca", "sslrootcert is missing"),
            ("sslmode=require&sslrootcert=system", "verify-full only"),
            ("sslcert=a", "sslcert without sslkey"),
            ("sslmode=%zz", "is not a connection string"),
            ("gssencmode=disable", "has the parameter `gssencmode`, which is not known here"),
        ] {
            let error = tls(&format!("postgres://u:secret@db?{parameters}")).unwrap_err();
            assert!(error.contains(message) && !error.contains("secret"), "{parameters}: {error}");
        }
        assert!(tls("user=u host=db password='secret").is_err());
    }

    #[test]
    fn an_address_is_a_name_too() {
        let (config, _) = read("hostaddr=127.0.0.1 user=u", &ServerTls::default()).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("127.0.0.1".into())]);
    }
}
