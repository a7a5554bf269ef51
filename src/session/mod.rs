//! One session as a state machine: bytes and events in, bytes and requests out.
//!
//! Owns the order of everything: what was forwarded, what the server owes, what is held back. Must never touch a socket, a
//! task or a clock; never decode and re-encode what it only passes on; never hold a message whole because of its size (save
//! those that need a verdict, as far as `room` lets them); and never write into the middle of a message.
//!
//! The driver (`net`) moves the bytes and does what the session asks for ([`Task`]). All that the session has to know of the
//! proxy it asks its [`Host`].

mod checks;
mod client;
mod definitions;
mod end;
mod extended;
mod held;
pub mod host;
pub mod judge;
mod keys;
mod names;
pub mod parameter;
mod parts;
pub mod path;
mod pending;
mod question;
mod raised;
mod reject;
pub mod rejection;
mod replies;
mod request;
mod room;
mod server;
mod simple;
pub mod suspects;
pub mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod touched;
mod transaction;
mod unseen;
mod values;
mod verdict;

pub use end::{ClientFault, End};
pub use host::Host;
pub use task::{Done, Task};
pub use touched::{ComesTo, comes_to};

use crate::fence::session::{Activity, SessionFence};
use crate::statement::Lexing;
use crate::wire::frame::InvalidLength;
use crate::wire::message::Status;
use bytes::{Buf, Bytes, BytesMut};
use definitions::Definitions;
use held::Admit;
use names::Names;
use parameter::Parameter;
use path::Path;
use pending::{Asked, Pending, Wait};
use reject::Unread;
use rejection::Rejection;
use replies::Replies;
use std::sync::Arc;
use std::time::Instant;
use task::Room;
use transaction::{Sent, Transaction};
use unseen::{Single, Unseen};

/// An output of this many bytes or more takes no more until some of it is written.
pub const HIGH_WATER: usize = 128 * 1024;

/// Room for this many bytes at most is made at once for messages that are about to be passed on.
const LITTLE: usize = 4 * 1024;

/// The state of one session.
pub struct Session<H: Host> {
    pub host: H,
    /// It takes replication commands beside SQL.
    replicates: bool,
    /// The schema of the session's temporary relations, if the server has said it.
    temporary: Option<Arc<str>>,
    pub fence: Arc<SessionFence>,
    pub client: Side,
    pub server: Side,
    life: Life,
    /// As of the last step.
    now: Instant,
    replies: Replies,
    parameter: Parameter,
    path: Path,
    lexing: Lexing,
    statements: Names,
    portals: Names,
    /// Number of the current batch: an error in the extended protocol skips to its end, and not beyond.
    batch: u64,
    transaction: Transaction,
    /// What the transaction has changed in the catalogue.
    definitions: Definitions,
    /// As last reported to the fence.
    activity: Activity,
    /// An admission was revoked, and may still have its row.
    revoked: bool,
    pending: Pending,
    /// What the current message waits for.
    wait: Option<Wait>,
    /// The Admit that is under way.
    admit: Option<Admit>,
    /// The room of a message that is forwarded, and not yet written to the server.
    leaving: Option<Room>,
    /// The kind of the message that is being discarded, and why it is rejected.
    discarded: Option<(u8, Rejection)>,
    /// What is to be told of a text that the proxy cannot read, once the server has found no mistake in it.
    unread: Option<Unread>,
    /// What may be sent again, should only the guard know what it writes.
    single: Single,
    /// What the guard has refused, and the client has not been told yet.
    unseen: Option<Unseen>,
    /// A statement of ours is to be closed after the next Sync.
    reject_prepared: bool,
    /// The server was asked to answer what it can, because it owes much.
    flushed: bool,
}

/// The state of the client's side.
#[derive(Debug)]
enum Life {
    Open,
    /// It has said goodbye.
    Terminating,
    /// It broke the protocol. The error follows once everything before it is answered.
    Broken(ClientFault),
}

/// The buffers of one side: input from it, output to it, and the rest of the message that is being passed on from it.
#[derive(Default)]
pub struct Side {
    /// Received, and not handled yet.
    pub input: BytesMut,
    /// No more will come.
    pub ended: bool,
    /// To be written to it.
    pub output: BytesMut,
    /// Bytes of the current message that are still to come.
    rest: usize,
    /// They are discarded.
    discard: bool,
}

