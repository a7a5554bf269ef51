//! Addresses to listen on and connect to.

use super::Origin;
use fencegate_policy::percent_decoded;
use std::{
    fmt,
    path::{Path, PathBuf},
};

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
