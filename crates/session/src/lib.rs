//! One session as a state machine. Input: bytes and events. Output: bytes and requests ([`Task`]).
//!
//! Owns the order of messages: forwarded, owed by the server, or held back. Must never
//! - use a socket, a task or a clock;
//! - decode and re-encode a message that it only forwards;
//! - hold a message whole because of its size, unless the message needs a verdict and `room` permits it;
//! - write into the middle of another message.
//!
//! The parts of a session cannot see each other's fields. `Pipeline`: what was forwarded and what the server owes.
//! `Settings` and `Names`: what the server knows by now. `Transaction`: what it may still commit. `Process`: what the
//! fence knows of it. `Message`: the first message that was not forwarded yet. `session` connects them, and this file shows
//! the order of events. `client` and `server` handle the messages of either side, `verdict` decides.
//!
//! The driver (`net`) moves the bytes and performs the tasks. The session queries the proxy through its [`Host`].

mod affected;
mod client;
mod databases;
mod definitions;
mod extended;
mod guard_refusal;
pub mod host;
pub mod judge;
mod message;
mod names;
pub mod parameter;
pub mod path;
mod path_lookup;
pub mod pending_definitions;
mod pipeline;
mod process;
mod question;
mod reject;
pub mod rejection;
mod repetition;
mod server;
mod session;
mod settings;
mod simple;
mod situation;
mod survey;
pub mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod transaction;
mod verdict;
mod wait;

pub use affected::{ReachedObject, reached_object};
pub use host::Host;
pub use session::{ClientFault, End, HIGH_WATER, Session, Side, Step};
pub use settings::Settings;
pub use situation::{Owed, Situation, StageKind};
pub use task::{Done, Task};

use fencegate_fence::session::{Activity, SessionFence};
use fencegate_wire::message::Status;
use message::Stage;
use session::Life;
use std::sync::Arc;
use std::time::Instant;

impl<H: Host> Session<H> {
    /// Handles all input.
    ///
    /// # Errors
    /// When the session is over, as far as it can tell.
    pub fn step(&mut self, now: Instant) -> Result<Step, End> {
        self.process.fence.begin_step();
        self.pipeline.begin_step(now);
        let step = self.handle_input();
        self.process.fence.end_step();
        step
    }

    /// The order of events in a step: new policies, the server's replies, the end of what the message at hand waits for, the
    /// client's messages, the next task.
    fn handle_input(&mut self) -> Result<Step, End> {
        self.adopt_policies()?;
        self.handle_server()?;
        if self.server.ended && self.client.output.len() < HIGH_WATER {
            return Err(End::Server);
        }
        self.take_answer();
        self.handle_timeouts();
        self.end_wait_for_server();
        if self.server.output.len() < HIGH_WATER {
            self.pipeline.release_room();
        }
        let step = self.handle_client().unwrap_or_else(|fault| {
            // Everything before the fault is answered first, as if the client had ended there.
            self.life = Life::Broken(fault);
            self.client.ended = true;
            self.client.input.clear();
            Step::Wait
        });
        self.report_activity();
        match self.process.has_abandoned_admit() {
            true => Ok(step),
            false => Ok(self.message.take_request().map_or(step, Step::Do)),
        }
    }

    fn adopt_policies(&mut self) -> Result<(), End> {
        if self.host.adopt_policies() {
            // Names and settings from the time without fences are unknown.
            self.names.forget();
            self.settings.forget();
            if self.pipeline.is_sync_in_doubt() {
                return Err(End::ClientFault(ClientFault::Unjudged("an earlier Sync within COPY data that failed")));
            }
        }
        Ok(())
    }

    /// Resumes the current message if it waited for the server to owe nothing, which is now so.
    fn end_wait_for_server(&mut self) {
        match self.message.stage() {
            Stage::Settling if self.pipeline.is_empty() || self.pipeline.is_copying_in() => {
                self.message.resume();
                // The next task may query the fence, which must already know that a transaction has ended.
                self.report_activity();
            }
            Stage::Restarting if self.pipeline.is_empty() => self.transaction_restarted(),
            _ => {}
        }
    }

