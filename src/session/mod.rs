//! A session's relay: it moves messages between a client and its server connection.
//!
//! Owns the order of everything: what was forwarded, what the server owes, what is held back. Must
//! never decode and re-encode what it only passes on, never hold a message whole because of its
//! size (save those that need a verdict, as far as `room` lets them), and never write into the middle
//! of a message.
//!
//! It takes bytes and events, and gives bytes and a [`Task`]: the sockets are its [`Driver`]'s.

mod client;
pub mod definitions;
mod extended;
pub mod judge;
mod keys;
mod names;
pub mod parameter;
mod parts;
mod question;
mod reject;
pub mod rejection;
mod replies;
mod room;
mod server;
mod simple;
pub mod suspects;
pub mod task;
mod touched;
mod values;
mod verdict;

pub use task::Task;

use crate::fence::session::{Activity, SessionFence};
use crate::fence::{Refusal, Role};
use crate::net::end::End;
use crate::net::peer::HIGH_WATER;
use crate::state::context::{Context, Turn};
use crate::state::downstream::Changes;
use crate::state::room::Room;
use crate::state::sessions::Session;
use crate::statement::{Answer, Lexing};
use crate::wire::frame::InvalidLength;
use crate::wire::message::Status;
use bytes::{Buf, Bytes, BytesMut};
use definitions::Definitions;
use names::Names;
use parameter::Parameter;
use rejection::Rejection;
use replies::Replies;
use std::collections::HashMap;
use std::sync::Arc;
use task::{Done, Wait};
use tokio::time::Instant;

/// How a client broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientFault {
    /// Where the next message begins is not known.
    #[error(transparent)]
    Length(#[from] InvalidLength),
    /// What the server would take, and the proxy cannot judge.
    #[error("{0}")]
    Unjudged(&'static str),
    /// No message has this tag.
    #[error("invalid frontend message type {0}")]
    Unknown(u8),
}

/// The state of one session.
pub struct Relay {
    pub(crate) context: Context,
    /// Who it is.
    pub(crate) about: Arc<Session>,
    /// It takes replication commands beside SQL.
    replicates: bool,
    pub(crate) fence: Arc<SessionFence>,
    pub(crate) client: Side,
    pub(crate) server: Side,
    pub(crate) replies: Replies,
    parameter: Parameter,
    statements: Names,
    portals: Names,
    /// Counts what an error in the extended protocol cannot reach beyond.
    batch: u64,
    lexing: Lexing,
    status: Status,
    /// Bytes were forwarded since the last ReadyForQuery.
    forwarded: bool,
    /// One of them was an Execute, whose implicit transaction lasts up to a Sync.
    executed: bool,
    /// Since then something has completed that may have committed what was written.
    pub(crate) may_have_committed: bool,
    pub(crate) activity: Activity,
    written: HashMap<String, crate::fence::session::Token>,
    wait: Option<Wait>,
    /// What the driver has not seen yet of what is to be done.
    pub(crate) task: Option<Task>,
    /// Why an Admit for the message at hand failed.
    refused: Option<Refusal>,
    /// As whom the message at hand would run, once that was asked for.
    role: Asked<Role>,
    /// The database that the message at hand needs alone was looked after.
    is_alone: bool,
    /// The message at hand is being judged, or what has to be done first for that.
    judged_since: Option<Instant>,
    /// The changes of the catalogue that had been seen when it came, or when what it waited for was there.
    changes: Option<Changes>,
    /// The schema of the session's temporary relations, if the server has said it.
    temporary: Option<Arc<str>>,
    /// The message at hand may be read, though that may take long.
    turn: Option<Turn>,
    /// What the text of the message at hand does, as it was read in this way: it is judged again whenever more is known.
    read: Option<(Lexing, bool, Answer)>,
    /// Room for the message at hand, once that was asked for; nothing in it if it was refused.
    room: Option<Option<Room>>,
    /// Room for what the server has not taken yet.
    leaving: Option<Room>,
    /// A statement of ours is to be closed after the next Sync.
    reject_prepared: bool,
    /// The kind of the message that is being discarded, and why it is rejected.
    discarded: Option<(u8, Rejection)>,
    /// More messages of the client are there, and it is the turn of other sessions of the thread.
    goes_on: bool,
    /// The input from the client has to reach this many bytes for the message at hand.
    pub(crate) wanted: usize,
    /// This transaction changed the catalogue.
    pub(crate) catalogue_changed: bool,
    /// What that may have turned into ways to fenced tables.
    pub(crate) definitions: Definitions,
    /// An admission was taken away, and may still have its row.
    revoked: bool,
    /// The search path, where it was asked for the message at hand.
    path: Option<String>,
    /// What the server answered to our question.
    answer: Option<question::Answer>,
    /// The client has said goodbye.
    pub(crate) terminating: bool,
    /// The client broke the protocol; told when everything before it is answered.
    pub(crate) client_fault: Option<ClientFault>,
    /// The server was asked to answer what it can, because it owes much.
    flushed: bool,
}

/// What the server is asked in the session only where it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked<T> {
    Not,
    Due,
    Answered(T),
}

