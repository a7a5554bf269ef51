//! The servers behind the proxy: one address, or a list as in libpq.
//!
//! Must never repeat a part of the text that may contain a password.

use super::address::{self, Address, AddressError};
use super::table::{ChoiceError, choice};
use fencegate_policy::percent_decoded;
use std::fmt;
use std::time::Duration;

/// Maximum number of hosts in a list. Each has a prober.
const MOST_HOSTS: usize = 16;
/// Time limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum of `connect_timeout`, in seconds.
const LONGEST_TIMEOUT: u64 = 3600;

/// The servers behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// At least one, each only once, in their order.
    pub hosts: Vec<Address>,
    /// The servers that sessions accept.
    pub target: TargetSession,
    /// True if sessions try the hosts in random order.
    pub balances_load: bool,
    /// Time limit for connecting to one address.
    pub connect_timeout: Duration,
}

/// The servers that sessions accept: `target_session_attrs` of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSession {
    /// Any server, preferably the primary.
    Any,
    /// Only the primary.
    Primary,
    /// Only standbys.
    Standby,
    /// A standby, or the primary if no standby is known.
    PreferStandby,
}

/// Why a text does not name servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum UpstreamError {
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The message does not repeat the text, which may contain a password.
    #[error(
        "must be only an address or a list of addresses: remove user, password and database, which come from the clients, and all options except target_session_attrs, load_balance_hosts and connect_timeout"
    )]
    NotOnlyAnAddress,
    #[error("has an invalid {0}: {1}")]
    Choice(&'static str, #[source] ChoiceError),
    #[error("has an invalid connect_timeout: write a number of seconds from 1 to {LONGEST_TIMEOUT}")]
    ConnectTimeout,
    #[error("names `{0}` twice")]
    Twice(String),
    #[error("names more than {MOST_HOSTS} servers")]
    TooMany,
}

impl Upstream {
    /// Returns true if the proxy has to find out which server is the primary.
    pub fn is_probed(&self) -> bool {
        self.hosts.len() > 1 || self.target != TargetSession::Any
    }
}

impl TargetSession {
    /// Returns true if a session may use the primary.
    pub fn allows_primary(self) -> bool {
        self != TargetSession::Standby
    }

    /// Returns true if a session may use a standby.
    pub fn allows_standby(self) -> bool {
        self != TargetSession::Primary
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, host) in self.hosts.iter().enumerate() {
            let separator = if place == 0 { "" } else { "," };
            write!(formatter, "{separator}{host}")?;
        }
        Ok(())
    }
}

/// Reads `/directory`, `/directory:port`, or a URL: `postgres://host:port`, or several of these with commas, then the
/// options after a question mark. A directory may also be a host of the URL, with its slashes as `%2F`.
pub(super) fn read(text: &str) -> Result<Upstream, UpstreamError> {
    let mut upstream = Upstream {
        hosts: Vec::new(),
        target: TargetSession::Any,
        balances_load: false,
        connect_timeout: CONNECT_TIMEOUT,
    };
    if text.starts_with('/') {
        upstream.hosts.push(address::upstream_directory(text)?);
        return Ok(upstream);
    }
    let rest = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"));
    let (hosts, options) = split_options(rest.ok_or(AddressError::NotAServer)?);
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    if text.contains(['@', '#']) || hosts.contains('/') {
        return Err(UpstreamError::NotOnlyAnAddress);
    }
    for host in hosts.split(',') {
        let host = address::upstream_host(host)?;
        if upstream.hosts.contains(&host) {
            return Err(UpstreamError::Twice(host.to_string()));
        }
        upstream.hosts.push(host);
    }
    if upstream.hosts.len() > MOST_HOSTS {
        return Err(UpstreamError::TooMany);
    }
    for option in options {
        let (key, value) = option.split_once('=').ok_or(UpstreamError::NotOnlyAnAddress)?;
        let value = percent_decoded(value).ok_or(UpstreamError::NotOnlyAnAddress)?;
        upstream.take(key, &value)?;
    }
    Ok(upstream)
}

/// The hosts, and the options after the question mark.
fn split_options(text: &str) -> (&str, impl Iterator<Item = &str>) {
    let (hosts, options) = text.split_once('?').unwrap_or((text, ""));
    (hosts, options.split('&').filter(|option| !option.is_empty()))
}

