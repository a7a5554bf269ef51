//! The fencing protocol's operations on its database.
//!
//! Owns the trait and its types. Must never contain SQL, which belongs in `postgres.rs` and below.

mod announcer;
mod blockers;
mod common;
mod connections;
mod control;
mod error;
mod init;
mod init_lock;
mod notification;
mod postgres;
mod probe;
mod probed;
mod records;
mod rows;
mod sql;

use super::obstacle::Blocker;
use super::session::{Epoch, Identity, Token};
use async_trait::async_trait;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_policy::Resource;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub use error::{ConnectionError, StoreError, UnsuitableEngine};
pub use init::{FUNCTIONS, InitError, InitReport, RELATIONS, grant_leases, init, init_script, is_proxy};
pub(crate) use init_lock::set_up;
pub use init_lock::{Effect, InitLockError, Script, begin as begin_with_init_lock};
pub use notification::process_payload;
pub use postgres::Postgres;
pub use probe::{
    ExplainError, Need, closed_databases, databases, explain, is_missing, other_policies, probe, read_names,
    read_names_in,
};
pub use records::{
    Admission, AdmissionRow, Bounded, DESCRIBED, Enforcement, EpochRow, Fence, Fences, First, Found, Higher, Holder,
    Key, LeaseState, MOST_KEYS, Marked, Reach, Recorded, Report, RequiredPrivilege, ResetReport, Role, StoredLease,
};
pub(crate) use rows::seconds;
pub(crate) use sql::FRAGMENTS;
pub use sql::is_newer;
pub use sql::lock::INIT_LOCK;

