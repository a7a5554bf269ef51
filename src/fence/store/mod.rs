//! The protocol's operations on its database, in the protocol's own terms.
//!
//! Owns the trait and its types. Must never know SQL: that is in `postgres.rs` and below.

mod announcer;
mod blockers;
mod common;
mod control;
mod error;
mod init;
mod init_lock;
mod others;
mod postgres;
mod probe;
mod rows;
mod sql;
mod table_lock;

use super::admissions::Admissions;
use super::enforcement::Enforcement;
use super::fence_error::Blocker;
use super::first::First;
use super::lease::{Leases, StoredLease};
use super::obstacle::ProcessFault;
use super::permission::{RequiredPrivilege, Role};
use super::reset::{Fences, Higher};
use super::session::{Epoch, Identity, Token};
use crate::catalog::{Catalog, Dependencies, Fenced};
use crate::policy::Resource;
use async_trait::async_trait;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

pub use control::is_missing;
pub(super) use error::is_no_database;
pub use error::{ConnectionError, StoreError};
pub use init::{FUNCTIONS, InitError, InitReport, RELATIONS, grant_leases, init, is_newer, is_proxy};
pub use init_lock::{InitLockError, begin as begin_with_init_lock};
pub use others::other_policies;
pub use postgres::Postgres;
pub use probe::{Need, closed_databases, databases, probe};
pub use sql::lock::INIT_LOCK;
pub use sql::process::may_terminate;

