//! The addresses on which clients are accepted.
//!
//! Owns the listening sockets and the files of Unix sockets. Must never take over an address on which another process
//! listens.

use super::stream::{AcceptedStream, Stream};
use crate::config::Address;
use crate::listen::Inherited;
use crate::listen::{BACKLOG, listen};
use crate::state::shared::Shared;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::oneshot;

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
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix(FileListener),
}

/// A listening Unix socket. Removes its file when the proxy stops listening, if the proxy owns the file.
pub struct FileListener {
    socket: UnixListener,
    path: PathBuf,
    owns_file: AtomicBool,
    /// True if the predecessor leaves the file to this process.
    inherits_file: bool,
}

impl Drop for FileListener {
    fn drop(&mut self) {
        if self.owns_file() {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

impl FileListener {
    /// Listens on a Unix socket whose file has these permissions. Cancel-safe.
    ///
    /// # Errors
    /// The socket's error: for example, another process listens there.
    pub async fn bind(path: PathBuf, mode: u32, inherited: &mut Inherited) -> io::Result<Self> {
        if let Some((socket, inherits_file)) = inherited.unix(&path) {
            return Ok(FileListener {
                socket: UnixListener::from_std(socket)?,
                path,
                owns_file: false.into(),
                inherits_file,
            });
        }
        remove_stale(&path).await?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(&path)?;
        // Nobody can connect before `listen`.
        let listen = || {
            std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
            socket.listen(BACKLOG)
        };
        match listen() {
            Ok(socket) => Ok(FileListener { socket, path, owns_file: true.into(), inherits_file: false }),
            Err(error) => {
                std::fs::remove_file(&path).ok();
                Err(error)
            }
        }
    }

    /// Accepts a connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().await.map(|(stream, _)| stream)
    }

    /// True if the proxy removes the file.
    pub fn owns_file(&self) -> bool {
        self.owns_file.load(Ordering::Relaxed)
    }

    /// Takes over the file, because the predecessor has released the socket.
    pub fn own_inherited_file(&self) {
        self.owns_file.fetch_or(self.inherits_file, Ordering::Relaxed);
    }

    /// Leaves the file to another process that listens on the socket.
    pub fn disown_file(&self) {
        self.owns_file.store(false, Ordering::Relaxed);
    }
}

impl AsFd for FileListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ClientListener {
    /// Listens on all addresses of a name, with inherited sockets where there are any. Cancel-safe.
    ///
    /// # Errors
    /// The socket's error: for example, another process listens there.
    pub async fn bind(address: &Address, inherited: &mut Inherited) -> io::Result<Vec<Self>> {
        match address {
            Address::Tcp { host, port } => {
                listen(host, *port, inherited).await?.into_iter().map(Self::on_tcp).collect()
            }
            Address::Unix { .. } => {
                let path = address.socket_path().ok_or(io::ErrorKind::InvalidInput)?;
                let address = path.display().to_string();
                let socket = FileListener::bind(path, SOCKET_MODE, inherited).await?;
                Ok(vec![ClientListener { socket: ListeningSocket::Unix(socket), address }])
            }
        }
    }

    fn on_tcp(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?.to_string();
        Ok(ClientListener { socket: ListeningSocket::Tcp(socket), address })
    }

    /// The Unix socket, if it is one.
    pub fn file(&self) -> Option<&FileListener> {
        match &self.socket {
            ListeningSocket::Tcp(_) => None,
            ListeningSocket::Unix(listener) => Some(listener),
        }
    }

    /// Accepts clients and begins a session for each, with the client's address. Ends when the sender of `closed` is dropped
    /// and no connection is queued. Cancel-safe.
    pub async fn serve(
        self: Arc<Self>,
        shared: Arc<Shared>,
        begin: impl Fn(AcceptedStream, String),
        mut closed: oneshot::Receiver<()>,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = self.accept(shared.settings().limits.keepalive) => accepted,
                _ = &mut closed => return,
            };
            match accepted {
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
            ListeningSocket::Unix(listener) => (Stream::Unix(listener.accept().await?), "unix".to_owned()),
        };
        Ok((AcceptedStream::new(stream)?, peer))
    }
}

impl AsFd for ClientListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => listener.as_fd(),
            ListeningSocket::Unix(listener) => listener.as_fd(),
        }
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
            let listener = ClientListener::bind(&address, &mut Inherited::default()).await.unwrap().remove(0);
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
