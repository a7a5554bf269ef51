//! The tasks that a session requests before it continues with its current message.

use super::judge::need::Need;
use super::pending_definitions::CatalogRequest;
use fencegate_fence::{Claim, FenceError, Role};
use fencegate_statement::ExclusiveUse;
use std::any::Any;
use std::collections::HashSet;
use std::time::Duration;

/// A task. A session requests one at a time.
#[expect(missing_docs, reason = "the comment of a variant covers its fields")]
pub enum Task {
    /// Get the process admitted to these resources, one after the other.
    Admit(Vec<(Need, Claim)>),
    /// Read the catalog within this time limit.
    CatchUp(CatalogRequest, Duration),
    /// Find out which of the databases the role may not drop, rename or move.
    CheckOwner(Vec<String>, Role),
    /// Close the control connections to a database for a statement of that role that needs it without other
    /// connections.
    VacateDatabase(ExclusiveUse, Role),
    /// Wait for a permit to parse a text that may take long; `out_of_process`: in another process.
    ParsePermit { out_of_process: bool },
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
    VacatedDatabase,
    /// The outcome does not matter: the message is judged again.
    Tried,
    /// None: the session must not parse the text.
    ParsePermit(Option<ParsePermit>),
    /// None: no room became available in time.
    Room(Option<Room>),
}

/// A permit to parse a text that may take long, until it is dropped.
pub struct ParsePermit {
    /// In another process: the text's tokens alone do not prove its effects.
    pub out_of_process: bool,
    _held: Box<dyn Any + Send + Sync>,
}

impl ParsePermit {
    /// `held` is dropped together with the permit.
    pub fn new(held: impl Any + Send + Sync, out_of_process: bool) -> Self {
        ParsePermit { out_of_process, _held: Box::new(held) }
    }
}

/// Memory reserved for a long message, until it is dropped.
pub type Room = Box<dyn HeldRoom>;

/// Room for which other sessions may wait.
pub trait HeldRoom: Send + Sync {
    /// Returns true if others wait and the message arrives too slowly. `there`: number of bytes received.
    fn is_overdue(&mut self, there: usize) -> bool;
}
