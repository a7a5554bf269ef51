//! Sockets to clients and to the server: TCP, with or without TLS, or Unix.

use crate::config::{Address, Origin};
use crate::relay::{self, Readiness, Relayed};
use fencegate_postgres::connect_tcp;
use fencegate_postgres::tls::Secured;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{self, IoSlice};
use std::net;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{self as tokio_io, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio_rustls::TlsStream;

/// Number of unanswered probes after which a peer counts as gone.
const PROBES: u32 = 6;

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, with Nagle's algorithm off.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP, with the results of the handshake.
    Tls(Box<TlsStream<Carrier>>, Secured),
}

/// The TCP socket under TLS.
#[derive(Debug)]
pub enum Carrier {
    /// Its events wake tasks of a runtime.
    Runtime(TcpStream),
    /// At a relay.
    Relayed(Relayed),
}

/// Both ends of a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The two addresses.
    Tcp { local: net::SocketAddr, peer: net::SocketAddr },
    /// The process that listens on the Unix socket.
    Unix { listener: i32 },
    /// The system does not report them.
    Unknown,
}

/// A client's socket on its way to the runtime of its session, so that its events wake only that runtime.
#[derive(Debug)]
pub enum AcceptedStream {
    Tcp(net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl AcceptedStream {
    /// Removes the socket from the runtime that accepted it.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(stream: Stream) -> io::Result<Self> {
        Ok(match stream {
            Stream::Tcp(stream) => AcceptedStream::Tcp(stream.into_std()?),
            Stream::Unix(stream) => AcceptedStream::Unix(stream.into_std()?),
            Stream::Tls(..) => return Err(io::ErrorKind::InvalidInput.into()),
        })
    }

    /// Registers the socket with the current runtime.
    ///
    /// # Errors
    /// The system's error.
    pub fn into_stream(self) -> io::Result<Stream> {
        Ok(match self {
            AcceptedStream::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            AcceptedStream::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        })
    }
}

impl Stream {
    /// Takes an accepted or connected TCP socket. Like the server, lets the kernel probe a silent peer: first after
    /// `keepalive`, then [`PROBES`] times within the same time. None: the system's setting.
    ///
    /// # Errors
    /// The socket's error.
    pub fn tcp(stream: TcpStream, keepalive: Option<Duration>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        if let Some(silence) = keepalive {
            // Do not set TCP_USER_TIMEOUT too: it would also end a live peer that does not read for that long.
            let seconds = u32::try_from(silence.as_secs()).unwrap_or(u32::MAX).max(1);
            setsockopt(&stream, sockopt::TcpKeepIdle, &seconds)?;
            setsockopt(&stream, sockopt::TcpKeepInterval, &seconds.div_ceil(PROBES))?;
            setsockopt(&stream, sockopt::TcpKeepCount, &PROBES)?;
        }
        Ok(Stream::Tcp(stream))
    }

    /// Origin of the other side.
    pub fn origin(&self) -> Origin {
        let address = match self {
            Stream::Unix(_) => return Origin::Unix,
            Stream::Tcp(stream) => stream.peer_addr(),
            Stream::Tls(stream, _) => stream.get_ref().0.tcp().and_then(TcpStream::peer_addr),
        };
        address.map_or(Origin::Unknown, |address| Origin::Address(address.ip()))
    }

    /// Both ends of the connection, as this side sees them.
    pub fn ends(&self) -> Ends {
        let tcp = |stream: &TcpStream| match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) => Ends::Tcp { local, peer },
            _ => Ends::Unknown,
        };
        match self {
            Stream::Tcp(stream) => tcp(stream),
            Stream::Tls(stream, _) => stream.get_ref().0.tcp().map_or(Ends::Unknown, tcp),
            Stream::Unix(stream) => match stream.peer_cred().ok().and_then(|credentials| credentials.pid()) {
                // 0: a process that this one cannot see, in another namespace.
                Some(pid) if pid != 0 => Ends::Unix { listener: pid },
                _ => Ends::Unknown,
            },
        }
    }

    /// The system user that connected at the other end of a Unix socket, as the kernel reports it.
    pub fn system_user(&self) -> Option<u32> {
        match self {
            Stream::Unix(stream) => stream.peer_cred().ok().map(|credentials| credentials.uid()),
            Stream::Tcp(_) | Stream::Tls(..) => None,
        }
    }

    /// Connects to a server, without TLS. `limit` applies to each address. Cancel-safe.
    ///
    /// # Errors
    /// The socket's error.
    pub async fn connect(address: &Address, keepalive: Option<Duration>, limit: Duration) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => Stream::tcp(connect_tcp(host, *port, limit).await?, keepalive),
            Address::Unix { directory, port } => {
                Ok(Stream::Unix(UnixStream::connect(directory.join(format!(".s.PGSQL.{port}"))).await?))
            }
        }
    }

    /// Splits the socket into its two directions.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            Stream::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf::Unix(write))
            }
            Stream::Tls(stream, _) => {
                let (read, write) = tokio_io::split(stream);
                (ReadHalf::Tls(read, TlsInput::default()), WriteHalf::Tls(write))
            }
        }
    }
}

