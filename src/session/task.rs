//! What a session asks to be found out, or got, before its message at hand goes on.

use super::judge::Need;
use crate::fence::{Claim, Refusal, Role};
use crate::state::context::Turn;
use crate::state::downstream::Wanted;
use crate::state::room::Room;
use crate::statement::Alone;
use std::time::Duration;

/// What is to be done. One at a time.
pub enum Task {
    /// Get the process admitted, to one resource after the other.
    Admit(Vec<(Need, Claim)>),
    /// Read the catalogue, within that time.
    CatchUp(Wanted, Duration),
    /// Get out of the way of a statement that needs a database alone, as that role.
    LeaveAlone(Alone, Role),
    /// Wait for the right to read a text that may take long; `apart`: in another process.
    Turn { apart: bool },
    /// Wait for room to hold so many bytes, of which so many are there; `behind` something that the server may not have done
    /// for long.
    Room { bytes: usize, there: usize, behind: bool },
}

/// What came of it.
pub(crate) enum Done {
    Admit(Result<(), Refusal>),
    /// Whatever came of it: it is looked at again.
    Tried,
    Turn(Option<Turn>),
    /// None: there is none.
    Room(Option<Room>),
}

/// What the first message of the client that was not forwarded yet waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The server owes nothing any more.
    Settle,
    /// The answer to our question: the value of the parameter.
    Value,
    /// The same: as whom the session acts.
    Role,
    /// The [`Task`] that was asked for.
    Task,
}
