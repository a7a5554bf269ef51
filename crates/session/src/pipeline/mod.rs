//! The messages that were forwarded to the server, and the replies that it owes: one entry for each forwarded message that
//! the server will answer, in order. Protocol: chapter "Frontend/Backend Protocol", sections "Message Flow", "Extended
//! Query" and "COPY Operations".
//!
//! Owns the rules by which replies, errors and COPY remove entries, and the proxy's own statements among the client's.
//! Must never count a message as answered before the server has answered it: "nothing is owed" means that no statement is
//! running.

mod copy;
mod own;
pub mod request;

pub(super) use own::{
    Check, UnreadVerdict, checks, is_own, is_raised, pieces, raising_statement, rollback, with_checks,
};
pub(crate) use request::Effects;
pub use request::{Audience, Defined, Request};

use super::repetition::Repetition;
use super::task::Room;
use copy::CopyIn;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of entries at which the proxy stops reading messages from the client.
const MAX_ENTRIES: usize = 10_000;

/// Memory that the statements of all entries may hold until then, in bytes.
const MAX_WEIGHT: usize = 8 << 20;

/// One forwarded message that the server will answer.
#[derive(Debug)]
pub struct Reply {
    /// The forwarded message.
    pub to: Request,
    /// Receiver of the answer.
    pub audience: Audience,
    /// Its possible effects.
    effects: Effects,
    /// Memory that its statements hold, in bytes.
    weight: usize,
}

/// The forwarded messages of one session.
pub struct Pipeline {
    queue: VecDeque<Reply>,
    owed: Owed,
    copy: CopyIn,
    /// The server skips messages up to a Sync that has not been sent yet.
    skipping: bool,
    /// Set while a policy concerns the next entry: possibly only the catalog shows this.
    next_is_fenced: bool,
    unreported: Unreported,
    /// Number of the current batch. An error in the extended protocol skips the rest of its batch only.
    batch: u64,
    part: Part,
    /// When the first message since the last ReadyForQuery was forwarded; `None` if none was.
    sent_since: Option<Instant>,
    /// Time of the last step.
    now: Instant,
    /// Set once a Flush was sent because the queue is full.
    flush_sent: bool,
    /// Set while a prepared statement of the proxy must be closed after the next Sync.
    rejection_prepared: bool,
    pub(super) repetition: Repetition,
    /// The verdict on a forwarded text that the proxy could not read.
    pub(super) unread: Option<UnreadVerdict>,
    /// Room of a forwarded message that has not been written to the server yet.
    unwritten: Option<Room>,
}

/// The effects of all entries of the queue, together.
#[derive(Debug, Default)]
struct Owed {
    /// Number of entries that may have each effect.
    counts: [usize; Effects::COUNT],
    /// Memory that the statements of all entries hold, in bytes.
    weight: usize,
}

impl Owed {
    fn add(&mut self, effects: Effects, weight: usize) {
        effects.places().for_each(|place| self.counts[place] += 1);
        self.weight += weight;
    }

    fn remove(&mut self, effects: Effects, weight: usize) {
        effects.places().for_each(|place| self.counts[place] -= 1);
        self.weight -= weight;
    }

    /// Returns true if an entry may have one of these effects.
    fn has(&self, effects: Effects) -> bool {
        effects.places().any(|place| self.counts[place] > 0)
    }
}

/// Settings that may have changed since the server last reported them.
#[derive(Debug, Default)]
struct Unreported {
    /// The open transaction may have set anything, which its end or an error may undo.
    transaction: bool,
    /// Statements that may change how text is read have completed. The server reports the change with ReadyForQuery.
    lexing: bool,
    /// Code has run since the server reported its search path: any code may set it.
    path: bool,
    /// Code has run since the last ReadyForQuery. The end of an implicit transaction runs deferred code.
    code_ran: bool,
}

/// The part of a pipeline that a Sync ends: its implicit transaction, and the portals in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// No portal. Prepared statements outlive the Sync.
    #[default]
    Empty,
    /// Portals that were not executed.
    Bound,
    /// An Execute. After it, the server runs no statement that must be alone in its transaction.
    Executed,
}