impl Upstream {
    fn take(&mut self, key: &str, value: &str) -> Result<(), UpstreamError> {
        let chosen = |error| UpstreamError::Choice("target_session_attrs", error);
        match key {
            "target_session_attrs" => self.target = target(value).map_err(chosen)?,
            "load_balance_hosts" => {
                let read = choice(value, &[("disable", false), ("random", true)]);
                self.balances_load = read.map_err(|error| UpstreamError::Choice("load_balance_hosts", error))?;
            }
            "connect_timeout" => {
                let seconds = value.parse().ok().filter(|seconds| (1..=LONGEST_TIMEOUT).contains(seconds));
                self.connect_timeout = Duration::from_secs(seconds.ok_or(UpstreamError::ConnectTimeout)?);
            }
            _ => return Err(UpstreamError::NotOnlyAnAddress),
        }
        Ok(())
    }
}

/// Reads `target_session_attrs`. The proxy does not read `default_transaction_read_only`: only recovery counts.
fn target(text: &str) -> Result<TargetSession, ChoiceError> {
    let targets = [
        ("any", TargetSession::Any),
        ("read-write", TargetSession::Primary),
        ("primary", TargetSession::Primary),
        ("standby", TargetSession::Standby),
        ("prefer-standby", TargetSession::PreferStandby),
    ];
    choice(text, &targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn host(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn socket(directory: &str, port: u16) -> Address {
        Address::Unix { directory: Path::new(directory).to_owned(), port }
    }

    fn hosts(text: &str) -> Vec<Address> {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}")).hosts
    }

    #[test]
    fn one_address_is_parsed() {
        assert_eq!(hosts("postgres://db"), [host("db", 5432)]);
        assert_eq!(hosts("postgresql://db:5433/"), [host("db", 5433)]);
        assert_eq!(hosts("postgres://[::1]:5433"), [host("::1", 5433)]);
        assert_eq!(hosts("/var/run/postgresql"), [socket("/var/run/postgresql", 5432)]);
        assert_eq!(hosts("/run/pg:5433"), [socket("/run/pg", 5433)]);
        assert_eq!(hosts("postgres://%2Frun%2Fpg:5433/"), [socket("/run/pg", 5433)]);
        assert_eq!(hosts("postgres://%2frun"), [socket("/run", 5432)]);
        let long = read(&format!("postgres://%2F{}", "d".repeat(100)));
        assert!(matches!(long, Err(UpstreamError::Address(AddressError::PathTooLong { .. }))));
        let one = read("postgres://db").unwrap();
        assert!(!one.is_probed() && one.target == TargetSession::Any && one.connect_timeout == CONNECT_TIMEOUT);
        for bad in ["db:5432", "postgres://", "postgres://db:0", "postgres://a,", "postgres://a:1,a:1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(
            read(&format!("postgres://{}", ["a,"; 16].concat() + "b")),
            Err(UpstreamError::Twice("a:5432".into()))
        );
        let many: Vec<_> = (0..17).map(|number| format!("h{number}")).collect();
        assert_eq!(read(&format!("postgres://{}", many.join(","))), Err(UpstreamError::TooMany));
    }

    #[test]
    fn a_list_has_the_options_of_libpq() {
        let text =
            "postgres://a:1,[::1]:2,%2Frun/?target_session_attrs=primary&load_balance_hosts=random&connect_timeout=7";
        let expected = Upstream {
            hosts: vec![host("a", 1), host("::1", 2), socket("/run", 5432)],
            target: TargetSession::Primary,
            balances_load: true,
            connect_timeout: Duration::from_secs(7),
        };
        assert_eq!(read(text), Ok(expected.clone()));
        assert_eq!(expected.to_string(), "a:1,[::1]:2,/run:5432");
        assert!(read("postgres://a,b").unwrap().is_probed());
        for (text, [primary, standby]) in [
            ("any", [true, true]),
            ("read-write", [true, false]),
            ("standby", [false, true]),
            ("prefer%2Dstandby", [true, true]),
        ] {
            let target = read(&format!("postgres://a?target_session_attrs={text}")).unwrap().target;
            assert_eq!([target.allows_primary(), target.allows_standby()], [primary, standby], "{text}");
        }
    }

    #[test]
    fn other_parts_are_rejected_without_being_repeated() {
        for text in [
            "postgres://u:secret@db",
            "postgres://db/secret",
            "postgres://db?sslmode=secret",
            "postgres://db?target_session_attrs=any&password=secret",
            "postgres://db?secret",
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains("only an address") && !message.contains("secret"), "{message}");
        }
        for (text, message) in [
            ("target_session_attrs=leader", "invalid target_session_attrs: `leader` is not one of any"),
            ("load_balance_hosts=yes", "invalid load_balance_hosts: `yes` is not one of disable, random"),
            ("connect_timeout=0", "number of seconds from 1 to 3600"),
        ] {
            let error = read(&format!("postgres://a,b?{text}")).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
