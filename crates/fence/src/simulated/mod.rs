//! An in-memory store of the fence: one database that several proxies share. Tests can start and end its server
//! processes, and let them write.
//!
//! Must answer as PostgreSQL does; `fence::store` runs the same operations on both. Needs no runtime: each operation
//! runs when it is first polled. Does not simulate other processes that hold resource locks, nor privileges except
//! [`Server::forbid`] and [`Server::forbid_to_end`].

mod in_memory;
mod protocol;
mod shown;

use crate::obstacle::ProcessFault;
use crate::session::{Epoch, Identity, Token};
use crate::store::{AdmissionRow, Found, Key, Listener, StoreError};
use fencegate_policy::QualifiedName;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One database of one server.
#[derive(Debug)]
pub struct Server(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Microseconds since 1970. Increases by one at each change, and by [`Server::pass`].
    pub(super) clock: i64,
    pub(super) system_identifier: String,
    pub(super) postmaster_start: String,
    pub(super) tables: HashSet<QualifiedName>,
    pub(super) epochs: BTreeMap<String, Row>,
    pub(super) leases: BTreeMap<String, LeaseRow>,
    pub(super) admissions: Vec<Admitted>,
    pub(super) processes: BTreeMap<i32, Process>,
    /// Prepared transactions by identifier, with the process that prepared each.
    pub(super) prepared: BTreeMap<String, (i32, Transaction)>,
    pub(super) proxies: BTreeMap<String, Proxy>,
    pub(super) connections: u64,
    pub(super) listeners: BTreeMap<u64, Arc<dyn Listener>>,
    /// The proxy of each connection.
    pub(super) connected: BTreeMap<u64, String>,
    pub(super) forbidden: HashSet<String>,
    /// The roles that may not terminate other roles' sessions.
    pub(super) harmless: HashSet<String>,
    /// If set, a process whose termination was requested ends only when [`Server::end_process`] is called; otherwise
    /// immediately.
    pub(super) ends_late: bool,
    /// The fault that new connections find.
    pub(super) found: Found,
    pub(super) meanwhile: Meanwhile,
}

/// State that survives a crash.
#[derive(Clone, Debug, Default)]
pub struct Disk(BTreeMap<String, Row>, BTreeMap<String, LeaseRow>);

/// A row of the table of epochs.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) epoch: Epoch,
    pub(super) drained: bool,
    pub(super) policy: String,
    pub(super) loaded: i64,
    pub(super) updated: i64,
}

/// A row of the table of admissions.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) row: AdmissionRow,
    pub(super) proxy: String,
    pub(super) at: i64,
    /// True if the row was written for another database and copied with it.
    pub(super) is_copy: bool,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) start: String,
    pub(super) transaction: Option<Transaction>,
}

#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) number: u64,
    /// The relations that the process has written or in which it has locked rows.
    pub(super) locked: HashSet<QualifiedName>,
    pub(super) written: HashSet<QualifiedName>,
    /// The families of resources to which the guard has permitted a write.
    pub(super) guarded: HashSet<String>,
}

/// A row of the table of proxies.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) connection: u64,
    pub(super) enforced: Vec<String>,
    pub(super) announced: i64,
}

/// A row of the table of leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRow {
    pub(super) token: Token,
    pub(super) released: bool,
    pub(super) acquired: i64,
    pub(super) expires: i64,
}

/// An action of another process before the next Publish or Reset.
#[derive(Default)]
pub(super) struct Meanwhile(pub(super) Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an action of another process")
    }
}

impl Server {
    /// A server with these tables, and with the system identifier and postmaster of this [`Identity`].
    pub fn new(clock: i64, of: &Identity, tables: impl IntoIterator<Item = QualifiedName>) -> Arc<Server> {
        Arc::new(Server(Mutex::new(State {
            clock,
            system_identifier: of.system_identifier.clone(),
            postmaster_start: of.postmaster_start.clone(),
            tables: tables.into_iter().collect(),
            ..State::default()
        })))
    }

    /// Starts a server process.
    pub fn begin_process(&self, identity: &Identity) {
        let process = Process { start: identity.backend_start.clone(), transaction: None };
        self.state().processes.insert(identity.pid, process);
    }

    /// From now on, a process whose termination is requested continues until [`Self::end_process`].
    pub fn end_late(&self) {
        self.state().ends_late = true;
    }

