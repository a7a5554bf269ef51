//! What a session asks to be found out, or got, before its message at hand goes on.

use super::host::Wanted;
use super::judge::Need;
use crate::fence::{Claim, Refusal, Role};
use crate::statement::Alone;
use std::any::Any;
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
pub enum Done {
    Admit(Result<(), Refusal>),
    /// Whatever came of it: it is looked at again.
    Tried,
    Turn(Option<Turn>),
    /// None: there is none.
    Room(Option<Room>),
}

/// The right to read a text now that may take long, until it is dropped.
pub struct Turn {
    /// In another process: its tokens alone do not prove what it does.
    pub apart: bool,
    _right: Box<dyn Any + Send + Sync>,
}

impl Turn {
    /// The right is given back when the turn is dropped.
    pub fn new(right: impl Any + Send + Sync, apart: bool) -> Self {
        Turn { apart, _right: Box::new(right) }
    }
}

/// The right to hold a long message, until it is dropped.
pub type Room = Box<dyn HeldRoom>;

/// Room that somebody else may wait for.
pub trait HeldRoom: Send + Sync {
    /// Others wait while too little of the message has come; so much of it is there now.
    fn is_overdue(&mut self, there: usize) -> bool;
}
