//! A socket of a session that a relay polls.
//!
//! Readiness is edge-triggered: the socket may be used until it would block, and the next event makes it ready again. The relay polls
//! the session at each event, and the session repeats the operations that would have blocked. Futures leave no waker here.
//!
//! The relay waits for a socket to be writable only after a write has blocked: a Unix socket reports that it is writable each time
//! the other side has read, and each report wakes the thread.
//!
//! Readiness may be claimed falsely, at the cost of a call that would block. It must never be missed.

use super::reregister;
use bytes::{Bytes, BytesMut};
use mio::event::Event;
use mio::{Interest, Token};
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) const READABLE: u8 = 1;
const WRITABLE: u8 = 2;
/// The other side sends no more, or the connection has failed. No event follows for the end of the input.
const CLOSED: u8 = 4;
/// The socket is registered for writing too.
pub(super) const WRITES_TOO: u8 = 8;

/// Largest read that goes through the stack.
const LITTLE: usize = 1024;

/// Operations for which the socket may be ready. Two threads use it from the time its session blocks until the session returns.
#[derive(Debug)]
pub struct Readiness(AtomicU8);

impl Default for Readiness {
    fn default() -> Self {
        Readiness(AtomicU8::new(READABLE | WRITABLE))
    }
}

impl Readiness {
    /// Returns true if the socket was not known to be ready.
    pub(super) fn note(&self, event: &Event) -> bool {
        let mut bits = 0;
        if event.is_error() || event.is_read_closed() {
            bits |= CLOSED | READABLE;
        }
        if event.is_readable() {
            bits |= READABLE;
        }
        if event.is_writable() || event.is_error() || event.is_write_closed() {
            bits |= WRITABLE;
        }
        self.0.fetch_or(bits, Ordering::Relaxed) & bits != bits
    }

    /// Another thread has used the socket. It may have cleared the bit of an event that arrived after its last attempt.
    pub(super) fn doubt(&self) {
        self.set(READABLE | WRITABLE);
    }

    fn set(&self, bits: u8) {
        self.0.fetch_or(bits, Ordering::Relaxed);
    }

    pub(super) fn has(&self, bit: u8) -> bool {
        self.0.load(Ordering::Relaxed) & bit > 0
    }

    /// Returns true if a read may succeed.
    pub fn is_readable(&self) -> bool {
        self.has(READABLE)
    }

    fn clear(&self, bit: u8) {
        self.0.fetch_and(!bit, Ordering::Relaxed);
    }

    /// The result of a call that does not block.
    pub(super) fn poll<T>(&self, bit: u8, call: impl FnOnce() -> rustix::io::Result<T>) -> Poll<io::Result<T>> {
        if !self.has(bit) {
            return Poll::Pending;
        }
        match call() {
            Err(rustix::io::Errno::AGAIN) => {
                self.clear(bit);
                Poll::Pending
            }
            result => Poll::Ready(result.map_err(io::Error::from)),
        }
    }
}

/// A connected socket, registered with the relay.
#[derive(Debug)]
pub struct Relayed {
    socket: OwnedFd,
    token: Token,
    pub(super) readiness: Arc<Readiness>,
}

impl Relayed {
    pub(super) fn new(socket: OwnedFd, token: Token, readiness: Arc<Readiness>) -> Self {
        Relayed { socket, token, readiness }
    }

    /// The operations for which the socket may be ready.
    pub fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }

    /// Appends received bytes, up to this many.
    ///
    /// # Errors
    /// The socket's errors.
    pub fn poll_fill(&self, input: &mut BytesMut, at_once: usize) -> Poll<io::Result<usize>> {
        if at_once <= LITTLE {
            let mut bytes = [MaybeUninit::uninit(); LITTLE];
            return self.poll_recv(at_once, || {
                let ((read, _), _) = recv(&self.socket, &mut bytes[..at_once], RecvFlags::empty())?;
                input.extend_from_slice(read);
                Ok(read.len())
            });
        }
        // Safe code can read into the spare capacity of a Vec, but not of a BytesMut. The start of an incomplete message is
        // copied into the Vec, unless it is long: each read would copy it again.
        let is_long = input.len() > at_once / 4;
        let start = if is_long { &[][..] } else { &input[..] };
        let mut bytes = Vec::with_capacity(start.len() + at_once);
        bytes.extend_from_slice(start);
        let room = bytes.capacity() - bytes.len();
        let read = self.poll_recv(room, || {
            recv(&self.socket, spare_capacity(&mut bytes), RecvFlags::empty()).map(|(read, _)| read)
        });
        match read {
            Poll::Ready(_) if is_long => input.extend_from_slice(&bytes),
            Poll::Ready(_) => *input = BytesMut::from(Bytes::from(bytes)),
            Poll::Pending => {}
        }
        read
    }

    /// Reads with this call, whose buffer has `room` bytes.
    fn poll_recv(&self, room: usize, call: impl FnOnce() -> rustix::io::Result<usize>) -> Poll<io::Result<usize>> {
        let read = self.readiness.poll(READABLE, call);
        // Later bytes cause another event, and so does the end of the input.
        if let Poll::Ready(Ok(read)) = read
            && read < room
            && !self.readiness.has(CLOSED)
        {
            self.readiness.clear(READABLE);
        }
        read
    }

    /// Reads received bytes.
    ///
    /// # Errors
    /// The socket's errors.
    pub fn poll_read(&self, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let bytes = buffer.initialize_unfilled();
        let call = |bytes| recv(&self.socket, bytes, RecvFlags::empty()).map(|(read, _)| read);
        let read = self.poll_recv(bytes.len(), || call(bytes))?;
        read.map(|read| {
            buffer.advance(read);
            Ok(())
        })
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// The socket's errors.
    pub fn poll_send(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(|| send(&self.socket, bytes, SendFlags::NOSIGNAL))
    }

    fn poll_write_with(&self, call: impl FnOnce() -> rustix::io::Result<usize>) -> Poll<io::Result<usize>> {
        let written = self.readiness.poll(WRITABLE, call);
        if written.is_pending() != self.readiness.has(WRITES_TOO) {
            self.await_writable(written.is_pending())?;
        }
        written
    }

    /// Starts or stops waiting for the socket to be writable. A session that has blocked tries again when it returns.
    #[cold]
    fn await_writable(&self, is_blocked: bool) -> io::Result<()> {
        let interest = if is_blocked { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        match reregister(&self.socket, self.token, interest) {
            Some(done) => done.map(|()| match is_blocked {
                true => self.readiness.set(WRITES_TOO),
                false => self.readiness.clear(WRITES_TOO),
            }),
            None => Ok(()),
        }
    }

    /// Ends the output.
    ///
    /// # Errors
    /// The socket's error.
    pub fn end(&self) -> io::Result<()> {
        match shutdown(&self.socket, Shutdown::Write) {
            // The other side has closed the connection.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// For TLS, which reads and writes through the socket.
impl AsyncRead for Relayed {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Relayed::poll_read(&self, buffer)
    }
}

impl AsyncWrite for Relayed {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut nothing = SendAncillaryBuffer::default();
        self.poll_write_with(|| sendmsg(&self.socket, parts, &mut nothing, SendFlags::NOSIGNAL))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end())
    }
}