/// What the driver has to do next.
pub enum Step {
    /// Wait until something happens.
    Wait,
    /// Call again: there is more to handle, and other sessions of the thread may want their turn.
    GoOn,
    /// Begin this, and wait.
    Do(Task),
}

/// What the handshake has found out about the server's side.
pub struct Started {
    pub replicates: bool,
    pub temporary: Option<Arc<str>>,
    pub parameter: Parameter,
    pub path: Path,
    pub lexing: Lexing,
}

impl Side {
    /// With what has been read from it, and what is to be written to it.
    pub fn new(input: BytesMut, ended: bool, output: BytesMut) -> Self {
        Side { input, ended, output, rest: 0, discard: false }
    }

    /// Moves what has arrived of the current message. True when all of it has been moved.
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

impl<H: Host> Session<H> {
    /// A session whose first ReadyForQuery waits in the client's output.
    pub fn new(host: H, client: Side, server: Side, started: Started, now: Instant) -> Self {
        let Started { replicates, temporary, parameter, path, lexing } = started;
        Session {
            replicates,
            temporary,
            fence: host.fence().clone(),
            host,
            client,
            server,
            life: Life::Open,
            now,
            replies: Replies::default(),
            parameter,
            path,
            lexing,
            statements: Names::default(),
            portals: Names::default(),
            batch: 0,
            transaction: Transaction::default(),
            definitions: Definitions::default(),
            activity: Activity::Idle,
            revoked: false,
            pending: Pending::default(),
            wait: None,
            admit: None,
            leaving: None,
            discarded: None,
            unread: None,
            single: Single::default(),
            unseen: None,
            reject_prepared: false,
            flushed: false,
        }
    }

    /// Handles what has come.
    ///
    /// # Errors
    /// When the session is over, as far as it can tell.
    pub fn step(&mut self, now: Instant) -> Result<Step, End> {
        self.fence.begin_step();
        let step = self.handle(now);
        self.fence.end_step();
        step
    }

    fn handle(&mut self, now: Instant) -> Result<Step, End> {
        self.now = now;
        if self.host.take_up_policies() {
            // Names and settings from the time without fences are unknown.
            self.statements.forget();
            self.portals.forget();
            self.parameter.forget_all();
            self.path.forget();
            if self.replies.is_sync_in_doubt() {
                return Err(End::ClientFault(ClientFault::Unjudged("an earlier Sync within COPY data that failed")));
            }
        }
        self.handle_server()?;
        if self.server.ended && self.client.output.len() < HIGH_WATER {
            return Err(End::Server);
        }
        self.take_answer();
        self.look_after_held();
        if matches!(self.wait, Some(Wait::Settle)) && (self.replies.is_empty() || self.replies.is_copying_in()) {
            self.wait = None;
            // What comes next may ask the fence: it has to know by then that a transaction has ended.
            self.note_activity();
        }
        if matches!(self.wait, Some(Wait::Begin)) && self.replies.is_empty() {
            self.begun_anew();
        }
        if self.server.output.len() < HIGH_WATER {
            self.leaving = None;
        }
        let step = self.handle_client().unwrap_or_else(|why| {
            // What it asked before is answered first, as if it had ended here.
            self.life = Life::Broken(why);
            self.client.ended = true;
            self.client.input.clear();
            Step::Wait
        });
        self.note_activity();
        Ok(match self.wait.take() {
            Some(Wait::Ask(task)) if !self.has_given_up() => {
                self.wait = Some(Wait::Task);
                Step::Do(task)
            }
            wait => {
                self.wait = wait;
                step
            }
        })
    }

    /// The task that the session asked for is done.
    pub fn done(&mut self, done: Done) {
        let was_given_up = matches!(done, Done::Admit(_)) && self.admit_ended();
        if was_given_up && !matches!(self.wait, Some(Wait::GivenUp)) {
            return;
        }
        // The server still owes the answer to a question of ours.
        self.wait = (self.pending.limit == Asked::Due).then_some(Wait::Settle);
        match done {
            Done::Admit(_) if was_given_up => {}
            Done::Admit(outcome) if self.unseen.as_ref().is_some_and(Unseen::waits) => {
                self.end_hold();
                self.fence_raised(outcome);
            }
            Done::Admit(outcome) => self.pending.refused = outcome.err(),
            Done::ParsePermit(permit) => self.pending.permit = permit,
            Done::Room(room) => self.pending.room = Some(room),
            Done::LeftAlone(is_permitted) => self.pending.alone = Some(is_permitted),
            Done::Tried => {}
        }
    }

