//! An upgrade without a disconnect: a running proxy hands its listening sockets to its successor.
//!
//! The exchange, over a Unix socket:
//! 1. The successor, ready for clients, sends a request.
//! 2. The predecessor sends its listening sockets and continues to accept.
//! 3. The successor binds the addresses that are missing, and reports the sockets that it uses.
//! 4. The predecessor releases the sockets and accepts no more. Connections that arrive wait in the kernel's queue, which
//!    belongs to the shared socket. The successor accepts them.
//!
//! Before step 4 both sides can fail without an effect on clients. After it the connection carries cancel requests to the
//! predecessor until its last session has ended.
//!
//! Must never serve a process of another system user, except root, or wait for the other side without a limit.
//!
//! Sends and receives file descriptors over a Unix socket (`SCM_RIGHTS`, `unix(7)`).
//!
//! Must never leave a received descriptor open for the programs that this process starts.

use super::sockets::{OpenSockets, Sockets};
use crate::listen::InheritedSocket;
use crate::net::handshake::cancel;
use crate::net::listener::{ClientListener, FileListener};
use crate::state::lifecycle::MOST_PREDECESSORS;
use crate::state::shared::Shared;
use fencegate_wire::startup::{Packet, packet_length, read};
use futures_util::stream;
use futures_util::stream::StreamExt;
use nix::unistd::geteuid;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Permissions of the socket.
pub const MODE: u32 = 0o600;

/// Time limit for a successor, from its connection to step 4.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for each answer of the predecessor. Other successors may be served first.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(30);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of concurrent cancel requests from a successor.
const CANCELS: usize = 32;

/// Step 1. A change of the exchange changes the number.
const REQUEST: &[u8] = b"fencegate take-over 1\n";
/// Begins step 2; a byte for each descriptor follows.
const SOCKETS: u8 = b'S';
/// Begins the answer in place of step 2 if the predecessor refuses; the reason follows.
const REFUSED: u8 = b'E';
/// Begins step 3; a byte for each descriptor follows: [`USED`] or not.
const READY: u8 = b'R';
const USED: u8 = 1;
/// Step 4.
const RELEASED: &[u8] = b"released\n";
/// Maximum length of a message.
const LONGEST: usize = 1024;

/// A listening socket.
const SOCKET: u8 = b's';
/// A listening Unix socket whose file belongs to the proxy.
const SOCKET_WITH_FILE: u8 = b'f';
/// The connection to a predecessor that still has sessions.
const CONNECTION: u8 = b'p';

/// Why a successor or predecessor could not complete the exchange.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The socket's error.
    #[error(transparent)]
    Io(io::Error),
    /// The other process must not see the sockets.
    #[error("the other process runs as another system user (uid {0})")]
    Stranger(u32),
    /// No answer in time.
    #[error("the other process did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The other process has ended, or given up.
    #[error("the other process closed the connection")]
    Closed,
    /// It is another program, or speaks another version.
    #[error("the other process sent an unexpected message: it may be of an unsupported version")]
    Unexpected,
    /// The predecessor's reason.
    #[error("the running proxy refused: {0}")]
    Refused(String),
    /// The successor cannot serve clients.
    #[error("this proxy is not ready for clients: {0}")]
    NotReady(String),
}

impl From<io::Error> for TakeOverError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => TakeOverError::Closed,
            _ => TakeOverError::Io(error),
        }
    }
}

/// The sockets that a proxy hands to its successor.
pub struct Handover {
    /// The sockets for clients, metrics and health.
    pub sockets: Arc<Sockets>,
    /// The socket on which successors connect.
    pub offer: FileListener,
}

impl Handover {
    /// Serves successors until one of them has the sockets. Returns the connection to it. Cancel-safe: the successor
    /// fails, and this proxy continues.
    pub async fn to_successor(&self, shared: &Shared) -> UnixStream {
        loop {
            let stream = match self.offer.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::error!(%error, "accept_failed");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match within(SUCCESSOR_LIMIT, self.exchange(shared, &stream)).await {
                Ok(()) => return stream,
                Err(TakeOverError::Closed) => tracing::debug!("a process connected for a take-over and disconnected"),
                Err(error) => tracing::warn!(%error, "take_over_failed"),
            }
        }
    }

