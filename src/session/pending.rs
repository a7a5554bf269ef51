//! The message at hand: the first one of the client that was not forwarded yet.

use super::host::Changes;
use super::question;
use super::task::{Room, Task, Turn};
use crate::fence::{Refusal, Role};
use crate::statement::{Analysis, Lexing};
use std::time::Instant;

/// What was found out for the message at hand: the first one of the client that was not forwarded yet.
#[derive(Default)]
pub(super) struct Pending {
    /// The input from the client has to reach this many bytes.
    pub(super) wanted: usize,
    /// Room for it, once that was asked for; nothing in it if it was refused.
    pub(super) room: Option<Option<Room>>,
    /// It may be read, though that may take long.
    pub(super) turn: Option<Turn>,
    /// What its text does, as it was read in this way: it is judged again whenever more is known.
    pub(super) read: Option<(Lexing, bool, Analysis)>,
    /// Since when it has been judged, or what has to be done first for that.
    pub(super) since: Option<Instant>,
    /// The changes of the catalogue that had been seen when it came, or when what it waited for was there.
    pub(super) changes: Option<Changes>,
    /// As whom it would run, once that was asked for.
    pub(super) role: Asked<Role>,
    /// The search path, where it was asked for.
    pub(super) path: Option<String>,
    /// What the server answered to our question so far.
    pub(super) answer: Option<question::ResultColumns>,
    /// The database that it needs alone was looked after.
    pub(super) is_alone: bool,
    /// Why an Admit for it failed.
    pub(super) refused: Option<Refusal>,
}

/// What the server is asked in the session only where it is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Asked<T> {
    #[default]
    Not,
    Due,
    Answered(T),
}

/// What the message at hand waits for.
pub(super) enum Wait {
    /// The server owes nothing any more.
    Settle,
    /// The answer to our question: the value of the parameter.
    Value,
    /// The same: as whom the session acts.
    Role,
    /// The driver is to do this.
    Ask(Task),
    /// The driver does what was asked.
    Task,
}