impl Pipeline {
    pub fn new(now: Instant) -> Self {
        Pipeline {
            queue: VecDeque::new(),
            owed: Owed::default(),
            copy: CopyIn::default(),
            skipping: false,
            next_is_fenced: false,
            unreported: Unreported::default(),
            batch: 0,
            part: Part::default(),
            sent_since: None,
            now,
            flush_sent: false,
            rejection_prepared: false,
            repetition: Repetition::default(),
            unread: None,
            unwritten: None,
        }
    }

    /// A policy concerns the next forwarded message: see [`Effects::FENCED`].
    pub fn note_fenced(&mut self) {
        self.next_is_fenced = true;
    }

    /// Records a forwarded message.
    pub fn push(&mut self, to: Request, audience: Audience) {
        let is_fenced = std::mem::take(&mut self.next_is_fenced);
        if !self.copy.takes(&to) {
            return;
        }
        if self.skipping {
            match to {
                Request::Sync => self.skipping = false,
                _ => return,
            }
        }
        let is_more_data =
            || matches!((&to, self.queue.back()), (Request::CopyData, Some(Reply { to: Request::CopyData, .. })));
        if to.is_copy() && (self.queue.is_empty() || is_more_data()) {
            return;
        }
        if self.flush_sent {
            self.flush_sent = self.is_full();
        }
        let effects = to.effects().with(Effects::FENCED, is_fenced).with(Effects::REJECTS, audience.is_rejection());
        let weight = to.weight();
        self.unreported.transaction |= effects.has(Effects::LEXING);
        self.owed.add(effects, weight);
        self.queue.push_back(Reply { to, audience, effects, weight });
    }

    /// Returns true if the server owes nothing.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if the server owes as much as it may.
    pub fn is_full(&self) -> bool {
        self.queue.len() >= MAX_ENTRIES || self.owed.weight >= MAX_WEIGHT
    }

    /// Returns true if the server ignores everything up to the next Sync.
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// Skips the client's messages up to its next Sync. The server would skip them, but a Sync of the proxy ended the
    /// pipeline.
    pub fn skip_to_sync(&mut self) {
        self.skipping = true;
    }

    /// Returns true if the server will not answer the last forwarded message before a Sync or Flush follows.
    pub fn needs_flush(&self) -> bool {
        let answered = self.queue.iter().rev().find(|reply| !reply.to.is_copy());
        answered.is_some_and(|reply| reply.to.is_extended())
    }

    /// The entry that the next reply answers. Parts of a COPY are never at the front.
    pub fn front(&mut self) -> Option<&mut Reply> {
        self.queue.front_mut()
    }

    /// Receiver of the next message from the server.
    pub fn audience(&mut self) -> Audience {
        self.front().map_or(Audience::Client, |reply| reply.audience.clone())
    }

    /// Removes the entry whose reply is complete.
    pub fn pop(&mut self) -> Option<Reply> {
        let reply = self.queue.front()?;
        self.owed.remove(reply.effects, reply.weight);
        let runs_code = reply.effects.has(Effects::LEXING);
        // A literal is read by its type's input function. For arrays or rows of domains, that runs the domains' checks.
        self.unreported.code_ran |= runs_code || matches!(reply.to, Request::Parse { .. });
        self.unreported.path |= runs_code;
        self.unreported.lexing |= runs_code;
        if matches!(reply.to, Request::Query { .. } | Request::Sync | Request::FunctionCall) {
            self.unreported.lexing = false;
            self.unreported.path |= std::mem::take(&mut self.unreported.code_ran);
        }
        let answered = self.queue.pop_front();
        while self.queue.front().is_some_and(|reply| reply.to.is_copy()) {
            self.queue.pop_front();
        }
        answered
    }

    /// Returns true if an entry may change `lease.fence`.
    pub fn may_change_parameter(&self) -> bool {
        self.owed.has(Effects::PARAMETER)
    }

    /// Returns true if a policy concerns an entry: see [`Effects::FENCED`].
    pub fn writes_fenced(&self) -> bool {
        self.owed.has(Effects::FENCED)
    }

    /// Returns true if an entry replaces a rejected message: the server skips later messages of the same pipeline.
    pub fn holds_rejection(&self) -> bool {
        self.owed.has(Effects::REJECTS)
    }