    async fn exchange(&self, shared: &Shared, stream: &UnixStream) -> Result<(), TakeOverError> {
        check_user(stream)?;
        let mut buffer = [0; LONGEST];
        let request = receive(stream, &mut buffer).await?.0;
        if request != REQUEST {
            return refuse(
                stream,
                "the successor uses another version of the take-over protocol",
                TakeOverError::Unexpected,
            )
            .await;
        }
        let orders = shared.orders.borrow().clone();
        if let Some(database) = orders.paused.first() {
            let reason = format!("database \"{database}\" is paused, and a pause cannot be handed over");
            return refuse(stream, &reason, TakeOverError::Refused(reason.clone())).await;
        }
        let predecessors = shared.predecessors.duplicates()?;
        let open = self.sockets.lock().await;
        let open = open.as_ref().ok_or(TakeOverError::Closed)?;
        let handed = self.descriptors(open, &predecessors);
        if handed.len() > MOST_DESCRIPTORS {
            let reason = format!("{} sockets are more than {MOST_DESCRIPTORS}", handed.len());
            return refuse(stream, &reason, TakeOverError::Refused(reason.clone())).await;
        }
        let (descriptors, kinds): (Vec<_>, Vec<_>) = handed.into_iter().unzip();
        send_descriptors(stream, &[&[SOCKETS], kinds.as_slice()].concat(), &descriptors).await?;
        let (ready, _) = receive(stream, &mut buffer).await?;
        let used = ready.strip_prefix(&[READY]).filter(|used| used.len() == kinds.len());
        let used = used.ok_or(TakeOverError::Unexpected)?;
        send_descriptors(stream, RELEASED, &[]).await?;
        for (file, _) in self.files(open).zip(used).filter(|(_, used)| **used == USED) {
            if let Some(file) = file {
                file.disown_file();
            }
        }
        shared.predecessors.clear();
        Ok(())
    }

    /// For each listening socket, in the order in which they are sent, its file.
    fn files<'a>(&'a self, open: &'a OpenSockets) -> impl Iterator<Item = Option<&'a FileListener>> {
        let clients = open.clients().map(ClientListener::file);
        clients.chain(open.http().map(|_| None)).chain([Some(&self.offer)])
    }

    fn descriptors<'a>(&'a self, open: &'a OpenSockets, predecessors: &'a [OwnedFd]) -> Vec<(BorrowedFd<'a>, u8)> {
        let clients = open.clients().map(AsFd::as_fd);
        let sockets = clients.chain(open.http().map(AsFd::as_fd)).chain([self.offer.as_fd()]);
        let kind = |file: Option<&FileListener>| match file {
            Some(file) if file.owns_file() => SOCKET_WITH_FILE,
            _ => SOCKET,
        };
        let kinds = self.files(open).map(kind);
        sockets.zip(kinds).chain(predecessors.iter().map(|it| (it.as_fd(), CONNECTION))).collect()
    }
}

/// Forwards the cancel requests that a successor passes on, until it ends. Cancel-safe.
pub async fn serve_cancels(shared: &Shared, successor: UnixStream) {
    let requests = stream::unfold(successor, |mut successor| async {
        let packet = read_cancel(&mut successor).await.ok()?;
        Some((packet, successor))
    });
    let forward = |packet| async {
        if let Err(error) = cancel(shared, packet, None).await {
            tracing::warn!(%error, "cancel_request_failed");
        }
    };
    requests.for_each_concurrent(CANCELS, forward).await;
}

async fn read_cancel(successor: &mut UnixStream) -> Result<bytes::Bytes, TakeOverError> {
    let mut packet = vec![0; 8];
    successor.read_exact(&mut packet).await?;
    let length = packet_length(&packet).ok().flatten().filter(|length| *length <= LONGEST);
    packet.resize(length.ok_or(TakeOverError::Unexpected)?, 0);
    successor.read_exact(&mut packet[8..]).await?;
    match read(packet.into()) {
        Ok(Packet::CancelRequest(packet)) => Ok(packet),
        _ => Err(TakeOverError::Unexpected),
    }
}

/// The proxy whose sockets this one takes over.
pub struct Predecessor {
    stream: UnixStream,
    /// Number of listening sockets that it has sent.
    sockets: usize,
    /// Its own predecessors.
    earlier: Vec<OwnedFd>,
}

impl Predecessor {
    /// Connects to the proxy that offers its sockets there, if there is one. Cancel-safe.
    ///
    /// # Errors
    /// Another process listens there, or the system's error.
    pub async fn find(path: &Path) -> Result<Option<Self>, TakeOverError> {
        let stream = match timeout(PREDECESSOR_LIMIT, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind()) => {
                return Ok(None);
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(TakeOverError::TimedOut(PREDECESSOR_LIMIT)),
        };
        check_user(&stream)?;
        Ok(Some(Predecessor { stream, sockets: 0, earlier: Vec::new() }))
    }