/// Time that processes have to release a lock or an admission that blocks the protocol. Then they are terminated.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// The protected database, as one proxy sees it: epochs, admissions, server processes and their locks.
///
/// Each operation is atomic. It takes effect at one moment after the call or not at all. After an error, that moment may be
/// long after the return. A late effect must therefore be harmless; docs/trust/protocol.md explains why it is.
/// Only operations that only read are cancel-safe.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Admits the process if its identity is confirmed and its token is that of a drained epoch under these policies.
    /// An existing admission gets a new version. No Publish runs between the check and the write.
    /// Terminates processes that hold the resource's lock, after a grace period.
    async fn admit(
        &self,
        identity: &Identity,
        resource: &Resource,
        token: Token,
        loaded: i64,
    ) -> Result<Report, StoreError>;

    /// Admits the process, as [`Store::admit`] does, to those of the resources whose epoch is drained and has the token, under these
    /// policies. Leaves out resources whose lock or epoch is not free: does not wait for other processes. Returns the admissions,
    /// and whether each is new.
    async fn admit_current(
        &self,
        identity: &Identity,
        wanted: &[(&Resource, Token)],
    ) -> Result<Vec<(AdmissionRow, bool)>, StoreError>;

    /// Creates the first epoch of each resource, drained, under these policies, and admits the process to it.
    ///
    /// Conditions: the process's identity is confirmed, the resource has no epoch and no admissions, no process holds its lock,
    /// and the database has no prepared transaction. If the policy names a lease, the lease must be in force under the token.
    /// No Admit or Publish of these resources runs between the check and the write. Does not wait for other processes.
    /// Returns the admissions.
    async fn admit_first(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError>;

    /// Raises the epoch to a higher token of the same generation and the same policies, not drained. If there is no epoch,
    /// creates the first one, in a generation above those of the admissions.
    ///
    /// If the policy names a lease, the lease must be in force under the token. Does nothing if the epoch is below `known`, or
    /// if `known` is set and there is no epoch: it was pruned in the meantime.
    /// Waits until every Admit that has begun is done. Terminates holders of the lock as Admit does. Returns the current epoch.
    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError>;

    /// Marks this epoch drained, under these policies, if no live process is admitted below it and no prepared transaction has
    /// written to the resource. Mark checks both itself, while the epoch cannot change.
    async fn mark(&self, resource: &Resource, epoch: Epoch) -> Result<Marked, StoreError>;

    /// Sets the token, which may be lower, and raises the generation. The new epoch is not drained.
    ///
    /// Conditions: the epoch is `known`, under these policies. Unless `force` is set, no live process is admitted under a higher
    /// token. Records the operator's role. Terminates holders of the lock as Admit does.
    async fn reset(
        &self,
        resource: &Resource,
        known: Epoch,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<ResetReport, StoreError>;

    /// The admissions to the resource below the epoch.
    async fn holders(&self, resource: &str, bound: Epoch) -> Result<Vec<Holder>, StoreError>;

    /// Deletes the admissions of processes that are proved dead: those to one resource below an epoch, or all.
    /// Returns their processes and tokens.
    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError>;

    /// Terminates the processes that are admitted to the resource below `bound`, unless the current epoch is below `bound` too.
    /// Marks their admissions as ending. Does not wait until the processes have ended.
    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError>;

    /// Deletes admissions of live processes if they are unchanged since they were read. Each comes with the name of its lock.
    /// Keeps the admissions of a process that is being terminated, or in whose open transaction the guard permitted a write.
    /// Returns the deleted rows.
    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError>;

    /// The subset of the processes whose open transactions have written to, or locked rows of, the resource's relations.
    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError>;

    /// The current epoch, if the guard has permitted a write to the resource in the process's open transaction.
    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError>;

    /// The admissions of one process.
    async fn admissions_of(&self, identity: &Identity) -> Result<Vec<AdmissionRow>, StoreError>;

    /// The epochs of these resources. Resources without an epoch are omitted.
    async fn epochs(&self, resources: &[&str]) -> Result<Vec<EpochRow>, StoreError>;

    /// The epochs that are above admissions granted by this proxy.
    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError>;

    /// The existing leases of these elections, including expired ones.
    async fn leases(&self, elections: &[&str]) -> Result<Vec<StoredLease>, StoreError>;

    /// All leases, at most `most`, the latest acquired first.
    async fn all_leases(&self, most: usize) -> Result<Bounded<StoredLease>, StoreError>;

    /// The time by the database's clock, in microseconds since 1970.
    async fn now(&self) -> Result<i64, StoreError>;

    /// Records the policies of the resource, or of all keys of a keyed one. Skips resources without an epoch and those with
    /// recorded policies that were loaded later. A failed call may have recorded the policies of some keys.
    async fn record_policy(&self, resource: &Resource, loaded: i64) -> Result<(), StoreError>;

    /// The subset of the resources, none of them keyed, for which different, later loaded policies are recorded.
    async fn superseded(&self, resources: &[Arc<Resource>], loaded: i64) -> Result<Vec<String>, StoreError>;

    /// Publishes the fingerprints of the fences that this proxy enforces.
    async fn announce_enforced(&self, fingerprints: &[String]) -> Result<(), StoreError>;

    /// Publishes that this proxy has no more sessions in the database. Never opens a connection.
    async fn leave(&self) -> Result<(), StoreError>;

    /// Which proxies enforce the fences of these resources, and which do not yet.
    async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError>;

    /// Returns true if a client is connected to the database, apart from these sessions and control connections.
    async fn has_other_sessions(&self, own: &[Key]) -> Result<bool, StoreError>;

    /// The open transactions, including prepared ones.
    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError>;

    /// An object on which the role lacks one of these privileges, if there is one.
    async fn denied(
        &self,
        resource: &Resource,
        privileges: &[RequiredPrivilege],
        role: &Role,
    ) -> Result<Option<String>, StoreError>;

    /// All admissions, at most `most`, by resource, epoch and process.
    async fn admissions(&self, most: usize) -> Result<Bounded<Admission>, StoreError>;

    /// The fences of these resources, and of at most `most_keys` keys.
    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError>;

    /// The catalog of the fenced tables: the shared view, or that of the session with this schema of temporary relations.
    async fn catalog(&self, fences: Fenced<'_>, temporary: Option<&str>) -> Result<Catalog, StoreError>;

    /// Objects that CASCADE may drop from the fenced tables.
    async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError>;

    /// Notifies the other proxies that the catalog has changed.
    async fn announce_catalog(&self) -> Result<(), StoreError>;

    /// Notifies the process, which executes LISTEN. May be lost.
    async fn notify_process(&self, identity: &Identity) -> Result<(), StoreError>;

    /// Heartbeat of the listening connection. Opens the connection if necessary. Returns how full the server's notification
    /// queue is, from 0 to 1.
    async fn beat(&self) -> Result<f64, StoreError>;

    /// A bounded number of processes and prepared transactions that hold a lock on fencegate's tables that blocks fencegate,
    /// or wait for one. Omits fencegate's own processes. Leaves no connection open.
    async fn table_locks(&self) -> Result<Vec<Blocker>, StoreError>;

    /// The subset of the databases that exist and that the role may not drop, rename or move. The databases need not include
    /// this one.
    async fn foreign_databases(&self, role: &Role, databases: &[String]) -> Result<HashSet<String>, StoreError>;

    /// Returns true if the role may drop the database. With `by_force`, the role must also be allowed to terminate every other
    /// session in it, and the server must be able to.
    async fn may_drop_database(&self, role: &Role, by_force: bool) -> Result<bool, StoreError>;

    /// The state of the database according to the latest attempts to connect.
    fn found(&self) -> Found;

    /// Returns true if a connection is open or being opened.
    fn is_open(&self) -> bool;

    /// Keeps all connections closed until that time. None permits connections again.
    fn keep_closed(&self, until: Option<Instant>);

    /// Reports that a session has logged in to the database. Discards an earlier finding that the database does not exist.
    fn note_login(&self);

    /// The number of the connection whose process represents this proxy in the table of proxies. 0 while it is not open.
    fn proxy_connection(&self) -> u64;

    /// Lets the next operation try to connect even if a recent attempt failed.
    async fn forget_failure(&self);

    /// Closes outdated connections: those of an earlier configuration, or to a server that is no longer the primary. Queries on
    /// the latter end with an error, and their effect is unknown.
    fn close_outdated(&self);

    /// Closes the connections. The next operation opens them again. With `wait`, or while connections are kept closed, returns
    /// only after the server has ended these connections and those that were closed before.
    async fn close(&self, wait: bool);
}

/// Receives notifications. A notification only means "read again", because any role can send one.
pub trait Listener: fmt::Debug + Send + Sync {
    /// The connection with this number now listens. Earlier notifications may have been missed.
    fn listens(&self, connection: u64);
    /// The connection with this number no longer listens. A later one may already listen.
    fn lost(&self, connection: u64);
    /// The resource's epoch has changed.
    fn announced(&self, resource: &str);
    /// The leader of a lease's election has changed, or the lease has no leader any more.
    fn lease_changed(&self, election: &str);
    /// Another proxy announces that the catalog has changed.
    fn catalog_changed(&self);
}