/// What has come from one side, what is to go there, and the rest of the message that is being passed on from it.
pub struct Side {
    /// Come and not yet handled.
    pub(crate) input: BytesMut,
    /// No more will come.
    pub(crate) ended: bool,
    /// To go there.
    pub(crate) output: BytesMut,
    /// Bytes of the current message that are still to come.
    pub(crate) rest: usize,
    /// They go nowhere.
    pub(crate) discard: bool,
}

impl Side {
    /// Moves what is there of the current message. True when all of it has been moved.
    fn pass_on(&mut self, output: &mut BytesMut) -> bool {
        let bytes = self.rest.min(self.input.len());
        if !self.discard {
            output.extend_from_slice(&self.input[..bytes]);
        }
        self.input.advance(bytes);
        self.rest -= bytes;
        self.rest == 0
    }
}

/// What the handshake found out.
pub struct Started {
    pub session: Arc<Session>,
    pub replicates: bool,
    pub temporary: Option<Arc<str>>,
    pub parameter: Parameter,
    pub lexing: Lexing,
}

impl Relay {
    /// A session whose first ReadyForQuery waits in the client's output.
    pub(crate) fn new(context: Context, client: Side, server: Side, started: Started) -> Self {
        let definitions = context.definitions(started.session.number);
        Relay {
            context,
            fence: started.session.fence.clone(),
            about: started.session,
            replicates: started.replicates,
            client,
            server,
            replies: Replies::default(),
            parameter: started.parameter,
            statements: Names::default(),
            portals: Names::default(),
            batch: 0,
            lexing: started.lexing,
            status: Status::Idle,
            forwarded: false,
            executed: false,
            may_have_committed: false,
            activity: Activity::Idle,
            written: HashMap::new(),
            wait: None,
            task: None,
            refused: None,
            role: Asked::Not,
            is_alone: false,
            judged_since: None,
            changes: None,
            temporary: started.temporary,
            turn: None,
            read: None,
            room: None,
            leaving: None,
            reject_prepared: false,
            discarded: None,
            goes_on: false,
            wanted: 0,
            catalogue_changed: false,
            definitions,
            revoked: false,
            path: None,
            answer: None,
            terminating: false,
            client_fault: None,
            flushed: false,
        }
    }

    /// Handles what has come. True when there is more to handle, and other sessions have their turn first.
    pub(crate) fn step(&mut self) -> Result<bool, End> {
        if self.context.changed() {
            // What was prepared or set while nobody looked is not known.
            self.statements.forget();
            self.portals.forget();
            self.parameter.forget_all();
            if self.replies.is_sync_in_doubt() {
                return Err(End::ClientFault(ClientFault::Unjudged("an earlier Sync within COPY data that failed")));
            }
        }
        self.handle_server()?;
        if self.server.ended && self.client.output.len() < HIGH_WATER {
            return Err(End::Server);
        }
        self.take_answer();
        if self.wait == Some(Wait::Settle) && (self.replies.is_empty() || self.replies.is_copying_in()) {
            self.wait = None;
            // What comes next may ask the fence: it has to know by then that a transaction has ended.
            self.note_activity();
        }
        if self.server.output.len() < HIGH_WATER {
            self.leaving = None;
        }
        if let Err(why) = self.handle_client() {
            // What it asked before is answered first, as if it had ended here.
            self.client_fault = Some(why);
            self.client.ended = true;
            self.client.input.clear();
        }
        self.note_activity();
        Ok(self.goes_on)
    }

