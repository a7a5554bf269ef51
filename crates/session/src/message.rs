//! The message at hand: the first message from the client that was not forwarded yet.
//!
//! Owns the stage of that message, the facts that were found out for it, and how long it has waited. Facts of one message never
//! apply to the next.

use super::pending_definitions::Changes;
use super::pipeline::Check;
use super::rejection::Rejection;
use super::task::{ParsePermit, Room, Task};
use fencegate_fence::{FenceError, Role};
use fencegate_statement::{Analysis, Lexing};
use std::collections::HashSet;
use std::time::Instant;

/// The message at hand.
#[derive(Default)]
pub(super) struct Message {
    stage: Stage,
    /// Length that the client's input has to reach, in bytes.
    wanted: usize,
    pub(super) room: MessageRoom,
    pub(super) text: Text,
    pub(super) facts: Facts,
    pub(super) hold: Hold,
    /// Statements of the proxy that the server has to run between those of the message, if it is forwarded.
    pub(super) checks: Vec<Check>,
}

/// Progress of the current message. In every stage but the first and the last it is held back, and no other message of
/// the client is handled.
#[derive(Default)]
pub(super) enum Stage {
    /// Read and judged, as far as it has arrived. It leaves this stage when it is forwarded.
    #[default]
    Reading,
    /// Held until the server owes nothing.
    Settling,
    /// Held until the server answers a question of the proxy.
    Asking(Question),
    /// Held until the driver begins this task.
    Requesting(Box<Task>),
    /// Held until the driver has performed the task.
    Performing,
    /// Held until an abandoned Admit ends.
    BehindAdmit,
    /// Held while a failed transaction is restarted, for a statement that is then resent.
    Restarting,
    /// Rejected: read to its end and forwarded nowhere. Then the server raises the error.
    Discarding { tag: u8, rejection: Box<Rejection> },
}

/// A question of the proxy that the server answers in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The value of the parameter, how text is read, and the search path.
    Settings,
    /// The role that the session acts as.
    Role,
    /// The search path, and the role where it matters.
    Path,
}

/// The room for a message that is held whole.
#[derive(Default)]
pub(super) enum MessageRoom {
    /// None was requested.
    #[default]
    Unasked,
    Granted(Room),
    Refused,
}

impl MessageRoom {
    pub(super) fn is_granted(&self) -> bool {
        matches!(self, MessageRoom::Granted(_))
    }
}

impl From<Option<Room>> for MessageRoom {
    fn from(room: Option<Room>) -> Self {
        room.map_or(MessageRoom::Refused, MessageRoom::Granted)
    }
}

/// The text of the message.
#[derive(Default)]
pub(super) struct Text {
    /// Permit to parse the text although that may take long.
    pub(super) permit: Option<ParsePermit>,
    /// How the text was read, whether with its rows, and the analysis. It is judged again whenever more is known.
    pub(super) read: Option<(Lexing, bool, Analysis)>,
    /// The text has to be read for the rows that it writes.
    pub(super) with_rows: bool,
}

/// Facts known about the message.
#[derive(Default)]
pub(super) struct Facts {
    /// When judging began, or the first task for it.
    pub(super) judged_since: Option<Instant>,
    /// The catalog changes seen when the message arrived, or when it was last held back.
    pub(super) changes: Option<Changes>,
    /// The role that it would run as.
    pub(super) role: ServerFact<Role>,
    /// The schemas of the search path.
    pub(super) path: Option<String>,
    /// The databases, among those that must have no other connections, that its role may not drop, rename or move.
    pub(super) foreign_databases: Option<HashSet<String>>,
    /// Set when the control connections to the database that it needs alone are closed.
    pub(super) is_vacated: bool,
    /// Why an Admit for it has failed.
    pub(super) refused: Option<FenceError>,
    /// The server's answer to the current question, so far.
    pub(super) answer: ResultColumns,
}

/// A fact that the session queries from the server only when needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ServerFact<T> {
    #[default]
    NotQueried,
    Due,
    Known(T),
}

/// The columns of all answers to a question.
pub(super) type ResultColumns = Vec<Option<String>>;

/// How long the current message has waited for tasks, and how long it may.
#[derive(Default)]
pub(super) struct Hold {
    /// Since when the message has waited.
    pub(super) since: Option<Instant>,
    /// A Flush was sent so that the server answers the earlier messages.
    pub(super) flushed: bool,
    /// The first server timeout that would end the session while the message waits.
    pub(super) limit: ServerFact<Option<Limit>>,
}

/// When to abandon the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) at: Instant,
    /// The timeout that would end the session.
    pub(super) setting: &'static str,
    /// Its value, as the server reports it.
    pub(super) value: String,
}

