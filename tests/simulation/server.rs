//! The simulated server: processes, locks, views, crashes.
//!
//! Owns the parts of a server process that others see: its identity, signals and locks. `process.rs` executes its
//! messages. Must behave like PostgreSQL in everything that the proxy observes: a process that has lost its client
//! continues with the messages it has received, a terminated process may end slowly, and its pid may soon be reused.

use super::locks::{Locks, Mode, Taken, Thing};
use super::pipe::{Reader, Writer, pipe};
use super::process::Process;
use super::sql::{Fence, Table};
use super::world::World;
use fencegate_fence::session::{Epoch, Identity, Token};
use fencegate_fence::simulated::{self, Disk};
use fencegate_fence::store::Key;
use fencegate_policy::QualifiedName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// A change of a leader's lease.
pub enum Kept {
    Won(Duration),
    Renewed(Duration),
    Released,
}

/// One server with one database.
pub struct Server {
    pub store: Arc<simulated::Server>,
    /// Notified when a process has released locks.
    pub released: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    processes: BTreeMap<i32, Running>,
    /// Number of processes started so far.
    begun: u64,
    /// Number of starts of the server.
    starts: u64,
    locks: Locks,
    /// Processes that have locked rows of a fenced table and present no token: no fence terminates them.
    unfenced: BTreeSet<i32>,
    views: Views,
    /// When a proxy was notified of a catalog change, and when the change was announced.
    notifications: Vec<Notification>,
    /// Number of committed transactions, and the last one that changed each row.
    commits: u64,
    changed: BTreeMap<(Table, u8), u64>,
    /// The current data of a standby, and the number of commits that it has.
    standby: (Disk, Views, usize),
    /// The time up to which its clock has advanced.
    clock: Option<Instant>,
}

struct Notification {
    by: String,
    announced: Instant,
    at: Instant,
}

/// The current definition of a view of a table.
#[derive(Clone, Debug)]
pub struct View {
    pub table: Table,
    /// The process that has defined the view, with its start because pids are reused; and the proxy of its session.
    pub process: (i32, String),
    pub by: String,
    /// When the proxy forwarded the definition, and when it was committed.
    pub forwarded: Instant,
    pub committed: Instant,
}

pub type Views = BTreeMap<u8, View>;

struct Running {
    start: String,
    signals: Arc<Signals>,
    task: AbortHandle,
}

/// The parts of a process that others use.
#[derive(Default)]
pub struct Signals {
    /// Time at which the process ends, if it was terminated.
    end: Mutex<Option<Instant>>,
    /// The current statement must be canceled.
    cancel: Mutex<bool>,
    wake: Notify,
}

impl Signals {
    /// Returns when the process must end. Cancel-safe.
    pub async fn told_to_end(&self) {
        loop {
            let woken = self.wake.notified();
            let end = *self.end.lock().unwrap();
            match end {
                Some(end) => return sleep_until(end).await,
                None => woken.await,
            }
        }
    }

    pub fn take_cancel(&self) -> bool {
        std::mem::take(&mut *self.cancel.lock().unwrap())
    }
}

/// A connection to the server, from the client's side.
pub struct Connection {
    pub identity: Identity,
    pub writer: Writer,
    pub reader: Reader,
}

/// The identity in the store's format.
pub fn qualified(table: Table) -> QualifiedName {
    QualifiedName { schema: "public".to_owned(), name: table.name().to_owned() }
}

impl Server {
    pub fn new() -> Self {
        let identity = identity(0, 0, 0);
        let store = simulated::Server::new(1_000_000, &identity, Table::ALL.map(qualified));
        store.end_late();
        Server { store, released: Notify::new(), state: Mutex::default() }
    }

    /// Advances the clock of the server.
    pub fn time_passes(&self) {
        let now = Instant::now();
        let before = self.state().clock.replace(now).unwrap_or(now);
        self.store.pass(now - before);
    }

    /// Changes the lease of the election, if there are leases.
    pub fn lease(&self, world: &World, token: Token, kept: Kept) {
        if !world.plan.leases {
            return;
        }
        self.time_passes();
        let lasting = |lease: Duration| i64::try_from(lease.as_micros()).unwrap();
        match kept {
            Kept::Won(lease) => self.store.lease("jobs", token, false, lasting(lease)),
            Kept::Renewed(lease) => self.store.extend_lease("jobs", token, lasting(lease)),
            Kept::Released => self.store.lease("jobs", token, true, 0),
        }
    }

    /// Starts a process for the session with that number and that proxy, with this initial `lease.fence`.
    pub fn connect(&self, world: &Arc<World>, by: &str, value: Option<String>, session: u64) -> Connection {
        let (to_server, from_client) = pipe(world.dice());
        let (to_client, from_server) = pipe(world.dice());
        let mut state = self.state();
        // The lowest free number, so that pids are reused soon.
        let pid = (100..).find(|pid| !state.processes.contains_key(pid)).unwrap();
        state.begun += 1;
        let identity = identity(pid, state.begun, state.starts);
        self.store.begin_process(&identity);
        let signals = Arc::new(Signals::default());
        let connection = (from_client, to_client);
        let process = Process::new(world, (by, session), identity.clone(), connection, signals.clone(), value);
        let task = tokio::spawn(Box::pin(process.run())).abort_handle();
        state.processes.insert(pid, Running { start: identity.backend_start.clone(), signals, task });
        Connection { identity, writer: to_server, reader: from_server }
    }