impl Carrier {
    /// The socket, if it is not at a relay.
    fn tcp(&self) -> io::Result<&TcpStream> {
        match self {
            Carrier::Runtime(stream) => Ok(stream),
            Carrier::Relayed(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carrier::Runtime(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::Relayed(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Carrier::Runtime(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::Relayed(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Carrier::Runtime(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Carrier::Relayed(socket) => Pin::new(socket).poll_write_vectored(context, parts),
        }
    }

    /// The records of TLS are written together.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has no buffer of its own.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carrier::Runtime(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::Relayed(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}

/// The reading half of a socket. Without TLS, the halves share no lock.
#[derive(Debug)]
pub enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(tokio_io::ReadHalf<Box<TlsStream<Carrier>>>, TlsInput),
    Relayed(Arc<Relayed>),
}

/// Whether TLS may have input.
#[derive(Debug, Default)]
pub struct TlsInput {
    /// Readiness of the socket under TLS, if it is at a relay.
    readiness: Option<Arc<Readiness>>,
    /// The last read found nothing. After any other read, TLS may hold more.
    is_drained: bool,
}

/// The writing half of a socket. Without TLS, and unless it is at a relay, dropping it signals the end of the output to the other side.
#[derive(Debug)]
pub enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    Tls(tokio_io::WriteHalf<Box<TlsStream<Carrier>>>),
    Relayed(Arc<Relayed>),
}

impl ReadHalf {
    /// Returns true if a read would find nothing, as far as a relay knows.
    pub fn is_drained(&self) -> bool {
        match self {
            ReadHalf::Relayed(socket) => !socket.readiness().is_readable(),
            ReadHalf::Tls(_, TlsInput { readiness: Some(readiness), is_drained }) => {
                *is_drained && !readiness.is_readable()
            }
            _ => false,
        }
    }

    /// Ready when there may be input, so that waiting requires no buffer. Always ready with TLS, because only a read
    /// can determine whether there is input.
    ///
    /// # Errors
    /// The socket's error.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ReadHalf::Tcp(half) => half.as_ref().poll_read_ready(context),
            ReadHalf::Unix(half) => half.as_ref().poll_read_ready(context),
            ReadHalf::Relayed(_) | ReadHalf::Tls(..) => Poll::Ready(Ok(())),
        }
    }

    /// The TCP socket of these halves, if it has no TLS.
    pub fn unsplit_tcp(self, write: WriteHalf) -> Option<TcpStream> {
        match (self, write) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => read.reunite(write).ok(),
            _ => None,
        }
    }

    /// Moves both halves to the relay that polls the session.
    ///
    /// # Errors
    /// The system's error, or the halves belong to different sockets.
    pub fn relayed(self, write: WriteHalf) -> io::Result<(Self, WriteHalf)> {
        let socket: OwnedFd = match (self, write) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => {
                read.reunite(write).map_err(io::Error::other)?.into_std()?.into()
            }
            (ReadHalf::Unix(read), WriteHalf::Unix(write)) => {
                read.reunite(write).map_err(io::Error::other)?.into_std()?.into()
            }
            (ReadHalf::Tls(read, _), WriteHalf::Tls(write)) if read.is_pair_of(&write) => {
                let mut stream = read.unsplit(write);
                let carrier = stream.get_mut().0;
                // Copy the descriptor, because the original cannot be moved out of the TLS stream.
                let copy = carrier.tcp()?.as_fd().try_clone_to_owned()?;
                let socket = relay::register(copy)?;
                let input = TlsInput { readiness: Some(socket.readiness().clone()), is_drained: false };
                *carrier = Carrier::Relayed(socket);
                let (read, write) = tokio_io::split(stream);
                return Ok((ReadHalf::Tls(read, input), WriteHalf::Tls(write)));
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = Arc::new(relay::register(socket)?);
        Ok((ReadHalf::Relayed(socket.clone()), WriteHalf::Relayed(socket)))
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadHalf::Tcp(half) => Pin::new(half).poll_read(context, buffer),
            ReadHalf::Unix(half) => Pin::new(half).poll_read(context, buffer),
            ReadHalf::Tls(half, input) => {
                let read = Pin::new(half).poll_read(context, buffer);
                input.is_drained = read.is_pending();
                read
            }
            ReadHalf::Relayed(socket) => socket.poll_read(buffer),
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteHalf::Tcp(half) => Pin::new(half).poll_write(context, bytes),
            WriteHalf::Unix(half) => Pin::new(half).poll_write(context, bytes),
            WriteHalf::Tls(half) => Pin::new(half).poll_write(context, bytes),
            WriteHalf::Relayed(socket) => socket.poll_send(bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Tcp(half) => Pin::new(half).poll_flush(context),
            WriteHalf::Unix(half) => Pin::new(half).poll_flush(context),
            WriteHalf::Tls(half) => Pin::new(half).poll_flush(context),
            WriteHalf::Relayed(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteHalf::Tcp(half) => Pin::new(half).poll_shutdown(context),
            WriteHalf::Unix(half) => Pin::new(half).poll_shutdown(context),
            WriteHalf::Tls(half) => Pin::new(half).poll_shutdown(context),
            WriteHalf::Relayed(socket) => Poll::Ready(socket.end()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use tokio::net::TcpListener;

    async fn keepalive_options(keepalive: Option<Duration>) -> (u32, u32, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let address = Address::Tcp { host: address.ip().to_string(), port: address.port() };
        let Stream::Tcp(stream) = Stream::connect(&address, keepalive, Duration::from_secs(3)).await.unwrap() else {
            unreachable!()
        };
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        let count = getsockopt(&stream, sockopt::TcpKeepCount).unwrap();
        (
            getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(),
            count,
        )
    }

    #[tokio::test]
    async fn keepalive_probes_fit_within_twice_the_idle_time() {
        assert_eq!(keepalive_options(Some(Duration::from_secs(60))).await, (60, 10, PROBES));
        assert_eq!(keepalive_options(Some(Duration::from_secs(1))).await, (1, 1, PROBES));
        assert_ne!(keepalive_options(None).await, (60, 10, PROBES), "as the system has it");
    }
}