    /// The server crashes and restarts with this start time of the postmaster: no process and no admission remains.
    pub fn restart(&self, postmaster_start: &str) {
        let mut state = self.state();
        postmaster_start.clone_into(&mut state.postmaster_start);
        state.processes.clear();
        state.admissions.clear();
        state.lose_connections(|_| true);
    }

    /// Breaks the listening connection of this proxy.
    pub fn lose_connection(&self, proxy: &str) {
        let mut state = self.state();
        let number = state.connected.iter().find(|(_, it)| *it == proxy).map(|(number, _)| *number);
        state.lose_connections(|it| Some(it) == number);
    }

    /// A copy of the epochs, for a standby that is promoted with them.
    pub fn epochs(&self) -> Vec<(String, Epoch)> {
        self.state().epochs.iter().map(|(resource, row)| (resource.clone(), row.epoch)).collect()
    }

    /// A copy of the durable state.
    pub fn copy(&self) -> Disk {
        let state = self.state();
        Disk(state.epochs.clone(), state.leases.clone())
    }

    /// Replaces the durable state with this copy.
    pub fn restore(&self, Disk(epochs, leases): Disk) {
        let mut state = self.state();
        (state.epochs, state.leases) = (epochs, leases);
    }

    /// The epochs under which the process is admitted to the resource.
    pub fn admissions(&self, of: &Identity, resource: &str) -> Vec<Epoch> {
        let state = self.state();
        let rows = state.admissions.iter().map(|it| &it.row);
        let is_it = |row: &&AdmissionRow| {
            row.pid == of.pid && row.backend_start == of.backend_start && row.resource == resource
        };
        rows.filter(is_it).map(|row| row.epoch).collect()
    }

    /// Adds a row that no Admit has written, unless its key exists. `is_copy`: as if copied from another database.
    pub fn put_admission(&self, of: &Key, resource: &str, epoch: Epoch, proxy: &str, is_copy: bool) {
        let mut state = self.state();
        let (pid, backend_start) = of.clone();
        let at = state.tick();
        let row =
            AdmissionRow { pid, backend_start, resource: resource.into(), epoch, version: version(at), ending: false };
        let is_it = |it: &Admitted| it.row.key() == *of && it.row.resource == resource && it.row.epoch == epoch;
        if !state.admissions.iter().any(is_it) {
            state.admissions.push(Admitted { row, proxy: proxy.to_owned(), at, is_copy });
        }
    }

    /// Returns true if a living process is admitted to any resource.
    pub fn has_admitted(&self) -> bool {
        let state = self.state();
        state.admissions.iter().any(|it| state.is_alive(it))
    }

    /// Ends the process with its transaction.
    pub fn end_process(&self, pid: i32) {
        self.state().processes.remove(&pid);
    }

    pub fn lives(&self, pid: i32) -> bool {
        self.state().processes.contains_key(&pid)
    }

    /// The process writes to the table, or locks rows of it, in a transaction that stays open.
    pub fn write(&self, pid: i32, table: &QualifiedName, only_locks: bool) {
        self.in_transaction(pid, |transaction| {
            transaction.locked.insert(table.clone());
            if !only_locks {
                transaction.written.insert(table.clone());
            }
        });
    }

    /// The guard permits the process to write to a resource of this family, because the process is admitted.
    pub fn guard_passes(&self, pid: i32, family: &str) {
        self.in_transaction(pid, |transaction| transaction.guarded.extend([family.to_owned()]));
    }

    /// Ends the process's transaction.
    pub fn end_transaction(&self, pid: i32) {
        self.state().processes.get_mut(&pid).unwrap().transaction = None;
    }

    /// Prepares the process's transaction, which survives the process.
    pub fn prepare(&self, pid: i32, gid: &str) {
        let mut state = self.state();
        let transaction = state.processes.get_mut(&pid).unwrap().transaction.take().unwrap();
        state.prepared.insert(gid.to_owned(), (pid, transaction));
    }

    /// Ends a prepared transaction.
    pub fn end_prepared(&self, gid: &str) {
        self.state().prepared.remove(gid);
    }

    /// Runs `fencegate.prune` for this resource only.
    pub fn prune(&self, resource: &str) {
        let mut state = self.state();
        if !state.admissions.iter().any(|it| it.row.resource == resource) && state.epochs.remove(resource).is_some() {
            state.announce(resource);
        }
    }

