//! The addresses on which clients are accepted.
//!
//! Owns the listening sockets and the files of Unix sockets. Must never take over an address on which another process
//! listens.

use super::stream::{AcceptedStream, Stream};
use crate::config::Address;
use crate::listen::{BACKLOG, listen};
use crate::state::shared::Shared;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Any user may connect to a Unix socket, whatever the umask, as with the server's default for
/// `unix_socket_permissions`. Restrict access with the directory's permissions.
const SOCKET_MODE: u32 = 0o777;

/// A listening socket.
pub struct ClientListener {
    socket: ListeningSocket,
    /// The address as bound.
    pub address: String,
    /// The file of a Unix socket.
    _file: Option<SocketFile>,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Removes the file of a Unix socket once the proxy has stopped listening on it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

impl ClientListener {
    /// Listens on all addresses of a name. Cancel-safe.
    ///
    /// # Errors
    /// The socket's error: for example, another process listens there.
    pub async fn bind(address: &Address) -> io::Result<Vec<Self>> {
        match address {
            Address::Tcp { host, port } => listen(host, *port).await?.into_iter().map(Self::on_tcp).collect(),
            Address::Unix { .. } => {
                let path = address.socket_path().ok_or(io::ErrorKind::InvalidInput)?;
                remove_stale(&path).await?;
                Ok(vec![Self::on_file(path)?])
            }
        }
    }

    fn on_tcp(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?.to_string();
        Ok(ClientListener { socket: ListeningSocket::Tcp(socket), address, _file: None })
    }

    fn on_file(path: PathBuf) -> io::Result<Self> {
        let socket = UnixSocket::new_stream()?;
        socket.bind(&path)?;
        let (address, file) = (path.display().to_string(), SocketFile(path));
        std::fs::set_permissions(&file.0, Permissions::from_mode(SOCKET_MODE))?;
        Ok(ClientListener { socket: ListeningSocket::Unix(socket.listen(BACKLOG)?), address, _file: Some(file) })
    }

    /// Accepts clients forever and begins a session for each, with the client's address. Cancel-safe.
    pub async fn serve(self, shared: Arc<Shared>, begin: impl Fn(AcceptedStream, String)) {
        loop {
            match self.accept(shared.settings().limits.keepalive).await {
                Ok((stream, peer)) => begin(stream, peer),
                Err(error) => {
                    // Usually, no file descriptors are left. Accepting again immediately would only waste CPU time.
                    tracing::error!(%error, address = self.address, "accept_failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self, keepalive: Option<Duration>) -> io::Result<(AcceptedStream, String)> {
        let (stream, peer) = match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Stream::tcp(stream, keepalive)?, peer.to_string())
            }
            ListeningSocket::Unix(listener) => (Stream::Unix(listener.accept().await?.0), "unix".to_owned()),
        };
        Ok((AcceptedStream::new(stream)?, peer))
    }
}

/// A socket file on which no process listens was left by a killed proxy.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    /// Larger than the usual backlog of 128, if the system permits.
    fn backlog() -> usize {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        most.trim().parse::<usize>().unwrap().min(400)
    }

    #[tokio::test]
    async fn the_backlog_holds_many_connections() {
        let folder = std::env::temp_dir().join(format!("fencegate-backlog-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let local = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        for address in [local, Address::Unix { directory: folder.clone(), port: 1 }] {
            let listener = ClientListener::bind(&address).await.unwrap().remove(0);
            let mut waiting = Vec::new();
            for _ in 0..backlog() {
                let connect = async {
                    match address.socket_path() {
                        Some(path) => UnixStream::connect(path).await.map(Stream::Unix),
                        None => TcpStream::connect(&listener.address).await.map(Stream::Tcp),
                    }
                };
                let connected = tokio::time::timeout(Duration::from_secs(1), connect).await;
                waiting.push(connected.expect("the backlog has room").unwrap());
            }
        }
        std::fs::remove_dir(&folder).unwrap();
    }
}