    /// Returns true if an entry may change the catalog.
    pub fn may_change_catalog(&self) -> bool {
        self.owed.has(Effects::CATALOG)
    }

    /// Returns true if an entry, or a statement whose effect is not reported yet, may change how text is read.
    fn lexing_in_doubt(&self) -> bool {
        self.may_change_settings() || self.unreported.lexing
    }

    /// Returns true if an entry may change a setting, or undo a change, before the server reads the next message.
    fn may_change_settings(&self) -> bool {
        self.owed.has(Effects::LEXING) || self.unreported.transaction && self.owed.has(Effects::UNDOES)
    }

    /// Returns true if pending effects of forwarded messages may change how the bytes are read.
    pub fn leaves_in_doubt(&self, text: &[u8]) -> bool {
        self.lexing_in_doubt() && text.iter().any(|byte| *byte == b'\\' || !byte.is_ascii())
    }

    /// The server has answered a query for how text is read.
    pub fn lexing_reported(&mut self) {
        self.unreported.lexing = false;
    }

    /// Returns true if an entry, or code that ran since the server reported its search path, may have set the path.
    pub fn path_in_doubt(&self) -> bool {
        self.may_change_settings() || self.unreported.path
    }

    /// The server has reported its search path after everything that it has answered.
    pub fn path_reported(&mut self) {
        self.unreported.path = false;
    }

    /// The server reports an error. Removes and returns the entries that the server will not answer anymore.
    pub fn error(&mut self) -> Vec<Reply> {
        self.copy.fail();
        if !self.front().is_some_and(|reply| reply.to.is_extended()) {
            return Vec::new();
        }
        // Statements before the error may have committed, or were rolled back.
        (self.unreported.path, self.unreported.code_ran, self.unreported.lexing) = (true, true, true);
        let sync = self.queue.iter().position(|reply| matches!(reply.to, Request::Sync));
        self.skipping = sync.is_none();
        let skipped: Vec<Reply> = self.queue.drain(..sync.unwrap_or(self.queue.len())).collect();
        skipped.iter().for_each(|reply| self.owed.remove(reply.effects, reply.weight));
        skipped
    }

    /// Number of the current batch.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// A message begins a new batch: an error in the current one does not skip it.
    pub fn begin_batch(&mut self) {
        self.batch += 1;
    }

    /// The part of the pipeline since the last Sync.
    pub fn part(&self) -> Part {
        self.part
    }

    /// A message of the client with this tag is forwarded.
    pub fn note_part(&mut self, to: Option<&Request>) {
        match to {
            Some(Request::Sync) => self.part = Part::Empty,
            Some(Request::Bind { .. }) => self.part = Part::Bound.max(self.part),
            Some(Request::Execute { .. }) => self.part = Part::Executed,
            _ => {}
        }
    }

    /// A step begins.
    pub fn begin_step(&mut self, now: Instant) {
        self.now = now;
    }

    /// Time of the last step.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Bytes are about to be sent to the server. Returns true if they are the first since the last ReadyForQuery.
    pub fn begin_forwarding(&mut self) -> bool {
        let is_first = self.sent_since.is_none();
        self.sent_since.get_or_insert(self.now);
        is_first
    }

    /// When the first message since the last ReadyForQuery was forwarded; `None` if none was.
    pub fn sent_since(&self) -> Option<Instant> {
        self.sent_since
    }

    /// The server has answered everything that was forwarded. `in_transaction`: a transaction is open.
    pub fn all_answered(&mut self, in_transaction: bool) {
        self.sent_since = None;
        self.unreported.transaction &= in_transaction;
    }

    /// Keeps the room of a forwarded message until the message is written to the server.
    pub fn keep_room(&mut self, room: Option<Room>) {
        self.unwritten = room;
    }

    /// The server's output is no longer full.
    pub fn release_room(&mut self) {
        self.unwritten = None;
    }

    /// Returns true while a message with room of its own waits to be written to the server.
    pub fn keeps_room(&self) -> bool {
        self.unwritten.is_some()
    }
}

#[cfg(test)]
mod tests;
