//! State that the control connections of a database share: facts about the database, single-use connections, and locks on
//! fencegate's own tables. A superuser or the owner can take such a lock, for example with LOCK TABLE. While it is held, no
//! session is admitted.
//!
//! Owns reporting the processes that hold or wait for such a lock, in the log and in errors, and terminating them. Must never
//! - open a connection while connections are kept closed;
//! - terminate a process that was not named before, or one that only reads.
//!
//! Not cancel-safe: processes may have been terminated.

use super::error::LIMIT;
use super::{Found, StoreError, sql};
use crate::obstacle::Blocker;
use fencegate_postgres::sql::{StatementResult, answers, column, is_true, number, rows, text};
use fencegate_postgres::tls::ControlConfig;
use futures_util::FutureExt;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Client, SimpleQueryRow};

/// State that the lanes of a database share.
#[derive(Debug, Default)]
pub(super) struct Common {
    found: Mutex<Found>,
    closed_until: Mutex<Option<Instant>>,
    /// Number of sessions that have logged in to the database.
    sessions: AtomicU64,
    /// The pid of the server process that sends this proxy's announcements. 0: there is none.
    announcing: AtomicI32,
    /// Server processes of recently abandoned connections, with the time. Nothing reports when they have ended.
    leaving: Mutex<Vec<(Instant, Process)>>,
    /// Held by each single-use connection.
    pub(super) passing: Arc<RwLock<()>>,
    pub(super) table_locks: TableLocks,
}

/// The pid of a server process, and its start.
pub(super) type Process = (String, String);

impl Common {
    pub(super) fn found(&self) -> Found {
        *self.found.lock()
    }

    pub(super) fn note_login(&self) {
        self.sessions.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::SeqCst)
    }

    pub(super) fn keep_closed(&self, until: Option<Instant>) {
        *self.closed_until.lock() = until;
    }

    pub(super) fn is_kept_closed(&self) -> bool {
        self.closed_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Records that this server process sends this proxy's announcements.
    pub(super) fn announces(&self, process: &Process) {
        self.announcing.store(process.0.parse().unwrap_or_default(), Ordering::SeqCst);
    }

    /// Records that the connection of this server process is abandoned.
    pub(super) fn leaves(&self, process: Process) {
        if let Ok(pid) = process.0.parse() {
            self.announcing.compare_exchange(pid, 0, Ordering::SeqCst, Ordering::SeqCst).ok();
        }
        let mut leaving = self.leaving.lock();
        leaving.retain(|(since, _)| since.elapsed() < LIMIT);
        leaving.push((Instant::now(), process));
    }

    /// Server processes that may not have ended yet.
    pub(super) fn leaving(&self) -> Vec<Process> {
        let mut leaving = self.leaving.lock();
        leaving.retain(|(since, _)| since.elapsed() < LIMIT);
        leaving.iter().map(|(_, process)| process.clone()).collect()
    }

    /// Returns true if the process sends this proxy's announcements, or its connection was recently abandoned.
    pub(super) fn is_own(&self, pid: i32) -> bool {
        self.announcing.load(Ordering::SeqCst) == pid || self.leaving().iter().any(|(it, _)| *it == pid.to_string())
    }

    /// Records the result of an attempt to connect. One that failed before it reached the database changes nothing.
    pub(super) fn note(&self, error: Option<&StoreError>) {
        *self.found.lock() = match error {
            None | Some(StoreError::Version { .. } | StoreError::Newer { .. }) => Found::Nothing,
            Some(StoreError::Unprepared { .. }) => Found::Unprepared,
            Some(StoreError::NoDatabase { .. }) => Found::Missing,
            Some(_) => return,
        };
    }

    /// Opens a single-use connection, which does not require the schema. Closed when the client is dropped. Not cancel-safe.
    pub(super) async fn open_once(
        &self,
        control: &ControlConfig,
        passes: OwnedRwLockReadGuard<()>,
    ) -> Result<Client, StoreError> {
        if self.is_kept_closed() {
            return Err(StoreError::Vacated);
        }
        let (client, connection) = control.connect().await.map_err(|error| StoreError::on_connect(control, error))?;
        // Ends when the client is dropped.
        tokio::spawn(connection.map(|_| drop(passes)));
        let settings = "SET standard_conforming_strings = on; SET application_name = 'fencegate control'; SET search_path = pg_catalog";
        client.simple_query(settings).await.map_err(|error| StoreError::Refused(error.into()))?;
        // If the server does not report the process, nothing waits for its end.
        if let Ok(own) = client.simple_query(&sql::proxy::own()).await {
            let own = answers(own);
            let process = |row| Some((column(row, "pid")?.to_owned(), column(row, "backend_start")?.to_owned()));
            rows(&own).filter_map(process).for_each(|it| self.leaves(it));
        }
        Ok(client)
    }
}

