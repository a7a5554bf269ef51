//! The state of a session: its parts, the client's side, and how it ends.
//!
//! Owns no rule: the parts own theirs, and `lib.rs` has the order of events.

use super::host::Host;
use super::message::Message;
use super::names::Names;
use super::pipeline::Pipeline;
use super::process::Process;
use super::settings::Settings;
use super::side::Side;
use super::task::Task;
use super::transaction::Transaction;
use fencegate_fence::CutOff;
use fencegate_wire::frame::InvalidLength;
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
    /// Wait until something happens.
    Wait,
    /// Call again: there is more to handle, and other sessions of the thread may want their turn.
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
    /// The server would accept the message, and the proxy cannot judge it.
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
    /// Its server is not the primary anymore.
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