    /// Requests the listening sockets, steps 1 and 2.
    ///
    /// # Errors
    /// The predecessor continues.
    pub async fn sockets(&mut self) -> Result<Vec<InheritedSocket>, TakeOverError> {
        within(PREDECESSOR_LIMIT, send_descriptors(&self.stream, REQUEST, &[])).await?;
        let mut buffer = [0; LONGEST];
        let (answer, descriptors) = within(PREDECESSOR_LIMIT, receive(&self.stream, &mut buffer)).await?;
        let kinds = match answer {
            [SOCKETS, kinds @ ..] if kinds.len() == descriptors.len() => kinds,
            [REFUSED, reason @ ..] => return Err(TakeOverError::Refused(String::from_utf8_lossy(reason).into_owned())),
            _ => return Err(TakeOverError::Unexpected),
        };
        let mut sockets = Vec::new();
        for (kind, descriptor) in kinds.iter().zip(descriptors) {
            match *kind {
                SOCKET | SOCKET_WITH_FILE if self.earlier.is_empty() => {
                    sockets.push(InheritedSocket::new(descriptor, *kind == SOCKET_WITH_FILE)?);
                }
                CONNECTION if self.earlier.len() < MOST_PREDECESSORS => self.earlier.push(descriptor),
                _ => return Err(TakeOverError::Unexpected),
            }
        }
        self.sockets = sockets.len();
        Ok(sockets)
    }

    /// Reports which sockets this proxy uses, steps 3 and 4. From then on the predecessor accepts no connections.
    ///
    /// # Errors
    /// The predecessor continues.
    pub async fn release(self, used: impl Iterator<Item = bool>, shared: &Shared) -> Result<(), TakeOverError> {
        let used = used.take(self.sockets).map(u8::from).chain(self.earlier.iter().map(|_| USED));
        let ready: Vec<u8> = [READY].into_iter().chain(used).collect();
        within(PREDECESSOR_LIMIT, send_descriptors(&self.stream, &ready, &[])).await?;
        let mut buffer = [0; LONGEST];
        let (answer, _) = within(PREDECESSOR_LIMIT, receive(&self.stream, &mut buffer)).await?;
        if answer != RELEASED {
            return Err(TakeOverError::Unexpected);
        }
        for connection in self.earlier.into_iter().chain([self.stream.into_std()?.into()]) {
            shared.predecessors.add(connection)?;
        }
        Ok(())
    }
}

/// Not cancel-safe: the message is lost.
async fn receive<'a>(
    stream: &UnixStream,
    buffer: &'a mut [u8; LONGEST],
) -> Result<(&'a [u8], Vec<OwnedFd>), TakeOverError> {
    let (length, descriptors) = receive_descriptors(stream, buffer).await?;
    if length == 0 { Err(TakeOverError::Closed) } else { Ok((&buffer[..length], descriptors)) }
}

/// Returns `error` once the successor has the reason.
async fn refuse<T>(stream: &UnixStream, reason: &str, error: TakeOverError) -> Result<T, TakeOverError> {
    let reason = &reason.as_bytes()[..reason.len().min(LONGEST - 1)];
    send_descriptors(stream, &[&[REFUSED], reason].concat(), &[]).await?;
    Err(error)
}

async fn within<T, E: Into<TakeOverError>>(
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, TakeOverError> {
    timeout(limit, step).await.map_err(|_| TakeOverError::TimedOut(limit))?.map_err(Into::into)
}

/// Checks that the other process runs as the same system user, or as root.
fn check_user(stream: &UnixStream) -> Result<(), TakeOverError> {
    let uid = stream.peer_cred()?.uid();
    if uid == 0 || uid == geteuid().as_raw() { Ok(()) } else { Err(TakeOverError::Stranger(uid)) }
}

/// Maximum number of descriptors in a message: the kernel's `SCM_MAX_FD`.
pub const MOST_DESCRIPTORS: usize = 253;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

/// Sends the bytes and the descriptors as one message. Cancel-safe: it is sent completely or not at all.
///
/// # Errors
/// The socket's error, or there are too many descriptors.
async fn send_descriptors(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
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
async fn receive_descriptors(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
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
