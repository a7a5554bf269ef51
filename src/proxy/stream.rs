//! Sockets to clients and to the server: TCP, with or without TLS, or Unix.

use crate::config::Address;
use crate::tls::Secured;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

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
    /// Takes an accepted or connected TCP socket. Like the server, has the kernel ask whether a silent peer is still there.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        Ok(Stream::Tcp(stream))
    }

    /// Connects to a server, without TLS. Cancel-safe.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => Stream::tcp(TcpStream::connect((host.as_str(), *port)).await?),
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
