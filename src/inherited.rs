//! Listening sockets that another process has opened: the predecessor of this proxy, or systemd.
//!
//! Owns which of them this proxy uses. Must never bind an address, or use a socket for an address that its settings do
//! not name.

use listenfd::ListenFd;
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, getsockname};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A listening socket of another process.
#[derive(Debug)]
pub struct InheritedSocket {
    listener: Listener,
    /// True if the process that listens last removes the file of this Unix socket.
    owns_file: bool,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener, SocketAddr),
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
                let listener = TcpListener::from(descriptor);
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
    pub fn tcp(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
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

    /// The sockets that were not taken. Omits those of an address of which another one was taken: systemd passes the sockets of a
    /// unit to predecessor and successor alike.
    pub fn unused(&self) -> impl Iterator<Item = &InheritedSocket> {
        self.sockets.iter().flatten().filter(|it| !self.taken.contains(&it.to_string()))
    }

    fn take(&mut self, is_it: impl Fn(&InheritedSocket) -> bool) -> Option<InheritedSocket> {
        let socket = self.sockets.iter_mut().find(|slot| slot.as_ref().is_some_and(&is_it))?.take()?;
        self.taken.push(socket.to_string());
        Some(socket)
    }
}