/// Pauses between two attempts, and between two looks at the processes: after a look that could terminate some, and after one
/// that could terminate none.
const PAUSE: Duration = Duration::from_millis(10);
const FUTILE_PAUSE: Duration = Duration::from_millis(50);
/// Time for which a named process is not named again.
const NAMED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of processes that count as named.
const MOST_NAMED: usize = 100;

/// The known processes that block the control connections of a database from fencegate's tables.
#[derive(Debug, Default)]
pub(super) struct TableLocks {
    /// Held by the task that looks, on behalf of all waiting tasks.
    looking: tokio::sync::Mutex<()>,
    named: Mutex<Vec<Named>>,
    /// The result of the last look that found any.
    found: Mutex<Option<(Instant, Vec<Blocker>)>>,
}

/// A process that the log has named.
#[derive(Debug)]
struct Named {
    since: Instant,
    process: Process,
    is_ended: bool,
}

/// Result of a look.
#[derive(Default)]
pub(super) struct Look {
    /// The processes and prepared transactions, for messages.
    pub(super) blockers: Vec<Blocker>,
    /// True if a process was terminated, or will be at the next look.
    pub(super) ends_some: bool,
}

impl TableLocks {
    /// The processes that a look may terminate.
    pub(super) fn named(&self) -> Vec<Process> {
        let mut named = self.named.lock();
        named.retain(|it| it.since.elapsed() < NAMED_FOR);
        named.iter().map(|it| it.process.clone()).collect()
    }

    /// Decodes the answers to [`sql::lock::blocking`]. Logs each process before a look may terminate it, and after one has.
    pub(super) fn read(&self, database: &str, answers: &[StatementResult]) -> Look {
        let mut look = Look { blockers: blockers(answers), ends_some: false };
        for row in rows(answers) {
            let (Some(pid), Some(start)) = (text(row, "pid"), text(row, "backend_start")) else { continue };
            look.ends_some |= is_true(row, "may_end");
            self.log(database, row, (pid, start));
        }
        if !look.blockers.is_empty() {
            *self.found.lock() = Some((Instant::now(), look.blockers.clone()));
        }
        look
    }

    fn log(&self, database: &str, row: &SimpleQueryRow, process: Process) {
        let pid: Option<i32> = number(row, "pid");
        let [role, mode, table] = ["role", "mode", "table"].map(|name| column(row, name).unwrap_or_default());
        let (granted, is_signalled) = (is_true(row, "granted"), is_true(row, "signalled"));
        let mut named = self.named.lock();
        match named.iter_mut().find(|it| it.process == process) {
            Some(known) if is_signalled && !known.is_ended => {
                known.is_ended = true;
                tracing::warn!(database, pid, role, mode, table, "table_lock_ended");
            }
            Some(_) => {}
            None => {
                named.truncate(MOST_NAMED - 1);
                named.insert(0, Named { since: Instant::now(), process, is_ended: false });
                tracing::warn!(database, pid, role, mode, table, granted, "table_locked");
            }
        }
    }

    /// The error for an operation that has waited this long without success. Names the processes, if a look has found any.
    pub(super) fn explain(&self, error: StoreError, waited: Duration) -> StoreError {
        match &*self.found.lock() {
            Some((at, blockers)) if at.elapsed() <= waited => StoreError::TablesLocked(blockers.clone()),
            _ => error,
        }
    }
}

