//! Sockets to clients and to the server: TCP, with or without TLS, or Unix.

use crate::config::{Address, Origin};
use crate::tls::Secured;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// The number of unanswered probes after which a peer counts as gone.
const PROBES: u32 = 6;

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, with Nagle's algorithm off.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP, and what it has made known.
    Tls(Box<TlsStream<TcpStream>>, Secured),
}

impl Stream {
    /// Takes an accepted or connected TCP socket. Like the server, has the kernel ask whether a silent peer is still
    /// there: after `keepalive`, [`PROBES`] times within as long again; None: as the system has it.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn tcp(stream: TcpStream, keepalive: Option<Duration>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        if let Some(silence) = keepalive {
            // Not TCP_USER_TIMEOUT as well: that would also end a live peer that does not read for as long.
            let seconds = u32::try_from(silence.as_secs()).unwrap_or(u32::MAX).max(1);
            setsockopt(&stream, sockopt::TcpKeepIdle, &seconds)?;
            setsockopt(&stream, sockopt::TcpKeepInterval, &seconds.div_ceil(PROBES))?;
            setsockopt(&stream, sockopt::TcpKeepCount, &PROBES)?;
        }
        Ok(Stream::Tcp(stream))
    }

    /// Where the other side is.
    pub fn origin(&self) -> Origin {
        let address = match self {
            Stream::Unix(_) => return Origin::Unix,
            Stream::Tcp(stream) => stream.peer_addr(),
            Stream::Tls(stream, _) => stream.get_ref().0.peer_addr(),
        };
        address.map_or(Origin::Unknown, |address| Origin::Address(address.ip()))
    }

    /// Connects to a server, without TLS. Cancel-safe.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn connect(address: &Address, keepalive: Option<Duration>) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => Stream::tcp(TcpStream::connect((host.as_str(), *port)).await?, keepalive),
            Address::Unix { directory, port } => {
                Ok(Stream::Unix(UnixStream::connect(directory.join(format!(".s.PGSQL.{port}"))).await?))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream, _) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use tokio::net::TcpListener;

    async fn asked(keepalive: Option<Duration>) -> (u32, u32, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let address = Address::Tcp { host: address.ip().to_string(), port: address.port() };
        let Stream::Tcp(stream) = Stream::connect(&address, keepalive).await.unwrap() else { unreachable!() };
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        let count = getsockopt(&stream, sockopt::TcpKeepCount).unwrap();
        (
            getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(),
            count,
        )
    }

    #[tokio::test]
    async fn a_silent_peer_is_asked_and_given_up_within_twice_the_time() {
        assert_eq!(asked(Some(Duration::from_secs(60))).await, (60, 10, PROBES));
        assert_eq!(asked(Some(Duration::from_secs(1))).await, (1, 1, PROBES));
        assert_ne!(asked(None).await, (60, 10, PROBES), "as the system has it");
    }
}
