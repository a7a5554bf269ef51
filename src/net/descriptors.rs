//! Sends and receives file descriptors over a Unix socket (`SCM_RIGHTS`, `unix(7)`).
//!
//! Must never leave a received descriptor open for the programs that this process starts.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage};
use rustix::net::{ReturnFlags, SendFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum number of descriptors in a message: the kernel's `SCM_MAX_FD`.
pub const MOST_DESCRIPTORS: usize = 253;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

/// Sends the bytes and the descriptors as one message. Cancel-safe: it is sent completely or not at all.
///
/// # Errors
/// The socket's error, or there are too many descriptors.
pub async fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
    });
    // A stream socket with an empty queue takes a short message whole.
    if sent.await? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives bytes, at most as many as fit, and their descriptors. No bytes: the other side has closed the connection.
/// Cancel-safe.
///
/// # Errors
/// The socket's error, or there are too many descriptors.
pub async fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let received = stream.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many file descriptors"));
        }
        Ok((received.bytes, descriptors))
    });
    received.await
}
