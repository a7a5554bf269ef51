//! The current message: the first one from the client that was not forwarded yet.

use super::checks::Check;
use super::held::Limit;
use super::host::Changes;
use super::question;
use super::task::{ParsePermit, Room, Task};
use crate::fence::{Refusal, Role};
use crate::statement::{Analysis, Lexing};
use std::time::Instant;

/// What was found out for the current message.
#[derive(Default)]
pub(super) struct Pending {
    /// The input from the client has to reach this many bytes.
    pub(super) wanted: usize,
    /// The room for it, once requested; `Some(None)` if it was refused.
    pub(super) room: Option<Option<Room>>,
    /// The permit to parse it, though that may take long.
    pub(super) permit: Option<ParsePermit>,
    /// The analysis of its text, how that was read, and whether with its rows: it is judged again whenever more is known.
    pub(super) read: Option<(Lexing, bool, Analysis)>,
    /// Its text has to be read for the rows that it writes.
    pub(super) with_rows: bool,
    /// Since when it has been judged, or what has to be done first for that.
    pub(super) since: Option<Instant>,
    /// Since when it has waited for tasks.
    pub(super) held: Option<Instant>,
    /// The server was asked to answer what came before it.
    pub(super) flushed: bool,
    /// The timeout of the server that is the first to end the session meanwhile.
    pub(super) limit: Asked<Option<Limit>>,
    /// The changes of the catalogue that had been seen when it came, or when what it waited for was there.
    pub(super) changes: Option<Changes>,
    /// The role that it would run as, once asked for.
    pub(super) role: Asked<Role>,
    /// The search path, where it was asked for.
    pub(super) path: Option<String>,
    /// What the server answered to our question so far.
    pub(super) answer: Option<question::ResultColumns>,
    /// It may have the database that it needs alone. None: that has not been found out.
    pub(super) alone: Option<bool>,
    /// What the server has to check between its statements, if it is forwarded.
    pub(super) checks: Vec<Check>,
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

/// What the current message waits for.
pub(super) enum Wait {
    /// The server owes nothing any more.
    Settle,
    /// The answer to our question: the value of the parameter.
    Value,
    /// The same: the role that the session acts as.
    Role,
    /// The same: the search path.
    Path,
    /// The transaction is begun anew.
    Begin,
    /// The driver has to begin this task.
    Ask(Task),
    /// The driver performs the task.
    Task,
    /// The end of an Admit that was given up.
    GivenUp,
}