/// The database behind the fences, as one proxy sees it: epochs, admissions, server processes and their locks.
///
/// Each operation is one step: it takes effect as a whole or not at all, at one moment between the call and some time later,
/// which after an error may be long after the answer. So each must be harmless when it comes late; docs/guarantees.md says
/// why it is. None is cancel-safe, but those that only read.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Admits the process, if it is what it says it is, and its token that of a drained epoch under these policies. While
    /// it looks and writes, no Publish runs. An admission that is there gets another version. Processes that hold the
    /// resource's lock are ended after a grace.
    async fn admit(&self, who: &Identity, resource: &Resource, token: Token, loaded: i64)
    -> Result<Report, StoreError>;

    /// For each resource that has no epoch and no admissions, where no process holds its lock and no transaction is prepared in
    /// the database: makes the first epoch, drained, under these policies, and admits the process to it, if that is what it says it
    /// is. Where the policy names a lease, that has to be in force under the token. While it looks and writes, no Admit and no
    /// Publish of these resources runs. Returns the admissions; waits for nobody.
    async fn admit_first(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError>;

    /// Raises the epoch to a higher token of the same generation and the same policies, not drained; or makes the first, in a
    /// generation above those of the admissions. Where
    /// the policy names a lease, that has to be in force under the token.
    /// But nothing is raised that is below what was known, and nothing is made where something was: it was pruned since.
    /// Waits until every Admit that has begun is done. Returns the epoch as it is now. Ends holders of the lock as Admit does.
    async fn publish(
        &self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError>;

    /// Marks the epoch drained, if it is this one, under these policies, no living process is admitted below, and no
    /// prepared transaction has written to the resource. It looks for itself, while the epoch cannot change.
    async fn mark(&self, resource: &Resource, epoch: Epoch) -> Result<Marked, StoreError>;

    /// Sets the token, also to a lower one, and raises the generation, not drained: if the epoch is the one that was known,
    /// under these policies, and unless it is forced, while no living process is admitted under a higher token. Records the
    /// operator's role. Ends holders of the lock as Admit does.
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

    /// Deletes the admissions of processes that have certainly ended: those to a resource below an epoch, or all.
    /// Returns their processes and tokens.
    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError>;

    /// Ends those of the processes that are admitted to the resource below the epoch, while the one in force is not below it
    /// either. Their admissions say so from then on. Does not wait for their end.
    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError>;

    /// Deletes admissions of the living, each with the name of its family's lock, as far as they are still what they were
    /// when they were read. Not those of a process that is being ended, or in whose open transaction the guard let a write
    /// pass. Returns what was deleted.
    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError>;

    /// Those of the processes that have written to, or locked rows of, the resource's relations in their open transactions.
    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError>;

    /// The epoch in force, if the guard has let a write to the resource pass in the open transaction of the process.
    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError>;

    /// The admissions of one process.
    async fn admissions_of(&self, who: &Identity) -> Result<Vec<AdmissionRow>, StoreError>;

    /// The epochs of those of the resources that have one.
    async fn epochs(&self, resources: &[&str]) -> Result<Vec<EpochRow>, StoreError>;

    /// The epochs above admissions that this proxy gave.
    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError>;

    /// Those of the leases of these elections that there are, also those that have ended.
    async fn leases(&self, elections: &[&str]) -> Result<Vec<StoredLease>, StoreError>;

    /// The leases that there are, at most `most`.
    async fn all_leases(&self, most: usize) -> Result<Leases, StoreError>;

    /// The time by the database's clock, in microseconds since 1970.
    async fn now(&self) -> Result<i64, StoreError>;

    /// Records the policies of the resource, or of all keys of a keyed one, where there is an epoch and no policies are
    /// recorded that were loaded later. One that fails may have recorded those of some keys.
    async fn record_policy(&self, resource: &Resource, loaded: i64) -> Result<(), StoreError>;

    /// Those of the resources, none of them keyed, for which others' policies are recorded that were loaded later.
    async fn superseded(&self, resources: &[Arc<Resource>], loaded: i64) -> Result<Vec<String>, StoreError>;

    /// Says which fences this proxy enforces, by their fingerprints.
    async fn announce_enforced(&self, fingerprints: &[String]) -> Result<(), StoreError>;

    /// Says that this proxy has no sessions here any more. Opens no connection that is not open.
    async fn leave(&self) -> Result<(), StoreError>;

    /// How far the fences of these resources are enforced.
    async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError>;

    /// Some client is connected to the database, besides these sessions and control connections.
    async fn has_other_sessions(&self, own: &[Key]) -> Result<bool, StoreError>;

    /// The transactions that are open, also those that are prepared.
    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError>;

    /// An object on which the role lacks one of these privileges, if there is one.
    async fn denied(
        &self,
        resource: &Resource,
        privileges: &[RequiredPrivilege],
        role: &Role,
    ) -> Result<Option<String>, StoreError>;

    /// The admissions, at most `most`.
    async fn admissions(&self, most: usize) -> Result<Admissions, StoreError>;

    /// The fences of these resources, and of at most that many keys.
    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError>;

    /// The catalog for what is fenced; as it is for all, or for the session with that schema of temporary relations.
    async fn catalog(&self, fences: Fenced<'_>, temporary: Option<&str>) -> Result<Catalog, StoreError>;

    /// Objects that CASCADE may drop from the fenced tables.
    async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError>;

    /// Tells the other proxies that the catalog has changed.
    async fn announce_catalog(&self) -> Result<(), StoreError>;

    /// A sign of life of the connection that listens, which is opened if it is not open. Returns how full the server's queue of
    /// notifications is, from 0 to 1.
    async fn beat(&self) -> Result<f64, StoreError>;

    /// The processes and prepared transactions that hold a lock on a table of the fences which keeps them from being used, or that
    /// wait for one: a bounded number. Not those of the fences themselves. Opens no connection that stays.
    async fn table_locks(&self) -> Result<Vec<Blocker>, StoreError>;

    /// Those of the databases that exist and that the role may not drop, rename or move. This one need not be among them.
    async fn foreign_databases(&self, role: &Role, databases: &[String]) -> Result<HashSet<String>, StoreError>;

    /// The role may drop the database; or, by force, may end everybody else in it as well, and the server would.
    async fn may_have_alone(&self, role: &Role, by_force: bool) -> Result<bool, StoreError>;

    /// The state of the database, as the attempts to connect have shown it.
    fn found(&self) -> Found;

    /// Some connection is open, or being opened.
    fn is_open(&self) -> bool;

    /// No connection opens before that time.
    fn keep_closed(&self, until: Option<Instant>);

    /// A session has logged in to the database: the result of an earlier attempt, that there is none of that name, counts no
    /// longer.
    fn session_comes(&self);

    /// The number of the connection whose process stands for this proxy in the table of proxies. 0 while it is not open.
    fn proxy_connection(&self) -> u64;

    /// The next operation tries to connect, whatever failed a moment ago.
    async fn ask_anew(&self);

    /// Closes the connections; the next operation opens them again. With `wait`, or while they are kept closed, it returns when the
    /// server has ended them, and those that were closed before.
    async fn close(&self, wait: bool);
}

/// Receives notifications. They mean "read again": any role may have sent them.
pub trait Listener: fmt::Debug + Send + Sync {
    /// The connection of that number listens from now on; before, notifications may have been missed.
    fn listens(&self, connection: u64);
    /// This connection does not listen anymore. A later one may already listen.
    fn lost(&self, connection: u64);
    /// The resource's epoch has changed.
    fn announced(&self, resource: &str);
    /// Another leads the election of a lease, or nobody does any more.
    fn lease_changed(&self, election: &str);
    /// Another proxy announces that the catalog has changed.
    fn catalog_changed(&self);
}

/// A server process: pid and backend_start, as in [`Identity`].
pub type Key = (i32, String);

/// An admission as it was read. Each Admit makes another version of it, also where it was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRow {
    /// Whose it is.
    pub pid: i32,
    /// As in [`Identity`].
    pub backend_start: String,
    /// To what.
    pub resource: String,
    /// Under what.
    pub epoch: Epoch,
    /// No other version of the row has the same.
    pub version: u32,
    /// Its process is being ended for the sake of a newer token.
    pub ending: bool,
}

impl AdmissionRow {
    /// Whose it is.
    pub fn key(&self) -> Key {
        (self.pid, self.backend_start.clone())
    }
}

/// An admission that has to go before a newer token counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The admission.
    pub row: AdmissionRow,
    /// The proxy that gave it.
    pub proxy: String,
    /// The activity of its process, for messages: only of the first [`DESCRIBED`].
    pub blocker: Blocker,
}

