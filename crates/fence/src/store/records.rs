//! The rows that the protocol's operations return, and their arguments.

use crate::blocker::Blocker;
use crate::obstacle::ProcessFault;
use crate::session::{Epoch, Identity, Token};
use fencegate_policy::Resource;
use std::sync::Arc;

/// A server process: pid and backend_start, as in [`Identity`].
pub type Key = (i32, String);

/// An admission as it was read. Each Admit creates a new version of the row, even if the row exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRow {
    /// The process id.
    pub pid: i32,
    /// As in [`Identity`].
    pub backend_start: String,
    /// The resource that the process may write.
    pub resource: String,
    /// The epoch under which the process was admitted.
    pub epoch: Epoch,
    /// Unique among the versions of the row.
    pub version: u32,
    /// The process is being terminated because of a newer token.
    pub ending: bool,
}

impl AdmissionRow {
    /// The admitted server process.
    pub fn key(&self) -> Key {
        (self.pid, self.backend_start.clone())
    }
}

/// An admission that must be deleted before a newer token is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The admission.
    pub row: AdmissionRow,
    /// The proxy that granted it.
    pub proxy: String,
    /// The activity of its process, for messages. Present for the first [`DESCRIBED`] holders only.
    pub blocker: Blocker,
}

/// Maximum number of lock holders whose wait event and query are reported.
pub const DESCRIBED: usize = 10;

/// An epoch as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRow {
    /// The name of the resource.
    pub resource: String,
    /// The highest token.
    pub epoch: Epoch,
    /// No process is admitted below the epoch any more.
    pub drained: bool,
}

/// Outcome of an Admit.
#[derive(Clone, Debug)]
pub struct Report {
    /// Why the session's process cannot be fenced, if it cannot.
    pub unfenceable: Option<ProcessFault>,
    /// The epoch, and how its recorded policies compare. None: there was never an admission.
    pub current: Option<(EpochRow, Recorded)>,
    /// The admission, and whether it is new.
    pub admission: Option<(AdmissionRow, bool)>,
}

/// The recorded policies of an epoch, compared with those of this proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The token is that of the epoch.
    Same,
    /// Different policies, loaded before those of this proxy.
    Older,
    /// Different policies.
    Others,
}

/// Outcome of a Mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The epoch is now drained.
    Drained,
    /// Not marked: these prepared transactions block it.
    Prepared(Vec<String>),
    /// Not marked: another proxy has marked or raised the epoch, or a live process is admitted below it.
    Nothing,
}

/// Outcome of a Reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// The epoch before the reset, if any.
    pub before: Option<Epoch>,
    /// The recorded policies are those of this proxy.
    pub same_policy: bool,
    /// The live processes that are admitted under a higher token.
    pub higher: Vec<Higher>,
    /// The epoch after the reset. None: it was not reset.
    pub after: Option<Epoch>,
}

/// The state of a database according to the last attempt to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// No obstacle is known.
    #[default]
    Nothing,
    /// The server reported that the database does not exist.
    Missing,
    /// The database has no schema `fencegate`.
    Unprepared,
}

/// A live server process that is admitted under a higher token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Higher {
    /// The process id.
    pub pid: i32,
    /// The token of its admission.
    pub token: Token,
    /// True if this proxy admitted it.
    pub is_ours: bool,
}

/// A session that presents the first token of a resource.
#[derive(Clone, Debug)]
pub struct First {
    /// The session's server process.
    pub who: Identity,
    /// The resource, unique within a Query.
    pub resource: Arc<Resource>,
    /// The token, already confirmed to be permitted to raise the fence.
    pub token: Token,
    /// When the policies were loaded.
    pub loaded: i64,
}
