//! Lists for operators: admissions, fences, leases, and the proxies that enforce a fence.
//!
//! Must never decide whether a session may write, because the rows may have changed since they were read.

use crate::session::{Epoch, Token};
use fencegate_policy::QualifiedName;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

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

/// The admissions of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admissions {
    /// The first 10,000, sorted by resource, epoch and process.
    pub list: Vec<Admission>,
    /// Number of admissions beyond the first 10,000.
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

/// A bounded list of leases.
#[derive(Debug)]
pub struct Leases {
    /// The most recently acquired leases, the latest first.
    pub list: Vec<StoredLease>,
    /// Number of leases that are not in the list.
    pub left_out: usize,
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
