//! Listening on all addresses of a host name.
//!
//! Owns how the proxy listens on TCP, for clients and for metrics. Must never take over an address on which another
//! process listens.

use crate::inherited::Inherited;
use nix::errno::Errno;
use std::io;
use std::net::SocketAddr;
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
