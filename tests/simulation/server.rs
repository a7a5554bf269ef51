//! The simulated server: processes, locks of rows, crashes.
//!
//! Owns what a server process is to others: its identity, its signals, the rows that it locks. What it does with what it
//! is told is in `process.rs`. Must behave as PostgreSQL where the proxy looks: a process that has lost its client goes on
//! with what it was given, one that is told to end may be slow, and its number may soon be another's.

use super::pipe::{Reader, Writer, pipe};
use super::process::Process;
use super::sql::Table;
use super::world::World;
use crate::fence::session::{Epoch, Identity};
use crate::fence::store::Key;
use crate::policy::QualifiedName;
use crate::support::store::{self, Disk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// One server with one database.
pub struct Server {
    pub store: Arc<store::Server>,
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
    /// Who has locked which row, and who waits for whom.
    locks: BTreeMap<(Table, u8), i32>,
    waiting: BTreeMap<i32, i32>,
    /// What a standby has by now, and how many commits it has seen.
    standby: (Disk, usize),
    /// Up to when its clock has gone on.
    clock: Option<Instant>,
}

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
        let tables = [Table::Jobs, Table::Ticks, Table::Notes].map(qualified);
        let store = store::Server::new(1_000_000, &who, tables);
        store.end_late();
        Server { store, released: Notify::new(), state: Mutex::default() }
    }

    /// Its clock shows the time.
    pub fn time_passes(&self) {
        let now = Instant::now();
        let before = self.state().clock.replace(now).unwrap_or(now);
        self.store.pass(now - before);
    }

    /// A process begins, whose `lease.fence` is that at the start.
    pub fn connect(&self, world: &Arc<World>, value: Option<String>) -> Connection {
        let (to_server, from_client) = pipe(world.dice());
        let (to_client, from_server) = pipe(world.dice());
        let mut state = self.state();
        // The lowest number that is free: another may have had it a moment ago.
        let pid = (100..).find(|pid| !state.processes.contains_key(pid)).unwrap();
        state.begun += 1;
        let who = identity(pid, state.begun, state.starts);
        self.store.begin_process(&who);
        let signals = Arc::new(Signals::default());
        let process = Process::new(world.clone(), who.clone(), from_client, to_client, signals.clone(), value);
        let task = tokio::spawn(process.run()).abort_handle();
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

    /// Locks the row, if it is free. Who has it otherwise; None: whoever waits for it would wait for ever.
    pub fn lock(&self, pid: i32, row: (Table, u8)) -> Result<(), Option<i32>> {
        let mut state = self.state();
        state.waiting.remove(&pid);
        let holder = *state.locks.entry(row).or_insert(pid);
        if holder == pid {
            return Ok(());
        }
        let mut before = Some(holder);
        while let Some(waits) = before {
            if waits == pid {
                return Err(None);
            }
            before = state.waiting.get(&waits).copied();
        }
        state.waiting.insert(pid, holder);
        Err(Some(holder))
    }

    /// The process lets go of all rows.
    pub fn unlock(&self, pid: i32) {
        let mut state = self.state();
        state.locks.retain(|_, holder| *holder != pid);
        state.waiting.remove(&pid);
        self.released.notify_waiters();
    }

    /// The epoch under which the process is admitted to the table's resource with that token.
    pub fn admission(&self, pid: i32, table: Table, token: i64) -> Option<Epoch> {
        let admitted = self.store.admissions(pid, table.name());
        admitted.into_iter().filter(|epoch| epoch.token == token).max()
    }

    /// The standby has all that there is now.
    pub fn replicate(&self, commits: usize) {
        self.state().standby = (self.store.copy(), commits);
    }

    /// Every process ends at once; what was committed stays.
    pub fn restart(&self) {
        let mut state = self.state();
        std::mem::take(&mut state.processes).values().for_each(|running| running.task.abort());
        (state.locks, state.waiting) = (BTreeMap::new(), BTreeMap::new());
        state.starts += 1;
        let starts = state.starts;
        drop(state);
        self.store.restart(&identity(0, 0, starts).postmaster_start);
    }

    /// The standby takes the server's place. Returns how many commits it has.
    pub fn fail_over(&self) -> usize {
        let (disk, commits) = std::mem::take(&mut self.state().standby);
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
