//! The rows that the protocol's operations return, their arguments, and lists for operators.
//!
//! Must never decide by a list whether a session may write, because the rows may have changed since they were read.

use crate::obstacle::{Blocker, ProcessFault};
use crate::session::{Epoch, Identity, Token};
use fencegate_policy::{QualifiedName, Resource};
use fencegate_statement::{Operation, RelationName};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

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
    /// The same policies.
    Same,
    /// Different policies, loaded before those of this proxy.
    Older,
    /// Different policies, not loaded earlier.
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
    pub identity: Identity,
    /// The resource, unique within a Query.
    pub resource: Arc<Resource>,
    /// The token, already confirmed to be permitted to raise the fence.
    pub token: Token,
    /// When the policies were loaded.
    pub loaded: i64,
}

/// A server process that may write to a resource, or might until it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The resource that the process may write.
    pub resource: String,
    /// The epoch of the admission.
    pub epoch: Epoch,
    /// The process id.
    pub pid: i32,
    /// When the process started.
    pub backend_start: Option<SystemTime>,
    /// When the process was admitted.
    pub admitted: Option<SystemTime>,
    /// The proxy that admitted it.
    pub proxy: String,
    /// Set if this proxy admitted the process.
    pub is_ours: bool,
    /// Set if the process has not ended. Rows of dead processes are deleted soon.
    pub is_alive: bool,
}

/// A bounded list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounded<T> {
    /// The first entries.
    pub list: Vec<T>,
    /// Number of entries that are not in the list.
    pub left_out: usize,
}

/// Maximum number of fences of keys that are listed for a database.
pub const MOST_KEYS: usize = 1000;

/// The fence of a resource in a database, as it was last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The current epoch.
    pub epoch: Epoch,
    /// No process is admitted below the epoch any more.
    pub drained: bool,
    /// Number of server processes that are admitted to the resource.
    pub admissions: u64,
}

/// The fences that have an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences {
    /// By resource.
    pub plain: HashMap<String, Fence>,
    /// Fences of keys, the most recently updated first. At most [`MOST_KEYS`].
    pub of_keys: Vec<(String, Fence)>,
    /// Number of further keys that have a fence.
    pub left_out: usize,
}

/// How many of the proxies with sessions in the database enforce a fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// All proxies: live and lost ones.
    pub proxies: u64,
    /// Proxies that have recently lost their control connection without signing off. It is unknown whether their sessions
    /// continue, and under which policies.
    pub lost: u64,
    /// Live proxies that enforce the fence. Transactions from before it have ended there.
    pub enforcing: u64,
}

impl Reach {
    /// Omits the lost proxies, which have no sessions left. A proxy without sessions does not count.
    pub(crate) fn forget_lost(&mut self) {
        self.proxies -= self.lost;
        self.lost = 0;
    }
}

/// Enforcement of the fences of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// By the resource's fingerprint.
    pub reach: HashMap<String, Reach>,
    /// The tables that do not exist.
    pub unresolved: HashSet<QualifiedName>,
}

/// A lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// The election.
    pub election: String,
    /// The fencing token.
    pub token: Token,
    /// Whether its holder leads.
    pub state: LeaseState,
    /// Name of the holder.
    pub holder: String,
    /// The role that acquired it.
    pub role: String,
    /// When it was acquired. All times are by the database's clock.
    pub acquired: SystemTime,
    /// When it was last extended.
    pub renewed: SystemTime,
    /// When it expires, or has expired.
    pub expires: SystemTime,
}

/// Whether the holder of a lease leads, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The holder leads.
    InForce,
    /// The holder has released the lease.
    Released,
    /// The lease has expired.
    Expired,
}

impl LeaseState {
    /// The name for display.
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::InForce => "in force",
            LeaseState::Released => "released",
            LeaseState::Expired => "expired",
        }
    }
}

/// One operation by which a statement affects a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequiredPrivilege {
    /// The statement writes or locks the relation, which is named as in the statement.
    Write(RelationName, Operation),
    /// The statement calls the function.
    Call(QualifiedName),
}

/// The role as which the session acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The session's current role.
    Current(String),
    /// Any role that this login role is a member of: the session may change its role before the statement runs.
    AnyOf(String),
}