    /// A newer token has taken an admission away.
    pub fn revoked(&mut self) {
        self.revoked = true;
        self.host.release();
    }

    /// A message of the client that has arrived waits for something. For the end of a long message from the server it waits
    /// only where the proxy may have to answer by itself, and the server owes nothing: one that does owe something may keep
    /// the rest of a long row until it reads more, or the end.
    pub fn is_held_back(&self) -> bool {
        let waits_for_message =
            self.server.rest > 0 && self.activity == Activity::Idle && !self.client.input.is_empty();
        self.wait.is_some() || self.replies.is_full() || waits_for_message
    }

    /// Once some of the output is written, there may be more to handle.
    pub fn is_held_up(&self) -> bool {
        self.leaving.is_some() || self.client.output.len() >= HIGH_WATER || self.server.output.len() >= HIGH_WATER
    }

    /// It has room for a message that is not there yet, and looks now and then whether it may keep it.
    pub fn keeps_room(&self) -> bool {
        matches!(self.pending.room, Some(Some(_))) && self.wait.is_none()
    }

    /// The bytes of the client's input that are wanted at once.
    pub fn room_for_input(&self) -> usize {
        self.pending.wanted.max(HIGH_WATER)
    }

    /// Nothing was asked for, and no transaction is open. Of a message that has begun, nothing was done.
    pub fn is_idle(&self) -> bool {
        let is_asked = self.wait.is_some() || self.is_terminating() || self.client.ended;
        self.activity == Activity::Idle && !is_asked
    }

    /// The client has said goodbye.
    pub fn is_terminating(&self) -> bool {
        matches!(self.life, Life::Terminating)
    }

    /// The current message waits until this is done.
    fn ask_for(&mut self, task: Task) {
        self.begin_hold(&task);
        self.wait = Some(Wait::Ask(task));
    }

    /// Tells the fence what the server process does, when that changes.
    fn note_activity(&mut self) {
        let activity = if !self.replies.is_empty() || self.client.rest > 0 {
            Activity::Busy
        } else if self.transaction.status == Status::Idle && self.transaction.sent == Sent::Nothing {
            Activity::Idle
        } else {
            Activity::Waiting
        };
        if activity != self.activity {
            self.activity = activity;
            self.fence.set_activity(activity);
            if self.revoked && activity != Activity::Busy {
                self.revoked = activity != Activity::Idle;
                self.host.release();
            }
        }
    }

    /// To be called before bytes are given to the server.
    fn note_forwarding(&mut self) {
        if self.transaction.sent == Sent::Nothing {
            self.transaction.sent_since = Some(self.now);
            if self.transaction.status == Status::Idle {
                self.transaction.began = Some(self.now);
            }
        }
        self.transaction.sent = self.transaction.sent.max(Sent::Messages);
        if self.activity != Activity::Busy {
            self.activity = Activity::Busy;
            self.fence.set_activity(Activity::Busy);
        }
    }

    /// The server has ended the transaction, or the session: what that defined is in the catalogue by now, or never will
    /// be. What was forwarded since and is not answered yet may define more.
    pub fn definitions_over(&mut self) {
        let is_over = self.server.ended;
        let may_have = is_over && (self.replies.change_catalogue() || !self.definitions.own().is_empty());
        let has_changed = std::mem::take(&mut self.transaction.catalogue_changed);
        if may_have || has_changed && !self.definitions.pass_as_harmless(&self.host) {
            self.host.catalogue_changed();
        }
        if is_over || self.replies.is_empty() && self.client.rest == 0 {
            self.definitions.withdraw(&self.host);
        }
    }

    /// The current message has been dealt with: what was found out for it does not apply to the next one.
    fn message_done(&mut self) {
        self.leaving = std::mem::take(&mut self.pending).room.flatten();
    }
}

impl<H: Host> Drop for Session<H> {
    /// Of a session that could not see its last transaction end.
    fn drop(&mut self) {
        if self.definitions.are_under_way() {
            self.host.forget_catalogue();
            self.definitions.withdraw(&self.host);
        }
    }
}

fn server_fault(error: InvalidLength) -> End {
    End::ServerFault(error.to_string())
}

fn frame_of(side: &mut Side, length: usize) -> Bytes {
    side.input.split_to(length).freeze()
}
