//! Listening on all addresses of a host name, for clients and for metrics, with sockets that another process has opened where there
//! are any: the predecessor of this proxy, or systemd.
//!
//! Owns how the proxy listens on TCP, and which inherited sockets it uses. Must never take over an address on which another process
//! listens, or use a socket for an address that its settings do not name.

use listenfd::ListenFd;
use nix::errno::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType, getsockname};
use std::net::{self, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::{fmt, io};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// Listening on an address failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// The configured address.
    pub address: String,
    /// The system's error.
    pub error: io::Error,
}

/// Maximum number of connections that wait to be accepted. The kernel's limit is `net.core.somaxconn`.
pub const BACKLOG: u32 = 4096;

/// Listens on every address of the host, with inherited sockets where there are any. Like the server, skips addresses
/// that this machine does not have, such as ::1 without IPv6, if another one works. Cancel-safe.
///
/// # Errors
/// The system's error: for example, another process listens there.
pub async fn listen(host: &str, port: u16, inherited: &mut Inherited) -> io::Result<Vec<TcpListener>> {
    on_each(lookup_host((host, port)).await?, inherited)
}

fn on_each(addresses: impl Iterator<Item = SocketAddr>, inherited: &mut Inherited) -> io::Result<Vec<TcpListener>> {
    let (mut known, mut listeners) = (Vec::new(), Vec::new());
    let mut missing = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        // A hosts file may list an address twice.
        if known.contains(&address) {
            continue;
        }
        known.push(address);
        let listener = match inherited.tcp(address) {
            Some(listener) => TcpListener::from_std(listener),
            None => on_address(address),
        };
        match listener {
            Ok(listener) => listeners.push(listener),
            Err(error) if is_missing(&error) => missing = error,
            Err(error) => return Err(error),
        }
    }
    if listeners.is_empty() { Err(missing) } else { Ok(listeners) }
}

fn on_address(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of an earlier process may still be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// True if the machine lacks the address or its address family.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT))
}

/// A listening socket of another process.
#[derive(Debug)]
pub struct InheritedSocket {
    listener: Listener,
    /// True if the process that listens last removes the file of this Unix socket.
    owns_file: bool,
}

#[derive(Debug)]
enum Listener {
    Tcp(net::TcpListener, SocketAddr),
    Unix(UnixListener),
}

/// Sockets that this proxy may use in place of new ones.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Option<InheritedSocket>>,
    /// Addresses of the sockets that were taken.
    taken: Vec<String>,
}

impl InheritedSocket {
    /// Checks the socket.
    ///
    /// # Errors
    /// It does not listen on TCP or on a Unix socket.
    pub fn new(descriptor: OwnedFd, owns_file: bool) -> io::Result<Self> {
        if socket_type(&descriptor)? != SocketType::STREAM || !socket_acceptconn(&descriptor)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening stream socket"));
        }
        let listener = match socket_domain(&descriptor)? {
            AddressFamily::UNIX => {
                let listener = UnixListener::from(descriptor);
                listener.set_nonblocking(true)?;
                Listener::Unix(listener)
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let address = getsockname(&descriptor)?.try_into()?;
                let listener = net::TcpListener::from(descriptor);
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener, address)
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither TCP nor a Unix socket")),
        };
        Ok(InheritedSocket { listener, owns_file })
    }

    /// True if the socket has this file.
    fn is_at(&self, path: &Path) -> bool {
        let Listener::Unix(listener) = &self.listener else { return false };
        listener.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
    }
}

impl fmt::Display for InheritedSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.listener {
            Listener::Tcp(_, address) => write!(formatter, "{address}"),
            Listener::Unix(listener) => match listener.local_addr().ok().as_ref().and_then(|it| it.as_pathname()) {
                Some(path) => write!(formatter, "{}", path.display()),
                None => formatter.write_str("a Unix socket without a path"),
            },
        }
    }
}

impl Inherited {
    /// The sockets that systemd has passed to this process (`sd_listen_fds(3)`). Call it once, before other threads
    /// start: it changes the environment. systemd removes the files of its sockets.
    ///
    /// # Errors
    /// A descriptor is not a listening socket.
    pub fn from_systemd() -> io::Result<Self> {
        let mut passed = ListenFd::from_env();
        let count = passed.len();
        let mut take = |index| {
            if let Ok(Some(listener)) = passed.take_unix_listener(index) {
                return InheritedSocket::new(listener.into(), false);
            }
            let listener = passed.take_tcp_listener(index)?;
            InheritedSocket::new(listener.ok_or(io::ErrorKind::InvalidInput)?.into(), false)
        };
        let sockets: Vec<_> = (0..count).map(|index| take(index).map(Some)).collect::<io::Result<_>>()?;
        Ok(Inherited { sockets, taken: Vec::new() })
    }

    /// Adds sockets. Those that were there before are used first.
    pub fn extend(&mut self, sockets: impl IntoIterator<Item = InheritedSocket>) {
        self.sockets.extend(sockets.into_iter().map(Some));
    }

    /// Number of sockets, with those in use.
    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Takes the socket that listens on the address.
    pub fn tcp(&mut self, wanted: SocketAddr) -> Option<net::TcpListener> {
        let is_it = |it: &InheritedSocket| matches!(it.listener, Listener::Tcp(_, address) if address == wanted);
        match self.take(is_it)?.listener {
            Listener::Tcp(listener, _) => Some(listener),
            Listener::Unix(_) => None,
        }
    }

    /// Takes the Unix socket with this file, and whether this process owns the file now.
    pub fn unix(&mut self, path: &Path) -> Option<(UnixListener, bool)> {
        let InheritedSocket { listener, owns_file } = self.take(|it| it.is_at(path))?;
        match listener {
            Listener::Unix(listener) => Some((listener, owns_file)),
            Listener::Tcp(..) => None,
        }
    }

    /// True for each socket that was taken, in the order in which they were added.
    pub fn are_used(&self) -> impl Iterator<Item = bool> {
        self.sockets.iter().map(Option::is_none)
    }

    /// The sockets that were not taken. Omits a socket if another one with its address was taken, because systemd passes the
    /// sockets of a unit to both predecessor and successor.
    pub fn unused(&self) -> impl Iterator<Item = &InheritedSocket> {
        self.sockets.iter().flatten().filter(|it| !self.taken.contains(&it.to_string()))
    }

    fn take(&mut self, is_it: impl Fn(&InheritedSocket) -> bool) -> Option<InheritedSocket> {
        let socket = self.sockets.iter_mut().find(|slot| slot.as_ref().is_some_and(&is_it))?.take()?;
        self.taken.push(socket.to_string());
        Some(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_available_address_of_a_name_is_listened_on() {
        let on = |addresses: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            on_each(addresses.into_iter(), &mut Inherited::default())
        };
        // The second address is reserved for documentation: no machine has it.
        let listeners = on(&["127.0.0.1:0", "203.0.113.1:0", "127.0.0.2:0"]).unwrap();
        let bound: Vec<SocketAddr> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        assert_eq!(bound.iter().map(|it| it.ip().to_string()).collect::<Vec<_>>(), ["127.0.0.1", "127.0.0.2"]);
        let error = on(&["203.0.113.1:0"]).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        let error = on(&["127.0.0.3:0", &bound[0].to_string()]).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