/// The processes and prepared transactions, for messages. From the queries in [`sql::lock`].
pub(super) fn blockers(answers: &[StatementResult]) -> Vec<Blocker> {
    let mut found: Vec<Blocker> = rows(answers).map(blocker).collect();
    let processes = rows(answers).filter(|row| column(row, "pid").is_some()).count();
    let all = rows(answers).find_map(|row| number(row, "processes")).unwrap_or(processes);
    if all > processes {
        found.push(Blocker { holder: format!("{} more", all - processes), query: String::new() });
    }
    found
}

fn blocker(row: &SimpleQueryRow) -> Blocker {
    if let Some(gid) = column(row, "gid") {
        return Blocker { holder: format!("prepared transaction {gid}"), query: String::new() };
    }
    let [pid, role, mode, table, waits] =
        ["pid", "role", "mode", "table", "waits"].map(|name| column(row, name).unwrap_or_default());
    let has = if is_true(row, "granted") { "holds" } else { "waits for" };
    let own = if is_true(row, "is_own") { " (fencegate init, remove or guard)" } else { "" };
    let holder =
        format!("process {pid} of role {role}{own} {has} {mode} on fencegate_state.{table}, wait event {waits}");
    Blocker { holder, query: text(row, "query").unwrap_or_default() }
}

/// Repeats an attempt of the control process that had no effect because its wait for a lock exceeded the server's lock_timeout,
/// until `until`. Names and terminates the processes that block it from a table of fencegate. The error names those that did not
/// end.
pub(super) async fn past_table_locks<T, F>(
    config: &ControlConfig,
    common: &Common,
    control: impl Fn() -> Option<Process>,
    until: Instant,
    attempt: impl Fn() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let began = Instant::now();
    let mut looker = Looker { config, common, client: None };
    let mut turn = None;
    loop {
        turn = turn.or_else(|| common.table_locks.looking.try_lock().ok());
        let outcome = match turn {
            Some(_) => looker.watch(attempt(), &control, until).await,
            None => attempt().await,
        };
        match outcome {
            Err(StoreError::LockNotAvailable) if Instant::now() < until => sleep(PAUSE).await,
            Err(error @ (StoreError::LockNotAvailable | StoreError::TimedOut(_))) => {
                return Err(common.table_locks.explain(error, began.elapsed()));
            }
            outcome => return outcome,
        }
    }
}

/// Looks at the processes over a single-use connection, because all lanes may be waiting.
struct Looker<'a> {
    config: &'a ControlConfig,
    common: &'a Common,
    client: Option<Client>,
}

impl Looker<'_> {
    /// Returns the outcome of the attempt. Looks at the processes while the attempt runs.
    async fn watch<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, StoreError>>,
        control: &impl Fn() -> Option<Process>,
        until: Instant,
    ) -> Result<T, StoreError> {
        let mut attempt = pin!(attempt);
        let mut pause = PAUSE;
        loop {
            if let Ok(outcome) = timeout(pause, attempt.as_mut()).await {
                return outcome;
            }
            let Some((pid, start)) = control() else { continue };
            let look = timeout_at(until, self.look((&pid, &start))).await.ok().flatten();
            pause = if look.is_some_and(|it| it.ends_some) { PAUSE } else { FUTILE_PAUSE };
        }
    }

    /// None: the look failed. The next one opens another connection.
    async fn look(&mut self, control: (&str, &str)) -> Option<Look> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                // Never wait here: the task that holds the write lock may be the one that looks.
                let passes = self.common.passing.clone().try_read_owned().ok()?;
                self.common.open_once(self.config, passes).await.ok()?
            }
        };
        let query = sql::lock::blocking(control, &self.common.table_locks.named());
        let found = client.simple_query(&query).await.ok()?;
        self.client = Some(client);
        Some(self.common.table_locks.read(self.config.database(), &answers(found)))
    }
}
