//! Waiting for a lock that another process holds. Any role can take a resource's lock. Publish needs it exclusively, Admit
//! shared.
//!
//! Owns the termination of processes that hold this lock, or a lock on a table of fencegate, and the connection on which
//! Queries wait. Must never terminate a process that does not block this very Query. The wait for one resource must never
//! delay Queries of another that could run.
//!
//! Not cancel-safe: the Query may have taken effect, and processes may have been terminated.

use super::connections::Connections;
use super::control::Lane;
use super::error::LIMIT;
use super::rows::blocker;
use super::{GRACE, StoreError, sql};
use crate::obstacle::Blocker;
use fencegate_policy::Resource;
use fencegate_postgres::sql::{StatementResult, is_true, rows};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The server's limit on the wait for a lock, on a connection shared with Queries that need not wait.
const FIRST_TIMEOUT: Duration = Duration::from_millis(5);
/// The limit on the connection for waits, which several resources share. Long enough for a terminated process to end.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(100);
/// The limit if the last look could terminate no blocker.
const FUTILE_TIMEOUT: Duration = Duration::from_millis(20);
/// Pause between two looks at the blocking processes.
const PAUSE: Duration = Duration::from_millis(10);

/// Results of the looks at the blocking processes.
#[derive(Default)]
struct BlockingProcesses {
    /// Holders of the resource's lock, and of a lock on a table of fencegate, from the last look that found any.
    blockers: Vec<Blocker>,
    table_blockers: Vec<Blocker>,
    /// True if the last look could terminate none of them.
    is_futile: bool,
}

fn refusal(error: StoreError, seen: BlockingProcesses) -> StoreError {
    match error {
        StoreError::LockNotAvailable | StoreError::TimedOut(_) if !seen.table_blockers.is_empty() => {
            StoreError::TablesLocked(seen.table_blockers)
        }
        StoreError::LockNotAvailable | StoreError::TimedOut(_) if !seen.blockers.is_empty() => {
            StoreError::Blocked(seen.blockers)
        }
        error => error,
    }
}

impl Connections {
    /// Runs a Query that takes the resource's lock, or a row lock. Terminates processes that have not released the resource's
    /// lock within the grace period. The error names those that did not end.
    ///
    /// Only the first attempt runs on the lane. Later attempts take turns on the connection for waits.
    pub(super) async fn run_past_blockers(
        &self,
        lane: &Lane,
        resource: &Resource,
        query: &str,
    ) -> Result<Vec<StatementResult>, StoreError> {
        self.listen();
        let began = Instant::now();
        let mut seen = BlockingProcesses::default();
        let mut answers = lane.run(&sql::lock::with_lock_timeout(FIRST_TIMEOUT, query)).await;
        while matches!(answers, Err(StoreError::LockNotAvailable)) && began.elapsed() < LIMIT {
            if seen.is_futile {
                sleep(GRACE).await;
            }
            // One Query per resource waits for the turn, and one of all has it.
            let of_resource = lane.resource_locks.of(&resource.name);
            let turn = timeout_at(began + LIMIT, async { (of_resource.lock().await, self.waiting.lock().await) });
            let Ok(_turn) = turn.await else { break };
            answers = self.run_and_end_blockers(resource, query, began + GRACE, &mut seen).await;
        }
        let error = match answers {
            // The first answer is that of SET.
            Ok(answers) => return Ok(answers.into_iter().skip(1).collect()),
            Err(error) => error,
        };
        if matches!(error, StoreError::LockNotAvailable) && seen.blockers.is_empty() && seen.table_blockers.is_empty() {
            self.end_blockers(resource, &mut seen).await;
        }
        Err(refusal(error, seen))
    }

    /// Runs the Query on the connection for waits. After the grace period, terminates the processes that block it.
    async fn run_and_end_blockers(
        &self,
        resource: &Resource,
        query: &str,
        grace_over: Instant,
        seen: &mut BlockingProcesses,
    ) -> Result<Vec<StatementResult>, StoreError> {
        let limit = if seen.is_futile { FUTILE_TIMEOUT } else { QUEUE_TIMEOUT };
        let query = sql::lock::with_lock_timeout(limit, query);
        let mut running = pin!(self.wait.run(&query));
        // Only after the Query has begun to wait.
        let mut next_look = grace_over.max(Instant::now() + PAUSE);
        loop {
            if let Ok(answers) = timeout_at(next_look, running.as_mut()).await {
                return answers;
            }
            self.end_blockers(resource, seen).await;
            next_look = Instant::now() + PAUSE;
        }
    }

    /// Terminates the processes that block the connection for waits. Does nothing if the look fails; the next one may succeed.
    async fn end_blockers(&self, resource: &Resource, seen: &mut BlockingProcesses) {
        let Some((pid, start)) = self.wait.process() else { return };
        let table_locks = &self.common.table_locks;
        let of_resource = sql::lock::end_blockers(&resource.name, (&pid, &start));
        let of_tables = sql::lock::blocking((&pid, &start), &table_locks.named());
        let Ok(answers) = self.look(&format!("{of_resource}; {of_tables}")).await else { return };
        // The first query has two answers.
        let Some((of_resource, of_tables)) = answers.split_at_checked(2) else { return };
        let tables = table_locks.read(self.wait.config.database(), of_tables);
        seen.is_futile = !tables.ends_some && !rows(of_resource).any(|row| is_true(row, "signalled"));
        let found: Vec<Blocker> = rows(of_resource).map(blocker).collect();
        if !found.is_empty() || !tables.blockers.is_empty() {
            (seen.blockers, seen.table_blockers) = (found, tables.blockers);
        }
    }
}