    /// The driver has performed the task.
    pub fn done(&mut self, done: Done) {
        let was_abandoned = matches!(done, Done::Admit(_)) && self.process.end_admit();
        if was_abandoned && !matches!(self.message.stage(), Stage::BehindAdmit) {
            return;
        }
        match self.message.hold.awaits_limit() {
            // The server still owes the answer to a question.
            true => self.message.set_stage(Stage::Settling),
            false => self.message.resume(),
        }
        match done {
            Done::Admit(_) if was_abandoned => {}
            Done::Admit(outcome) if self.pipeline.repetition.waits_for_fence() => {
                self.message.hold.end();
                self.fence_raised(outcome);
            }
            Done::Admit(outcome) => self.message.facts.refused = outcome.err(),
            Done::ParsePermit(permit) => self.message.text.permit = permit,
            Done::Room(room) => self.message.room = room.into(),
            Done::CheckedOwner(foreign) => self.message.facts.foreign_databases = Some(foreign),
            Done::VacatedDatabase => self.message.facts.is_vacated = true,
            Done::Tried => {}
        }
    }

    /// A newer token has revoked an admission.
    pub fn revoked(&mut self) {
        self.process.revoke();
        self.host.release();
    }

    /// State that the fence and the session share.
    pub fn fence(&self) -> &Arc<SessionFence> {
        &self.process.fence
    }

    /// Returns true if a received client message must wait. It waits for the end of a long server message only if the
    /// server owes nothing and the proxy may have to answer: otherwise the server may keep the rest of a long row until
    /// it has read more.
    pub fn is_held_back(&self) -> bool {
        let waits_for_message = self.server.rest > 0 && self.process.is_idle() && !self.client.input.is_empty();
        self.message.is_held() || self.pipeline.is_full() || waits_for_message
    }

    /// Returns true if there may be more to handle once some of the output is written.
    pub fn is_held_up(&self) -> bool {
        let is_full = |side: &Side| side.output.len() >= HIGH_WATER;
        self.pipeline.keeps_room() || is_full(&self.client) || is_full(&self.server)
    }

    /// Returns true if the session has room for a message that has not arrived yet, and must check regularly whether it
    /// may keep the room.
    pub fn keeps_room(&self) -> bool {
        self.message.room.is_granted() && !self.message.is_held()
    }

    /// Maximum number of bytes of the client's input to buffer.
    pub fn room_for_input(&self) -> usize {
        self.message.wanted().max(HIGH_WATER)
    }

    /// Returns true if the client waits for nothing and no transaction is open. An incomplete message does not count.
    pub fn is_idle(&self) -> bool {
        let is_asked = self.message.is_held() || self.is_terminating() || self.client.ended;
        self.process.is_idle() && !is_asked
    }

    /// Returns true if the client has sent Terminate.
    pub fn is_terminating(&self) -> bool {
        matches!(self.life, Life::Terminating)
    }

    /// Reports the server process's activity to the fence when it changes. A query for timeouts does not count: it has
    /// no effect in a transaction, and the Admit under way would take it for a statement.
    fn report_activity(&mut self) {
        if self.message.hold.awaits_limit() {
            return;
        }
        let activity = if !self.pipeline.is_empty() || self.client.rest > 0 {
            Activity::Busy
        } else if self.is_in_transaction() {
            Activity::Waiting
        } else {
            Activity::Idle
        };
        self.process.report(activity, &self.host);
    }

    /// Returns true if a transaction is open, or may be.
    fn is_in_transaction(&self) -> bool {
        self.transaction.status() != Status::Idle || self.pipeline.sent_since().is_some()
    }

    /// Call this before putting bytes into the server's output.
    fn begin_forwarding(&mut self) {
        if self.pipeline.begin_forwarding() {
            self.transaction.begin_forwarding(self.pipeline.now());
        }
        if !self.message.hold.awaits_limit() {
            self.process.begin_forwarding();
        }
    }

    /// Discards facts about the finished message, which do not apply to the next one.
    fn finish_message(&mut self) {
        let room = self.message.finish();
        self.pipeline.keep_room(room);
    }
}

impl<H: Host> Drop for Session<H> {
    /// The session may be dropped before its last transaction has ended.
    fn drop(&mut self) {
        if self.transaction.definitions().are_under_way() {
            self.host.forget_catalog();
            self.transaction.definitions_mut().withdraw(&self.host);
        }
    }
}