impl Hold {
    /// The message waits, for the first time or for another task.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        if self.limit == ServerFact::Known(None) {
            self.limit = ServerFact::NotQueried;
        }
    }

    /// The message no longer waits.
    pub(super) fn end(&mut self) {
        (self.since, self.limit) = (None, ServerFact::NotQueried);
    }

    /// Returns true while the server owes the values of the timeouts.
    pub(super) fn awaits_limit(&self) -> bool {
        self.limit == ServerFact::Due
    }

    /// Returns true if the session has not queried the timeouts for this message.
    pub(super) fn is_short(&self) -> bool {
        self.limit == ServerFact::NotQueried
    }
}

/// The fate of the message at hand.
pub(super) enum Verdict {
    Forward,
    Reject(usize, Rejection),
    Hold,
}

impl Message {
    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Returns true while the message is held back: the session handles no message of the client.
    pub(super) fn is_held(&self) -> bool {
        !matches!(self.stage, Stage::Reading | Stage::Discarding { .. })
    }

    /// Returns true while a task is performed, or an abandoned Admit has not ended.
    pub(super) fn waits_for_task(&self) -> bool {
        matches!(self.stage, Stage::Performing | Stage::BehindAdmit)
    }

    pub(super) fn asks(&self) -> Option<Question> {
        match self.stage {
            Stage::Asking(question) => Some(question),
            _ => None,
        }
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// The message is read and judged again.
    pub(super) fn resume(&mut self) {
        self.stage = Stage::Reading;
    }

    /// The driver begins the requested task, if there is one.
    pub(super) fn take_request(&mut self) -> Option<Task> {
        if !matches!(self.stage, Stage::Requesting(_)) {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Performing) {
            Stage::Requesting(task) => Some(*task),
            _ => None,
        }
    }

    /// The rejected message has been read to its end.
    pub(super) fn take_discarded(&mut self) -> Option<(u8, Rejection)> {
        if !matches!(self.stage, Stage::Discarding { .. }) {
            return None;
        }
        match std::mem::take(&mut self.stage) {
            Stage::Discarding { tag, rejection } => Some((tag, *rejection)),
            _ => None,
        }
    }

    /// Length that the client's input has to reach, in bytes.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// The client's input has to reach this length.
    pub(super) fn want(&mut self, bytes: usize) {
        self.wanted = bytes;
    }

    /// The message has been dealt with. Returns the room that it was granted.
    pub(super) fn finish(&mut self) -> Option<Room> {
        // Most messages were not held back.
        if self.is_as_new() {
            (self.wanted, self.text.read) = (0, None);
            return None;
        }
        self.finish_held()
    }

    #[cold]
    fn finish_held(&mut self) -> Option<Room> {
        match std::mem::take(self).room {
            MessageRoom::Granted(room) => Some(room),
            MessageRoom::Unasked | MessageRoom::Refused => None,
        }
    }

    /// Returns true if the session has read only the length and the text of the message.
    fn is_as_new(&self) -> bool {
        let Message {
            stage: Stage::Reading,
            wanted: _,
            room: MessageRoom::Unasked,
            text: Text { permit: None, read: _, with_rows: false },
            facts:
                Facts {
                    judged_since: None,
                    changes: None,
                    role: ServerFact::NotQueried,
                    path: None,
                    foreign_databases: None,
                    is_vacated: false,
                    refused: None,
                    answer,
                },
            hold: Hold { since: None, flushed: false, limit: ServerFact::NotQueried },
            checks,
        } = self
        else {
            return false;
        };
        answer.is_empty() && checks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_held_between_its_first_and_last_stage() {
        let mut message = Message::default();
        assert!(!message.is_held());
        for stage in [
            Stage::Settling,
            Stage::Asking(Question::Role),
            Stage::Requesting(Box::new(Task::ParsePermit { out_of_process: false })),
            Stage::Performing,
            Stage::BehindAdmit,
            Stage::Restarting,
        ] {
            message.set_stage(stage);
            assert!(message.is_held());
        }
        message.resume();
        assert!(!message.is_held());
    }

    #[test]
    fn a_requested_task_starts_once() {
        let mut message = Message::default();
        assert!(message.take_request().is_none());
        message.set_stage(Stage::Requesting(Box::new(Task::ParsePermit { out_of_process: false })));
        assert!(message.take_request().is_some() && message.waits_for_task());
        assert!(message.take_request().is_none() && message.waits_for_task());
    }

    #[test]
    fn finish_resets_the_message() {
        let mut message = Message::default();
        message.facts.role = ServerFact::Due;
        message.text.with_rows = true;
        message.want(100);
        assert!(message.finish().is_none());
        assert!(message.facts.role == ServerFact::NotQueried && !message.text.with_rows && message.wanted() == 0);
        message.want(100);
        assert!(message.finish().is_none() && message.wanted() == 0, "no fact was recorded");
    }
}