/// Maximum number of lock holders whose wait event and query are reported.
pub const DESCRIBED: usize = 10;

/// An epoch, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRow {
    /// Its resource.
    pub resource: String,
    /// The highest token.
    pub epoch: Epoch,
    /// All processes below it have ended.
    pub drained: bool,
}

/// Outcome of an Admit.
#[derive(Clone, Debug)]
pub struct Report {
    /// Why the session's process cannot be fenced, if so.
    pub unfenceable: Option<ProcessFault>,
    /// The epoch, with the policies that are recorded; None: there was never an admission.
    pub current: Option<(EpochRow, Recorded)>,
    /// The admission, and whether it was not there before.
    pub admission: Option<(AdmissionRow, bool)>,
}

/// The policies that an epoch has, compared with those of this proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The token is that of the epoch.
    Same,
    /// Others, which were loaded before.
    Older,
    /// Others.
    Others,
}

/// Outcome of a Mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The epoch is drained now.
    Drained,
    /// Not marked: these prepared transactions block it.
    Prepared(Vec<String>),
    /// Not marked: another proxy has marked or raised it, or a process below it lives.
    Nothing,
}

/// Outcome of a Reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// The epoch that was there.
    pub before: Option<Epoch>,
    /// Its policies are those of this proxy.
    pub same_policy: bool,
    /// The living processes that are admitted under a higher token.
    pub higher: Vec<Higher>,
    /// The epoch that is there now, if it was reset.
    pub after: Option<Epoch>,
}

/// The state of a database, as the last attempt to connect has shown it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// Nothing against it.
    #[default]
    Nothing,
    /// The server said that there is no such database.
    Missing,
    /// It has no schema `fencegate`.
    Unprepared,
}
