//! Addresses to listen on and connect to, and client addresses that the server may accept without authentication.
//!
//! Owns their format and coverage. Must never treat similar addresses as equal, except that an IPv4-mapped IPv6 address
//! counts as the IPv4 address.

use fencegate_policy::percent_decoded;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Default port of a socket to listen on.
const LISTEN_PORT: u16 = 6432;

/// Default port of a server.
const UPSTREAM_PORT: u16 = 5432;

/// Longest path that the kernel accepts for a Unix socket, in bytes.
const LONGEST_SOCKET_PATH: usize = 107;

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum AddressError {
    #[error("`{text}` has no port: write {usage}")]
    NoPort { text: String, usage: &'static str },
    #[error("`{text}` has no host: write [::]:{port} for all addresses, or 0.0.0.0:{port} for IPv4 only")]
    AllHosts { text: String, port: u16 },
    #[error("is not an address: write postgres://host:port, or the absolute path of a directory")]
    NotAServer,
    #[error("`{0}` has no valid port to connect to")]
    PortZero(String),
    #[error("`{0}` is ambiguous: write an IPv6 address in brackets, [::1]:6432")]
    Ambiguous(String),
    #[error("`{0}` has no host: write host:port")]
    NoHost(String),
    #[error("`{port}` is not a port from {lowest} to 65535")]
    NotAPort { port: String, lowest: u16 },
    #[error("`{}` is too long for a socket: {} is more than {LONGEST_SOCKET_PATH} bytes", directory.display(), socket.display())]
    PathTooLong { directory: PathBuf, socket: PathBuf },
    #[error("`{0}` is not the absolute path of a socket")]
    RelativeSocket(String),
    #[error("`{0}` is too long for a socket: more than {LONGEST_SOCKET_PATH} bytes")]
    SocketTooLong(String),
}

/// A TCP port or a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (name or address, IPv6 without brackets) and a port; port 0 lets the kernel choose one to listen on.
    Tcp {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The socket `.s.PGSQL.<port>` in a directory.
    Unix {
        /// An absolute path.
        directory: PathBuf,
        /// The number in the socket's name.
        port: u16,
    },
}

impl Address {
    /// The path of a Unix socket; None for TCP.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Address::Tcp { .. } => None,
            Address::Unix { directory, port } => Some(directory.join(format!(".s.PGSQL.{port}"))),
        }
    }

    /// True if other machines may reach the address: neither a Unix socket nor loopback.
    pub fn is_on_network(&self) -> bool {
        match self {
            Address::Tcp { host, .. } => match host.parse() {
                Ok(address) => !Origin::Address(address).is_loopback(),
                Err(_) => host != "localhost",
            },
            Address::Unix { .. } => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            Address::Unix { directory, port } => write!(formatter, "{}:{port}", directory.display()),
        }
    }
}

/// Reads `host:port`, `/directory` or `/directory:port`.
pub(super) fn listen(text: &str) -> Result<Address, AddressError> {
    if text.starts_with('/') {
        return unix(text, LISTEN_PORT);
    }
    tcp(text, "host:port, or the absolute path of a directory")
}

/// Reads the path of a socket's file.
pub(super) fn socket_file(text: &str) -> Result<PathBuf, AddressError> {
    match text {
        _ if !text.starts_with('/') => Err(AddressError::RelativeSocket(text.to_owned())),
        _ if text.len() > LONGEST_SOCKET_PATH => Err(AddressError::SocketTooLong(text.to_owned())),
        _ => Ok(text.into()),
    }
}

/// Reads `host:port`.
///
/// # Errors
/// The text is not of this form.
pub fn http(text: &str) -> Result<Address, AddressError> {
    if text.starts_with('/') {
        return Err(AddressError::NoPort { text: text.to_owned(), usage: "host:port" });
    }
    tcp(text, "host:port")
}

/// Parses `host:port`. `usage` lists the accepted formats.
fn tcp(text: &str, usage: &'static str) -> Result<Address, AddressError> {
    match host_and_port(text)? {
        (host, Some(port)) if host == "*" => Err(AddressError::AllHosts { text: text.to_owned(), port }),
        (host, Some(port)) => Ok(Address::Tcp { host, port }),
        (_, None) => Err(AddressError::NoPort { text: text.to_owned(), usage }),
    }
}

/// Reads the Unix socket of a server: `/directory` or `/directory:port`.
pub(super) fn upstream_directory(text: &str) -> Result<Address, AddressError> {
    unix(text, UPSTREAM_PORT)
}

