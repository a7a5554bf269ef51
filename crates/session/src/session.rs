//! The state of a session: its parts, the buffers of its two sides, how it ends, and its last message to the client.
//!
//! Owns no rule of the parts: the parts own theirs, and `lib.rs` has the order of events.

use super::host::Host;
use super::message::{Message, MessageRoom};
use super::names::Names;
use super::pipeline::Pipeline;
use super::process::Process;
use super::rejection::CutOffOutcome;
use super::settings::Settings;
use super::task::Task;
use super::transaction::Transaction;
use bytes::{Buf, Bytes, BytesMut};
use fencegate_fence::CutOff;
use fencegate_fence::session::Activity;
use fencegate_wire::error::{ErrorText, Severity};
use fencegate_wire::frame::{HEADER, Header, InvalidLength};
use fencegate_wire::message::{self, Status};
use fencegate_wire::tag::backend;
use std::io;
use std::time::Instant;

/// The state of one session.
pub struct Session<H: Host> {
    /// The proxy, as the session queries it.
    pub host: H,
    /// Bytes from and to the client.
    pub client: Side,
    /// Bytes from and to the server.
    pub server: Side,
    pub(super) life: Life,
    pub(super) process: Process,
    pub(super) pipeline: Pipeline,
    pub(super) settings: Settings,
    pub(super) names: Names,
    pub(super) transaction: Transaction,
    pub(super) message: Message,
}

/// The state of the client's side.
#[derive(Debug)]
pub(super) enum Life {
    Open,
    /// The client has sent Terminate.
    Terminating,
    /// The client broke the protocol. The error follows once everything before it is answered.
    Broken(ClientFault),
}

/// The driver's next action.
pub enum Step {
    /// Wait for an event.
    Wait,
    /// Call again: there is more to handle, but other sessions of the thread get a turn first.
    GoOn,
    /// Begin this task, and wait.
    Do(Task),
}

