//! Locks on fencegate's own tables. A superuser or the owner can take one, for example with LOCK TABLE. While it is held, no
//! session is admitted.
//!
//! Owns reporting the processes that hold or wait for such a lock, in the log and in errors, and terminating them. Must never
//! terminate a process that was not named before, or one that only reads.
//!
//! Not cancel-safe: processes may have been terminated.

use super::StoreError;
use super::common::{Common, Process};
use super::sql;
use crate::blocker::Blocker;
use fencegate_postgres::sql::{StatementResult, answers, column, is_true, number, rows, text};
use fencegate_postgres::tls::ControlConfig;
use parking_lot::Mutex as Immediate;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Client, SimpleQueryRow};

/// Pauses between two attempts, and between two looks at the processes: after a look that could terminate some, and after one
/// that could terminate none.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_IN_VAIN: Duration = Duration::from_millis(50);
/// Time for which a named process is not named again.
const NAMED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of processes that count as named.
const MOST_NAMED: usize = 100;

/// The known processes that block the control connections of a database from fencegate's tables.
#[derive(Debug, Default)]
pub(super) struct TableLocks {
    /// Held by the task that looks, on behalf of all waiting tasks.
    looking: Mutex<()>,
    named: Immediate<Vec<Named>>,
    /// The result of the last look that found any.
    found: Immediate<Option<(Instant, Vec<Blocker>)>>,
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

    /// Decodes the answers to [`sql::table_lock::blocking`]. Logs each process before a look may terminate it, and after one has.
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

/// The processes and prepared transactions, for messages. Of [`sql::table_lock`].
pub(super) fn blockers(answers: &[StatementResult]) -> Vec<Blocker> {
    let mut found: Vec<Blocker> = rows(answers).map(blocker).collect();
    let processes = rows(answers).filter(|row| column(row, "pid").is_some()).count();
    let all = rows(answers).find_map(|row| number(row, "processes")).unwrap_or(processes);
    if all > processes {
        found.push(Blocker { who: format!("{} more", all - processes), query: String::new() });
    }
    found
}

fn blocker(row: &SimpleQueryRow) -> Blocker {
    if let Some(gid) = column(row, "gid") {
        return Blocker { who: format!("prepared transaction {gid}"), query: String::new() };
    }
    let [pid, role, mode, table, waits] =
        ["pid", "role", "mode", "table", "waits"].map(|name| column(row, name).unwrap_or_default());
    let has = if is_true(row, "granted") { "holds" } else { "waits for" };
    let own = if is_true(row, "is_own") { " (fencegate init, remove or guard)" } else { "" };
    let who = format!("process {pid} of role {role}{own} {has} {mode} on fencegate_state.{table}, wait event {waits}");
    Blocker { who, query: text(row, "query").unwrap_or_default() }
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
            pause = if look.is_some_and(|it| it.ends_some) { PAUSE } else { PAUSE_IN_VAIN };
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
        let query = sql::table_lock::blocking(control, &self.common.table_locks.named());
        let found = client.simple_query(&query).await.ok()?;
        self.client = Some(client);
        Some(self.common.table_locks.read(self.config.database(), &answers(found)))
    }
}