    /// The message at hand waits until this is done.
    fn ask_for(&mut self, task: Task) {
        self.task = Some(task);
        self.wait = Some(Wait::Task);
    }

    /// What was asked for is done.
    pub(crate) fn done(&mut self, done: Done) {
        self.wait = None;
        match done {
            Done::Admit(outcome) => self.refused = outcome.err(),
            Done::Turn(turn) => self.turn = turn,
            Done::Room(room) => self.room = Some(room),
            Done::Tried => {}
        }
    }

    /// A newer token has taken an admission away.
    pub(crate) fn revoked(&mut self) {
        self.revoked = true;
        release(&self.context, &self.fence);
    }

    /// A message of the client that is there waits for something. For the end of a long message from the server it waits only
    /// where the proxy may have to answer by itself, and the server owes nothing: one that does owe something may keep the rest
    /// of a long row until it reads more, or the end.
    pub(crate) fn is_held_back(&self) -> bool {
        let waits_for_message =
            self.server.rest > 0 && self.activity == Activity::Idle && !self.client.input.is_empty();
        self.wait.is_some() || self.replies.is_full() || waits_for_message
    }

    /// The room of a message that is not there yet.
    pub(crate) fn room_in_use(&self) -> Option<&Room> {
        self.room.iter().flatten().next().filter(|_| self.wait.is_none())
    }

    /// Nothing was asked for, and no transaction is open. Of a message that has begun, nothing was done.
    pub(crate) fn is_idle(&self) -> bool {
        let is_asked = self.wait.is_some() || self.terminating || self.client.ended;
        self.activity == Activity::Idle && !is_asked
    }

    /// Tells the fence what the server process does, when that changes.
    fn note_activity(&mut self) {
        let activity = if !self.replies.is_empty() || self.client.rest > 0 {
            Activity::Busy
        } else if self.status == Status::Idle && !self.forwarded {
            Activity::Idle
        } else {
            Activity::Waiting
        };
        if activity != self.activity {
            self.activity = activity;
            self.fence.set_activity(activity);
            if self.revoked && activity != Activity::Busy {
                self.revoked = activity != Activity::Idle;
                release(&self.context, &self.fence);
            }
        }
    }

    /// To be called before bytes are given to the server.
    fn note_forwarding(&mut self) {
        self.forwarded = true;
        if self.activity != Activity::Busy {
            self.activity = Activity::Busy;
            self.fence.set_activity(Activity::Busy);
        }
    }

    /// The server has ended the transaction, or the session: what that defined is in the catalogue by now, or never will
    /// be. What was forwarded since and is not answered yet may define more.
    pub(crate) fn definitions_over(&mut self) {
        let is_over = self.server.ended;
        let may_have = is_over && (self.replies.change_catalogue() || !self.definitions.own().is_empty());
        let has_changed = std::mem::take(&mut self.catalogue_changed);
        if may_have || has_changed && !self.definitions.pass_as_harmless() {
            self.context.catalogue_changed();
        }
        if is_over || self.replies.is_empty() && self.client.rest == 0 {
            self.definitions.withdraw();
        }
    }

    /// The message at hand has been dealt with: what was found out for it is not for the next one.
    fn message_done(&mut self) {
        self.refused = None;
        self.role = Asked::Not;
        self.is_alone = false;
        self.path = None;
        self.judged_since = None;
        self.changes = None;
        self.leaving = self.room.take().flatten();
        self.read = None;
    }
}

/// Lets the fence take away admissions that a newer token revoked, so that the process may live.
fn release(context: &Context, fence: &Arc<SessionFence>) {
    let (database, fence) = (context.database().clone(), fence.clone());
    tokio::spawn(async move { database.release(&fence).await });
}

fn server_fault(error: InvalidLength) -> End {
    End::ServerFault(error.to_string())
}

pub(crate) fn frame_of(side: &mut Side, length: usize) -> Bytes {
    side.input.split_to(length).freeze()
}