/// How a client broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientFault {
    /// The length of a message is invalid, so the start of the next message is unknown.
    #[error(transparent)]
    Length(#[from] InvalidLength),
    /// The server would accept the message, but the proxy cannot judge it.
    #[error("{0}")]
    Unjudged(&'static str),
    /// No message has this tag.
    #[error("invalid frontend message type {0}")]
    Unknown(u8),
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The client sent Terminate, or closed the connection.
    #[error("client closed the connection")]
    Client,
    /// The client's connection has failed.
    #[error("connection to the client was lost: {0}")]
    ClientLost(io::Error),
    /// The server ended the session with an error, which the client has received.
    #[error("server ended the session")]
    Server,
    /// A newer token ended it.
    #[error("cut off by a newer token for resource {}", .0.resource)]
    CutOff(CutOff),
    /// The client broke the protocol.
    #[error("client broke the protocol: {0}")]
    ClientFault(ClientFault),
    /// The server broke the protocol.
    #[error("server broke the protocol: {0}")]
    ServerFault(String),
    /// The client exceeded `idle_timeout`.
    #[error("idle-session timeout")]
    IdleTimeout,
    /// The proxy stops.
    #[error("the proxy is shutting down")]
    Shutdown,
    /// The server is no longer the primary.
    #[error("another server is the primary")]
    Replaced,
    /// An operator ended it.
    #[error("ended by KILL")]
    Killed,
}

impl<H: Host> Session<H> {
    /// A session whose first ReadyForQuery waits in the client's output.
    pub fn new(host: H, client: Side, server: Side, settings: Settings, now: Instant) -> Self {
        Session {
            client,
            server,
            life: Life::Open,
            process: Process::new(host.fence().clone()),
            host,
            pipeline: Pipeline::new(now),
            settings,
            names: Names::default(),
            transaction: Transaction::default(),
            message: Message::default(),
        }
    }
}

/// Output size, in bytes, from which on no more is added until some of it is written.
pub const HIGH_WATER: usize = 128 * 1024;

/// Maximum room, in bytes, that is reserved at once for messages that are about to be forwarded.
pub(super) const LITTLE: usize = 4 * 1024;

/// From this number of bytes on, the output takes over the memory of the input.
const MUCH: usize = 8 * 1024;

/// The buffers of one side: input from it, output to it, and the rest of the message that is being forwarded from it.
#[derive(Default)]
pub struct Side {
    /// Bytes received and not handled yet.
    pub input: BytesMut,
    /// No more input will arrive.
    pub ended: bool,
    /// Bytes to be written.
    pub output: BytesMut,
    /// Bytes of the current message that are still to come.
    pub(super) rest: usize,
    /// These bytes are discarded.
    pub(super) discard: bool,
}

impl Side {
    /// A side with bytes that were read from it and bytes that are to be written to it.
    pub fn new(input: BytesMut, ended: bool, output: BytesMut) -> Self {
        Side { input, ended, output, rest: 0, discard: false }
    }

    /// The body of a message that has arrived.
    pub(super) fn message_body(&self, header: Header) -> &[u8] {
        &self.input[HEADER..header.frame()]
    }

    /// The received part of the message's body.
    pub(super) fn start_of_body(&self, header: Header) -> &[u8] {
        &self.input[HEADER..self.input.len().min(header.frame())]
    }

    /// Length of this message and of the complete messages behind it with the same tag.
    pub(super) fn run(&self, first: Header) -> usize {
        let mut length = first.frame();
        while let Some(rest) = self.input.get(length..)
            && let Ok(Some(header)) = Header::from_server(rest)
            && header.tag == first.tag
            && header.frame() <= rest.len()
        {
            length += header.frame();
        }
        length
    }

    /// Forwards or discards the received part of the current message. Returns true if the message is complete.
    #[inline(always)]
    pub(super) fn pass_on(&mut self, output: &mut BytesMut) -> bool {
        let bytes = self.rest.min(self.input.len());
        if bytes >= MUCH && output.is_empty() && !self.discard {
            // Takes over the memory without a copy.
            *output = self.input.split_to(bytes);
        } else {
            if !self.discard {
                output.extend_from_slice(&self.input[..bytes]);
            }
            self.input.advance(bytes);
        }
        self.rest -= bytes;
        self.rest == 0
    }
}

pub(super) fn frame_of(side: &mut Side, length: usize) -> Bytes {
    side.input.split_to(length).freeze()
}

impl<H: Host> Session<H> {
    /// Writes the last message to the client, unless another message was partly sent.
    pub fn send_last(&mut self, text: &ErrorText, end: &End) {
        if self.server.rest > 0 && !self.server.discard {
            return;
        }
        text.put(&mut self.client.output, Severity::Fatal);
        if let End::CutOff(_) = end {
            // Some drivers report an error only after its ReadyForQuery.
            message::put_ready(&mut self.client.output, Status::Failed);
        }
    }

    /// The last error of the server, if it has arrived.
    pub fn last_error(&mut self) -> Option<Bytes> {
        let header = Header::from_server(&self.server.input).ok()??;
        let is_error = header.tag == backend::ERROR && self.server.input.len() >= header.frame();
        is_error.then(|| frame_of(&mut self.server, header.frame()))
    }

    /// Returns true if the client waits for an answer.
    pub fn is_in_flight(&self) -> bool {
        !self.pipeline.is_empty() || self.client.rest > 0 || self.pipeline.repetition.is_refused()
    }

    /// A newer token has ended the server process. Returns the outcome of the open transaction.
    pub fn cut_off(&self) -> CutOffOutcome {
        self.process.fence.set_activity(Activity::CutOff);
        if self.is_in_flight() || self.transaction.may_have_committed() {
            CutOffOutcome::Unknown
        } else {
            CutOffOutcome::RolledBack
        }
    }

    /// How the client broke the protocol, if it did.
    pub fn client_fault(&self) -> Option<ClientFault> {
        match &self.life {
            Life::Broken(why) => Some(why.clone()),
            Life::Open | Life::Terminating => None,
        }
    }

    /// Returns true if the server runs a statement for the client.
    pub fn is_busy(&self) -> bool {
        self.process.is_busy()
    }

    /// Drops unhandled client input, and releases its room and permit.
    pub fn release_room(&mut self) {
        self.client.input = BytesMut::new();
        (self.message.room, self.message.text.permit) = (MessageRoom::Unasked, None);
        if self.server.output.is_empty() {
            self.pipeline.release_room();
        }
    }

    /// Sends Terminate to the server, unless another message was partly sent.
    pub fn put_terminate(&mut self) {
        if self.client.rest == 0 {
            message::put_terminate(&mut self.server.output);
        }
    }

    /// Drops forwarded messages that were not sent, while the server is busy with earlier ones. One may have been
    /// partly sent, so nothing can follow. Returns false if nothing was unsent.
    pub fn take_back_unsent(&mut self) -> bool {
        let is_unsent = self.is_busy() && !self.server.output.is_empty();
        if is_unsent {
            self.server.output.clear();
        }
        is_unsent
    }

    /// Returns true if the server may still commit definitions when the session leaves it.
    pub fn defines_after_its_end(&self) -> bool {
        !self.server.ended && self.transaction.may_define()
    }

    /// The server has ended the transaction: its definitions are in the catalog, or never will be.
    pub fn server_gone(&mut self) {
        self.host.catalog_changed();
        self.transaction.definitions_mut().withdraw(&self.host);
    }
}