/// Reads a host of a URL: `host` or `host:port`. The host may be a directory, with its slashes as `%2F`.
pub(super) fn upstream_host(text: &str) -> Result<Address, AddressError> {
    let (host, port) = host_and_port(text)?;
    match (port.unwrap_or(UPSTREAM_PORT), percent_decoded(&host)) {
        (0, _) => Err(AddressError::PortZero(text.to_owned())),
        (port, Some(directory)) if directory.starts_with('/') => unix_socket(Path::new(&directory), port),
        (port, _) => Ok(Address::Tcp { host, port }),
    }
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), AddressError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(rest))),
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return Err(AddressError::Ambiguous(text.to_owned())),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[],".contains(c)) {
        return Err(AddressError::NoHost(text.to_owned()));
    }
    let not_a_port = |port: &str| AddressError::NotAPort { port: port.to_owned(), lowest: 0 };
    let port = port.map(|port| port.parse().map_err(|_| not_a_port(port))).transpose()?;
    Ok((host.to_owned(), port))
}

fn unix(text: &str, default_port: u16) -> Result<Address, AddressError> {
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let (directory, port) = match text.rsplit_once(':') {
        Some((directory, port)) if is_number(port) => {
            let number = port.parse::<u16>().ok().filter(|number| *number > 0);
            (directory, number.ok_or_else(|| AddressError::NotAPort { port: port.to_owned(), lowest: 1 })?)
        }
        _ => (text, default_port),
    };
    unix_socket(Path::new(directory), port)
}

fn unix_socket(directory: &Path, port: u16) -> Result<Address, AddressError> {
    let address = Address::Unix { directory: directory.to_owned(), port };
    match address.socket_path() {
        Some(socket) if socket.as_os_str().len() > LONGEST_SOCKET_PATH => {
            Err(AddressError::PathTooLong { directory: directory.to_owned(), socket })
        }
        _ => Ok(address),
    }
}

/// Length of the prefix of IPv4-mapped IPv6 addresses.
const MAPPED: u8 = 96;

/// Origin of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One of the proxy's Unix sockets.
    Unix,
    /// An IP address.
    Address(IpAddr),
    /// An IP address that a load balancer has announced. Never this machine's own.
    Announced(IpAddr),
    /// The client has disconnected, or its load balancer does not know its address.
    Unknown,
}

/// The text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the text")]
pub enum OriginError {
    #[error("`{0}` is neither `unix` nor an address or network, such as 127.0.0.1, 10.0.0.0/8 or ::1")]
    NotAnOrigin(String),
    #[error("`{0}` is not an address or network, such as 127.0.0.1, 10.0.0.0/8 or ::1")]
    NotANetwork(String),
}

/// An allowed origin of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// The proxy's Unix sockets.
    Unix,
    /// An address and the length of its prefix.
    Network(IpAddr, u8),
}

impl Origin {
    /// True for loopback addresses.
    pub fn is_loopback(self) -> bool {
        matches!(self, Origin::Address(address) if address.to_canonical().is_loopback())
    }
}

