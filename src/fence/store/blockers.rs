//! Waiting for the lock of a resource, which is any role's to take: Publish needs it exclusively, Admit shared.
//!
//! Owns ending the processes that hold it. Must never end one that does not block this very Query, nor let the wait for one
//! resource delay the others, whose Queries take the same connection.
//!
//! Not cancel-safe: the Query may have taken effect, and processes may have been ended.

use super::control::{LIMIT, Lane};
use super::error::ControlError;
use super::rows::blocker;
use super::{Postgres, StoreError, sql};
use crate::fence::advance::GRACE;
use crate::fence::refusal::Blocker;
use crate::policy::Resource;
use crate::sql::{StatementResult, rows};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The server's limit on a Query's wait for a lock, at first and when it is sent again. In between, Queries of other
/// resources run.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));
/// Between two looks at the blocking processes.
const PAUSE: Duration = Duration::from_millis(10);

impl Postgres {
    /// Runs a Query that takes the resource's lock. Ends the processes that have not released it within the grace. The error
    /// names those that did not end.
    pub(super) async fn run_past_blockers(
        &self,
        lane: &Lane,
        resource: &Resource,
        query: &str,
    ) -> Result<Vec<StatementResult>, StoreError> {
        let began = Instant::now();
        let mut blockers = Vec::new();
        let mut answers = lane.run(&sql::lock::with_lock_timeout(WAIT.0, query)).await;
        while matches!(answers, Err(ControlError::Locked)) && began.elapsed() < LIMIT {
            // One retry for each resource at a time, and one in all: so a first attempt waits for one retry at most.
            let of_resource = lane.resource_locks.of(&resource.name);
            let turn = timeout_at(began + LIMIT, async { (of_resource.lock().await, lane.retrying.lock().await) });
            let Ok(_turn) = turn.await else { break };
            answers = self.run_and_end_blockers(lane, resource, query, began + GRACE, &mut blockers).await;
        }
        let error = match answers {
            // The first answer is that to the setting.
            Ok(answers) => return Ok(answers.into_iter().skip(1).collect()),
            Err(error) => error,
        };
        if matches!(error, ControlError::Locked) && blockers.is_empty() {
            blockers = self.end_blockers(lane, resource).await;
        }
        Err(match error {
            ControlError::Locked | ControlError::TimedOut if !blockers.is_empty() => StoreError::Blocked(blockers),
            error => error.into(),
        })
    }

    /// Runs the Query; once the grace is over, ends the processes that block it. Leaves the last of these in `blockers`.
    async fn run_and_end_blockers(
        &self,
        lane: &Lane,
        resource: &Resource,
        query: &str,
        grace_over: Instant,
        blockers: &mut Vec<Blocker>,
    ) -> Result<Vec<StatementResult>, ControlError> {
        let query = sql::lock::with_lock_timeout(WAIT.1, query);
        let mut running = pin!(lane.run(&query));
        let mut next_look = grace_over;
        loop {
            if let Ok(answers) = timeout_at(next_look, running.as_mut()).await {
                return answers;
            }
            let found = self.end_blockers(lane, resource).await;
            if !found.is_empty() {
                *blockers = found;
            }
            next_look = Instant::now() + PAUSE;
        }
    }

    /// Ends the blocking processes and returns them. Where the look fails it ends none; the next look may succeed.
    async fn end_blockers(&self, lane: &Lane, resource: &Resource) -> Vec<Blocker> {
        let Some((pid, start)) = lane.process() else { return Vec::new() };
        let Ok(answers) = self.look(&sql::lock::end_blockers(&resource.name, (&pid, &start))).await else {
            return Vec::new();
        };
        rows(&answers).map(blocker).collect()
    }
}