    /// The process has ended.
    pub fn ended(&self, pid: i32) {
        let mut state = self.state();
        state.processes.remove(&pid);
        drop(state);
        self.unlock(pid);
        self.store.end_process(pid);
    }

    /// Requests the end of these processes, which may ignore the request for a while.
    pub fn tell_to_end(&self, processes: &[Key], deaf: impl Fn() -> Duration) {
        let state = self.state();
        for (pid, start) in processes {
            if let Some(running) = state.processes.get(pid).filter(|it| it.start == *start) {
                running.signals.end.lock().unwrap().get_or_insert_with(|| Instant::now() + deaf());
                running.signals.wake.notify_one();
            }
        }
    }

    /// Cancels the current statement of the process, as a cancel request does.
    pub fn cancel(&self, pid: i32) {
        if let Some(running) = self.state().processes.get(&pid) {
            *running.signals.cancel.lock().unwrap() = true;
        }
    }

    pub fn lock(&self, pid: i32, thing: Thing, mode: Mode) -> Result<(), Taken> {
        self.state().locks.take(pid, thing, mode)
    }

    /// The process releases all locks.
    pub fn unlock(&self, pid: i32) {
        let mut state = self.state();
        state.locks.release(pid);
        state.unfenced.remove(&pid);
        drop(state);
        self.released.notify_waiters();
    }

    /// Returns true if the process holds a lock that no fence covers.
    pub fn holds_unfenced(&self, pid: i32) -> bool {
        self.state().locks.holds_unfenced(pid)
    }

    /// The process has locked rows of a fenced table, and presents no token.
    pub fn locks_without_token(&self, pid: i32) {
        self.state().unfenced.insert(pid);
    }

    /// Returns true if the process holds such locks.
    pub fn has_locks_without_token(&self, pid: i32) -> bool {
        self.state().unfenced.contains(&pid)
    }

    /// The views for transactions that have defined none.
    pub fn views(&self) -> Views {
        self.state().views.clone()
    }

    pub fn view(&self, view: u8) -> Option<View> {
        self.state().views.get(&view).cloned()
    }

    /// The proxy is notified of a catalog change that was announced at that time.
    pub fn record_notification(&self, by: &str, announced: Instant) {
        self.state().notifications.push(Notification { by: by.to_owned(), announced, at: Instant::now() });
    }

    /// Returns true if the proxy was notified, before that moment, of the change.
    pub fn was_notified(&self, by: &str, change: Instant, before: Instant) -> bool {
        self.state().notifications.iter().any(|it| it.by == by && it.announced >= change && it.at < before)
    }

    /// Commits a transaction that has changed these rows and defined or dropped these views.
    pub fn commit(
        &self,
        rows: impl IntoIterator<Item = (Table, u8)>,
        views: impl IntoIterator<Item = (u8, Option<View>)>,
    ) {
        let mut state = self.state();
        state.commits += 1;
        let commits = state.commits;
        state.changed.extend(rows.into_iter().map(|row| (row, commits)));
        for (name, view) in views {
            match view {
                Some(view) => state.views.insert(name, View { committed: Instant::now(), ..view }),
                None => state.views.remove(&name),
            };
        }
    }

    /// A snapshot of the database as it is.
    pub fn snapshot(&self) -> u64 {
        self.state().commits
    }

    /// The row was changed by a transaction that the snapshot does not include.
    pub fn has_changed_since(&self, snapshot: u64, row: (Table, u8)) -> bool {
        self.state().changed.get(&row).is_some_and(|changed| *changed > snapshot)
    }

    /// The epoch under which the process is admitted with that token.
    pub fn admission(&self, process: &Identity, fence: Fence, token: i64) -> Option<Epoch> {
        let admitted = self.store.admissions(process, fence.name());
        admitted.into_iter().filter(|epoch| epoch.token == token).max()
    }

    /// The standby catches up.
    pub fn replicate(&self, commits: usize) {
        let mut state = self.state();
        state.standby = (self.store.copy(), state.views.clone(), commits);
    }

    /// Ends every process immediately; commits remain.
    pub fn restart(&self) {
        let mut state = self.state();
        std::mem::take(&mut state.processes).values().for_each(|running| running.task.abort());
        state.locks = Locks::default();
        state.unfenced.clear();
        state.starts += 1;
        let starts = state.starts;
        drop(state);
        self.store.restart(&identity(0, 0, starts).postmaster_start);
    }

    /// The standby replaces the server. Returns the number of commits that it has.
    pub fn fail_over(&self) -> usize {
        let (disk, views, commits) = std::mem::take(&mut self.state().standby);
        self.state().views = views;
        self.store.restore(disk);
        self.restart();
        commits
    }

    /// Number of live processes.
    pub fn processes(&self) -> usize {
        self.state().processes.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn identity(pid: i32, begun: u64, starts: u64) -> Identity {
    Identity {
        pid,
        backend_start: format!("{begun}.000000"),
        system_identifier: "7".to_owned(),
        postmaster_start: format!("{starts}.000000"),
    }
}