impl AllowedOrigin {
    /// True if the client's origin is included.
    pub fn covers(self, origin: Origin) -> bool {
        match (self, origin) {
            (AllowedOrigin::Unix, Origin::Unix) => true,
            // The load balancer, not the client, would be on this machine.
            (_, Origin::Announced(address)) if address.to_canonical().is_loopback() => false,
            (AllowedOrigin::Network(network, bits), Origin::Address(address) | Origin::Announced(address)) => {
                match (network, address.to_canonical()) {
                    (IpAddr::V4(network), IpAddr::V4(address)) => {
                        begins_alike(network.to_bits().into(), address.to_bits().into(), 32, bits)
                    }
                    (IpAddr::V6(network), IpAddr::V6(address)) => {
                        begins_alike(network.to_bits(), address.to_bits(), 128, bits)
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

fn begins_alike(one: u128, other: u128, width: u8, bits: u8) -> bool {
    (one ^ other).checked_shr((width - bits).into()).unwrap_or(0) == 0
}

/// Reads `ADDRESS` or `ADDRESS/BITS`.
pub(super) fn network(text: &str) -> Result<AllowedOrigin, OriginError> {
    match allowed(text) {
        Ok(network @ AllowedOrigin::Network(..)) => Ok(network),
        Ok(AllowedOrigin::Unix) | Err(_) => Err(OriginError::NotANetwork(text.to_owned())),
    }
}

/// Reads `ADDRESS`, `ADDRESS/BITS` or `unix`.
pub(super) fn allowed(text: &str) -> Result<AllowedOrigin, OriginError> {
    if text == "unix" {
        return Ok(AllowedOrigin::Unix);
    }
    let fault = || OriginError::NotAnOrigin(text.to_owned());
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| fault())?;
    let bits: u8 = match bits {
        Some(bits) => bits.parse().map_err(|_| fault())?,
        None if address.is_ipv4() => 32,
        None => 128,
    };
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), network @ IpAddr::V4(_)) if (MAPPED..=128).contains(&bits) => {
            Ok(AllowedOrigin::Network(network, bits - MAPPED))
        }
        (IpAddr::V4(_), network) if bits <= 32 => Ok(AllowedOrigin::Network(network, bits)),
        (IpAddr::V6(_), network @ IpAddr::V6(_)) if bits <= 128 => Ok(AllowedOrigin::Network(network, bits)),
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn socket(directory: &str, port: u16) -> Address {
        Address::Unix { directory: directory.into(), port }
    }

    #[test]
    fn listen_addresses_are_parsed() {
        for (text, address) in [
            ("127.0.0.1:6432", host("127.0.0.1", 6432)),
            ("localhost:0", host("localhost", 0)),
            ("[::1]:6432", host("::1", 6432)),
            ("/run/fencegate", socket("/run/fencegate", 6432)),
            ("/run/a:b:7000", socket("/run/a:b", 7000)),
        ] {
            assert_eq!(listen(text), Ok(address));
        }
        assert_eq!(listen("/run/x").unwrap().socket_path().unwrap(), Path::new("/run/x/.s.PGSQL.6432"));
        for bad in ["", "127.0.0.1", ":6432", "::1:6432", "[::1]", "a:99999", "a:b", "a b:1", "/run:0", "/run:70000"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
        for all in [listen("*:6432"), http("*:6432")] {
            assert!(all.unwrap_err().to_string().contains("write [::]:6432 for all addresses, or 0.0.0.0:6432"));
        }
        assert!(matches!(listen(&format!("/{}", "d".repeat(100))), Err(AddressError::PathTooLong { .. })));
    }
}

#[cfg(test)]
mod origin_tests {
    use super::*;

    fn covers(setting: &str, address: &str) -> bool {
        allowed(setting).unwrap().covers(Origin::Address(address.parse().unwrap()))
    }

    #[test]
    fn an_announced_address_is_never_local() {
        let announced = |address: &str| Origin::Announced(address.parse().unwrap());
        assert!(allowed("192.0.2.0/24").unwrap().covers(announced("192.0.2.1")));
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!announced(local).is_loopback());
            for setting in ["127.0.0.0/8", "0.0.0.0/0", "::/0", "::1", "unix"] {
                assert!(!allowed(setting).unwrap().covers(announced(local)), "{setting} {local}");
            }
        }
        assert!(network("unix").is_err() && network("192.0.2.1").is_ok());
    }

    #[test]
    fn networks_cover_addresses_with_their_prefix() {
        for (setting, address) in [
            ("10.1.0.0/16", "10.1.255.1"),
            ("10.1.2.3/8", "10.9.9.9"),
            ("0.0.0.0/0", "192.0.2.1"),
            ("192.0.2.1/32", "::ffff:192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:10.0.0.0/104", "10.9.9.9"),
            ("fd00::/8", "fdff::1"),
            ("::/0", "2001:db8::1"),
        ] {
            assert!(covers(setting, address), "{setting}, {address}");
        }
        for (setting, address) in [
            ("10.1.0.0/16", "10.2.0.1"),
            ("192.0.2.1/32", "192.0.2.2"),
            ("192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::2"),
            // Another address family does not match.
            ("::/0", "10.0.0.1"),
            ("0.0.0.0/0", "::1"),
            ("unix", "127.0.0.1"),
        ] {
            assert!(!covers(setting, address), "{setting}, {address}");
        }
        assert!(allowed("unix").unwrap().covers(Origin::Unix));
        assert!(!allowed("0.0.0.0/0").unwrap().covers(Origin::Unix));
        assert!(!allowed("::/0").unwrap().covers(Origin::Unknown));
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for (address, is_loopback) in
            [("127.0.0.1", true), ("127.8.9.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)]
        {
            assert_eq!(Origin::Address(address.parse().unwrap()).is_loopback(), is_loopback, "{address}");
        }
        assert!(!Origin::Unix.is_loopback());
    }

    #[test]
    fn invalid_origins_are_rejected() {
        for text in [
            "",
            "Unix",
            "10.0.0",
            "localhost",
            "10.0.0.1/",
            "10.0.0.0/33",
            "::1/129",
            "host/8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.0/8",
        ] {
            assert!(allowed(text).is_err(), "{text}");
        }
    }
}
