//! The tasks that a session asks for before it goes on with its current message.

use super::judge::need::Need;
use super::pending_definitions::CatalogRequest;
use fencegate_fence::{Claim, FenceError, Role};
use fencegate_statement::Alone;
use std::any::Any;
use std::collections::HashSet;
use std::time::Duration;

/// A session asks for one task at a time.
#[expect(missing_docs, reason = "the comment of a variant covers its fields")]
pub enum Task {
    /// Get the process admitted, to one resource after the other.
    Admit(Vec<(Need, Claim)>),
    /// Read the catalog, within that time limit.
    CatchUp(CatalogRequest, Duration),
    /// Find out which of the databases the role may not drop, rename or move.
    CheckOwner(Vec<String>, Role),
    /// Close the control connections to a database for a statement, by that role, that needs it without other connections.
    LeaveAlone(Alone, Role),
    /// Wait for a permit to parse a text that may take long; `apart`: in another process.
    ParsePermit { apart: bool },
    /// Wait for room for a message of `bytes`, with `there` of them received. `behind`: it follows messages that the
    /// server may not answer for long.
    Room { bytes: usize, there: usize, behind: bool },
}

/// The outcome of a task.
pub enum Done {
    /// The session is admitted, or the fence has refused.
    Admit(Result<(), FenceError>),
    /// The databases that the role may not drop, rename or move.
    CheckedOwner(HashSet<String>),
    /// The control connections to the database are closed.
    LeftAlone,
    /// The outcome does not matter: the message is judged again.
    Tried,
    /// None: the session must not parse the text.
    ParsePermit(Option<ParsePermit>),
    /// None: there was none in time.
    Room(Option<Room>),
}

/// A permit to parse a text that may take long, until it is dropped.
pub struct ParsePermit {
    /// In another process: the text's tokens alone do not prove its effects.
    pub apart: bool,
    _held: Box<dyn Any + Send + Sync>,
}

impl ParsePermit {
    /// `held` is dropped together with the permit.
    pub fn new(held: impl Any + Send + Sync, apart: bool) -> Self {
        ParsePermit { apart, _held: Box::new(held) }
    }
}

/// Memory reserved for a long message, until it is dropped.
pub type Room = Box<dyn HeldRoom>;

/// Room for which other sessions may wait.
pub trait HeldRoom: Send + Sync {
    /// Others wait, and the message arrives too slowly. `there`: bytes of it that have arrived.
    fn is_overdue(&mut self, there: usize) -> bool;
}
