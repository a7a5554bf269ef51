//! The simulated server: processes, locks, views, crashes.
//!
//! Owns what a server process is to others: its identity, its signals, its locks. What it does with what it
//! is told is in `process.rs`. Must behave as PostgreSQL where the proxy looks: a process that has lost its client goes on
//! with what it was given, one that is told to end may be slow, and its number may soon be another's.

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

/// What a leader does with its lease.
pub enum Kept {
    Won(Duration),
    Renewed(Duration),
    Released,
}

/// One server with one database.
pub struct Server {
    pub store: Arc<simulated::Server>,
    /// Somebody has let go of locks.
    pub released: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    processes: BTreeMap<i32, Running>,
    /// So many processes have begun.
    begun: u64,
    /// So often the server was started.
    starts: u64,
    locks: Locks,
    /// Processes that have locked rows of a fenced table and present no token: no fence ends them.
    unfenced: BTreeSet<i32>,
    views: Views,
    /// When a proxy has heard that the catalog has changed, and when that was said.
    heard: Vec<Heard>,
    /// How many transactions have committed, and which of them has changed a row last.
    commits: u64,
    changed: BTreeMap<(Table, u8), u64>,
    /// What a standby has by now, and how many commits it has seen.
    standby: (Disk, Views, usize),
    /// Up to when its clock has gone on.
    clock: Option<Instant>,
}

struct Heard {
    by: String,
    announced: Instant,
    at: Instant,
}

/// A view that shows a table as it is, and its definition.
#[derive(Clone, Debug)]
pub struct View {
    pub table: Table,
    /// The process that has defined it, with its start, as numbers are used again; and the proxy before it.
    pub process: (i32, String),
    pub by: String,
    /// When the proxy passed the definition on, and when it was committed.
    pub forwarded: Instant,
    pub committed: Instant,
}

pub type Views = BTreeMap<u8, View>;

struct Running {
    start: String,
    signals: Arc<Signals>,
    task: AbortHandle,
}

/// How others reach a process.
#[derive(Default)]
pub struct Signals {
    /// It is told to end, and does so at that moment.
    end: Mutex<Option<Instant>>,
    /// It is to leave off what it does now.
    cancel: Mutex<bool>,
    wake: Notify,
}

impl Signals {
    /// Returns when the process ends because it is told to. Cancel-safe.
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

/// A connection to the server, as whoever opened it has it.
pub struct Connection {
    pub who: Identity,
    pub writer: Writer,
    pub reader: Reader,
}

/// As the store knows it.
pub fn qualified(table: Table) -> QualifiedName {
    QualifiedName { schema: "public".to_owned(), name: table.name().to_owned() }
}

impl Server {
    pub fn new() -> Self {
        let who = identity(0, 0, 0);
        let store = simulated::Server::new(1_000_000, &who, Table::ALL.map(qualified));
        store.end_late();
        Server { store, released: Notify::new(), state: Mutex::default() }
    }

    /// Its clock shows the time.
    pub fn time_passes(&self) {
        let now = Instant::now();
        let before = self.state().clock.replace(now).unwrap_or(now);
        self.store.pass(now - before);
    }

    /// What has become of the lease of the election, where there are leases.
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

    /// A process begins for the session of that number and of that proxy, whose `lease.fence` is that at the start.
    pub fn connect(&self, world: &Arc<World>, by: &str, value: Option<String>, session: u64) -> Connection {
        let (to_server, from_client) = pipe(world.dice());
        let (to_client, from_server) = pipe(world.dice());
        let mut state = self.state();
        // The lowest number that is free: another may have had it a moment ago.
        let pid = (100..).find(|pid| !state.processes.contains_key(pid)).unwrap();
        state.begun += 1;
        let who = identity(pid, state.begun, state.starts);
        self.store.begin_process(&who);
        let signals = Arc::new(Signals::default());
        let connection = (from_client, to_client);
        let process = Process::new(world, (by, session), who.clone(), connection, signals.clone(), value);
        let task = tokio::spawn(Box::pin(process.run())).abort_handle();
        state.processes.insert(pid, Running { start: who.backend_start.clone(), signals, task });
        Connection { who, writer: to_server, reader: from_server }
    }

    /// The process has ended.
    pub fn ended(&self, pid: i32) {
        let mut state = self.state();
        state.processes.remove(&pid);
        drop(state);
        self.unlock(pid);
        self.store.end_process(pid);
    }

    /// These are told to end, and are deaf to it for a while.
    pub fn tell_to_end(&self, processes: &[Key], deaf: impl Fn() -> Duration) {
        let state = self.state();
        for (pid, start) in processes {
            if let Some(running) = state.processes.get(pid).filter(|it| it.start == *start) {
                running.signals.end.lock().unwrap().get_or_insert_with(|| Instant::now() + deaf());
                running.signals.wake.notify_one();
            }
        }
    }

    /// What the process does now is to be left off, as a request to cancel says.
    pub fn cancel(&self, pid: i32) {
        if let Some(running) = self.state().processes.get(&pid) {
            *running.signals.cancel.lock().unwrap() = true;
        }
    }

    pub fn lock(&self, pid: i32, thing: Thing, mode: Mode) -> Result<(), Taken> {
        self.state().locks.take(pid, thing, mode)
    }

    /// The process lets go of all locks.
    pub fn unlock(&self, pid: i32) {
        let mut state = self.state();
        state.locks.release(pid);
        state.unfenced.remove(&pid);
        drop(state);
        self.released.notify_waiters();
    }

    /// The process has locked rows of a fenced table, and presents no token.
    pub fn locks_without_token(&self, pid: i32) {
        self.state().unfenced.insert(pid);
    }

    /// It holds such locks.
    pub fn has_locks_without_token(&self, pid: i32) -> bool {
        self.state().unfenced.contains(&pid)
    }

    /// The views as whoever has defined none sees them.
    pub fn views(&self) -> Views {
        self.state().views.clone()
    }

    pub fn view(&self, view: u8) -> Option<View> {
        self.state().views.get(&view).cloned()
    }

    /// The proxy hears what was announced then: that the catalog has changed.
    pub fn heard(&self, by: &str, announced: Instant) {
        self.state().heard.push(Heard { by: by.to_owned(), announced, at: Instant::now() });
    }

    /// Before that moment the proxy has heard of a change that was there then.
    pub fn has_heard(&self, by: &str, change: Instant, before: Instant) -> bool {
        self.state().heard.iter().any(|heard| heard.by == by && heard.announced >= change && heard.at < before)
    }

    /// A transaction commits that has changed these rows and defined these views, or dropped some.
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

    /// The row was changed by a transaction that the snapshot does not have.
    pub fn has_changed_since(&self, snapshot: u64, row: (Table, u8)) -> bool {
        self.state().changed.get(&row).is_some_and(|changed| *changed > snapshot)
    }

    /// The epoch under which the process is admitted with that token.
    pub fn admission(&self, pid: i32, fence: Fence, token: i64) -> Option<Epoch> {
        let admitted = self.store.admissions(pid, fence.name());
        admitted.into_iter().filter(|epoch| epoch.token == token).max()
    }

    /// The standby has all that there is now.
    pub fn replicate(&self, commits: usize) {
        let mut state = self.state();
        state.standby = (self.store.copy(), state.views.clone(), commits);
    }

    /// Every process ends at once; what was committed stays.
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

    /// The standby takes the server's place. Returns how many commits it has.
    pub fn fail_over(&self) -> usize {
        let (disk, views, commits) = std::mem::take(&mut self.state().standby);
        self.state().views = views;
        self.store.restore(disk);
        self.restart();
        commits
    }

    /// How many processes live.
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
