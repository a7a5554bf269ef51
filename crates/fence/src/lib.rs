//! Fences: which sessions may write now, and the protocol that keeps all others from writing.
//!
//! Owns tokens, epochs, admissions and drains. Knows no client sockets. Must never admit from memory: the authority is
//! the table `fencegate_state.epoch` in the database that is written.
//!
//! # The argument
//!
//! Comparing a token with a number and then forwarding the write proves nothing: a newer token may be admitted between
//! the two. Therefore a server process must be *admitted* before it writes. A newer token is admitted only when no
//! process with an older one can commit any more:
//!
//! 1. **Admit** (`admit.rs`) is one transaction that holds the resource's epoch row FOR SHARE while it inserts the row
//!    of the session's server process, if the session's token is the epoch's and the epoch is drained.
//! 2. **Publish** (`advance.rs`) raises the epoch, not drained, and commits before anything else starts. An Admit of an
//!    older token either committed before, so that the drain sees its row, or comes after, reads the new epoch and
//!    fails.
//! 3. **Drain** removes every admission below the epoch. The process is dead, or it belongs to a session of this proxy
//!    that was revoked first and then seen to have nothing uncommitted (`release.rs`).
//! 4. **Mark** sets the epoch drained, after it has verified that no process below it is left.
//!
//! If a policy names the election that issues a resource's tokens, the proxy checks with etcd before a Publish that the
//! token is the leader's (`issuer.rs`). If the policy names a lease, Publish itself checks that the lease is in force
//! under the token. These checks reject tokens that were never issued. The argument does not depend on them.
//!
//! A resource without an epoch and without admissions has no process to drain. Its first token is published, marked and
//! admitted in one Query under the resource's lock. An operator's reset (`reset.rs`) raises the generation, and drains
//! all processes that were admitted before.
//!
//! Hence, when the first write under a token starts, no process admitted under a lower one has anything left to commit.
//! This does not depend on clocks, on closed sockets, on the number of proxies, or on whether any of them survives.
//!
//! A process is identified by pid *and* backend_start, in this database, of this postmaster. Admit compares all of
//! these with the values that the server reported to the session itself.
//!
//! # The parts
//!
//! The trait [`store::Store`] is the database's part: each step is one of its operations. The steps make decisions from
//! the rows that they return. A step is a function over that trait and plain state (`step.rs`), which has four owners:
//! - `memory.rs`: the epochs that were read, those that an issuer has confirmed on the current server, and
//!   notifications;
//! - `registry.rs`: the sessions of this proxy that a drain may revoke;
//! - `policies.rs`: the policies in force, superseded and enforced;
//! - `watcher.rs`: the background task, and its observations.
//!
//! [`Database`] only connects them.

mod admit;
mod advance;
mod authority;
pub mod background;
mod database;
mod enforcement;
mod fence_error;
pub mod guard;
mod issuer;
pub mod log_limit;
mod memory;
mod obstacle;
mod overtake;
mod policies;
mod raising;
mod registry;
mod release;
mod reset;
mod resource_lock;
pub mod session;
#[allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "only tests use it")]
pub mod simulated;
mod step;
pub mod store;
pub mod supervise;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
pub mod together;
pub mod value;
mod watch;
mod watcher;

/// Reserved database name of the console.
pub const CONSOLE: &str = "fencegate";

pub use authority::{Authority, Elections, Following, Leaders};
pub use database::{Database, Registration};
pub use enforcement::RecordError;
pub use fence_error::{CutOff, FenceError, Issued, stale};
pub use issuer::{UnknownLeader, followed_leader};
pub use memory::EpochChange;
pub use obstacle::{Blocker, Obstacle, ProcessFault, Remedy};
pub use raising::{Claim, Raise};
pub use reset::{Reset, ResetError};
pub use step::FenceMetrics;
pub use store::{
    Admission, Bounded, Effect, Enforcement, ExplainError, FUNCTIONS, Fence, Fences, First, Higher, INIT_LOCK,
    InitError, InitLockError, InitReport, LeaseState, Need, RELATIONS, Reach, RequiredPrivilege, Role, Script,
    StoredLease, begin_with_init_lock, closed_databases, databases, explain, grant_leases, init, init_script,
    is_missing, is_newer, is_proxy, other_policies, probe, read_names, read_names_in,
};
pub use watcher::Leased;