    /// Deletes the resource's epoch, as an operator may do manually.
    pub fn delete_epoch(&self, resource: &str) {
        self.state().epochs.remove(resource);
    }

    /// Revokes all privileges of the role.
    pub fn forbid(&self, role: &str) {
        self.state().forbidden.insert(role.to_owned());
    }

    /// Revokes the role's privilege to terminate sessions of other roles.
    pub fn forbid_to_end(&self, role: &str) {
        self.state().harmless.insert(role.to_owned());
    }

    /// Advances the clock.
    pub fn pass(&self, time: Duration) {
        self.state().clock += i64::try_from(time.as_micros()).unwrap();
    }

    pub(super) fn in_transaction(&self, pid: i32, does: impl FnOnce(&mut Transaction)) {
        let mut state = self.state();
        state.connections += 1;
        let number = state.connections;
        let process = state.processes.get_mut(&pid).unwrap();
        does(process.transaction.get_or_insert_with(|| Transaction { number, ..Transaction::default() }));
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn is_alive(&self, Admitted { row, is_copy, .. }: &Admitted) -> bool {
        !is_copy && self.processes.get(&row.pid).is_some_and(|process| process.start == row.backend_start)
    }

    pub(super) fn living_below(&self, resource: &str, bound: Epoch) -> impl Iterator<Item = &AdmissionRow> {
        self.below(resource, bound).filter(|it| self.is_alive(it)).map(|it| &it.row)
    }

    pub(super) fn below(&self, resource: &str, bound: Epoch) -> impl Iterator<Item = &Admitted> {
        self.admissions.iter().filter(move |it| it.row.resource == resource && it.row.epoch < bound)
    }

    pub(super) fn lose_connections(&mut self, is_lost: impl Fn(u64) -> bool) {
        self.listeners.retain(|number, listener| {
            if is_lost(*number) {
                listener.lost(*number);
            }
            !is_lost(*number)
        });
        self.connected.retain(|number, _| self.listeners.contains_key(number));
    }

    pub(super) fn announce(&self, resource: &str) {
        self.listeners.values().for_each(|listener| listener.announced(resource));
    }

    /// The first reason, in the order in which Admit checks them.
    pub(super) fn unfenceable(&self, identity: &Identity) -> Option<ProcessFault> {
        let process = self.processes.get(&identity.pid);
        match process {
            _ if identity.system_identifier != self.system_identifier => Some(ProcessFault::OtherServer),
            _ if identity.postmaster_start != self.postmaster_start => Some(ProcessFault::Restarted),
            None => Some(ProcessFault::Unseen),
            Some(process) if process.start != identity.backend_start => Some(ProcessFault::OtherProcess),
            Some(_) => None,
        }
    }

    pub(super) fn record(&mut self, resource: &str, fingerprint: &str, loaded: i64) {
        let now = self.clock;
        let row = self.epochs.get_mut(resource);
        if let Some(row) = row.filter(|row| row.loaded < loaded || row.loaded > now) {
            (row.policy, row.loaded) = (fingerprint.to_owned(), loaded);
        }
    }
}

/// The version of a row that was written at this time.
pub(super) fn version(at: i64) -> u32 {
    u32::try_from(at & 0xffff_ffff).unwrap()
}

impl Server {
    /// Sets the fault that new connections find in the database. Breaks the existing connections.
    pub fn set_found(&self, found: Found) {
        let mut state = self.state();
        state.found = found;
        state.lose_connections(|_| true);
    }

    /// Runs this action just before the next Publish or Reset, whose caller has already read the state.
    pub fn meanwhile(&self, does: impl FnOnce() + Send + 'static) {
        self.state().meanwhile = Meanwhile(Some(Box::new(does)));
    }

    pub(super) fn others_come_first(&self) {
        let first = self.state().meanwhile.0.take();
        if let Some(first) = first {
            first();
        }
    }
}

impl State {
    /// The error with which connections fail, if they do.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let database = "memory".to_owned();
        match self.found {
            Found::Nothing => None,
            Found::Missing => Some(StoreError::NoDatabase { database }),
            Found::Unprepared => Some(StoreError::Unprepared { database }),
        }
    }
}
