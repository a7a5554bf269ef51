//! A task of a session in progress. It runs as a separate tokio task, so that the session's sockets do not wait for it.
//! Database queries run in the background, because other sessions wait for their locks and connections.
//!
//! Owns on which runtime the task runs, and its outcome if it panics. Must never abort an Admit or another Query: only
//! tasks that wait in a queue end with their session.

use crate::state::context;
use crate::state::sessions::SessionRecord;
use fencegate_fence::{FenceError, Obstacle};
use fencegate_session::judge::Need;
use fencegate_session::task::{Done, Task};
use futures_util::FutureExt;
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// A task in progress.
#[must_use = "a wait in a queue ends when this is dropped"]
pub(super) struct Performing {
    handle: JoinHandle<Done>,
    /// The outcome if it panics.
    otherwise: Option<Done>,
    /// True if the task waits in a queue that other sessions use. Dropping this aborts such a task, so that an ended
    /// session does not keep its place.
    is_in_queue: bool,
    /// Dropping this keeps the remaining steps from starting.
    _wanted: Arc<()>,
}

impl Drop for Performing {
    fn drop(&mut self) {
        if self.is_in_queue {
            self.handle.abort();
        }
    }
}

impl Performing {
    /// Starts the task.
    pub(super) fn new(task: Task, context: &context::Context, session: &Arc<SessionRecord>) -> Self {
        let wanted = Arc::new(());
        // Tasks that wait in a queue run on the runtime of logins, because only this session waits for them.
        let background = &context.shared().background;
        let is_in_queue = matches!(task, Task::ParsePermit { .. } | Task::Room { .. });
        let (otherwise, handle) = match task {
            Task::Admit(needs) => {
                let name = needs.first().map_or_else(String::new, |(need, _)| need.resource.name.clone());
                let failed = FenceError::unavailable(&name, Obstacle::TaskFailed);
                // An Admit is not cancel-safe, so it completes even if the session ends. No further Admit begins then.
                let (shared, record) = (context.shared().clone(), session.clone());
                let tell = move |need: &Need| record.log_admission(&shared, need);
                let admit = context.shared_database().admit(needs, &session.fence, Arc::downgrade(&wanted), tell);
                (Done::Admit(Err(failed)), background.spawn(admit.map(Done::Admit)))
            }
            Task::CatchUp(wanted, within) => {
                (Done::Tried, background.spawn(context.catch_up(wanted, within).map(|()| Done::Tried)))
            }
            Task::CheckOwner(databases, role) => {
                let check = context.foreign_databases(databases, role).map(Done::CheckedOwner);
                (Done::CheckedOwner(HashSet::new()), background.spawn(check))
            }
            Task::VacateDatabase(wanted, role) => (
                Done::VacatedDatabase,
                background.spawn(context.vacate_database(wanted, role).map(|()| Done::VacatedDatabase)),
            ),
            Task::ParsePermit { out_of_process } => (
                Done::ParsePermit(None),
                tokio::spawn(context.wait_for_parse_permit(out_of_process).map(Done::ParsePermit)),
            ),
            Task::Room { bytes, there, behind } => {
                (Done::Room(None), tokio::spawn(context.wait_for_room(bytes, there, behind).map(Done::Room)))
            }
        };
        Performing { handle, otherwise: Some(otherwise), is_in_queue, _wanted: wanted }
    }

    /// Ready once, when the task is done.
    pub(super) fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<Done> {
        let done = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready(done.ok().or_else(|| self.otherwise.take()).unwrap_or(Done::Tried))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::room::LOOK_AGAIN;
    use crate::state::shared::Shared;
    use fencegate_session::task::HeldRoom;
    use tokio::task::yield_now;
    use tokio::time::advance;

    fn session(shared: &Arc<Shared>) -> (context::Context, Arc<SessionRecord>) {
        (context::Context::new(shared.clone(), "stranger", "stranger"), SessionRecord::of_test(1))
    }

    /// Starts the task and lets it begin to wait.
    async fn begin(task: Task, session: &(context::Context, Arc<SessionRecord>)) -> Performing {
        let performing = Performing::new(task, &session.0, &session.1);
        yield_now().await;
        performing
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_session_does_not_wait_for_room() {
        let shared = Shared::of_test();
        let mut room = shared.room.try_take(100, 0).unwrap();
        let mut is_overdue = async || {
            advance(LOOK_AGAIN).await;
            room.is_overdue(0)
        };
        let waits = begin(Task::Room { bytes: usize::MAX, there: 0, behind: false }, &session(&shared)).await;
        assert!(is_overdue().await, "a session waits");
        drop(waits);
        yield_now().await;
        assert!(!is_overdue().await, "nobody waits any more");
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_session_receives_no_permit() {
        let shared = Shared::of_test();
        let permits = &shared.parse_permits;
        let all: Vec<_> = (0..10).map_while(|_| permits.try_take("stranger")).collect();
        let waits = begin(Task::ParsePermit { out_of_process: false }, &session(&shared)).await;
        drop(waits);
        yield_now().await;
        drop(all);
        assert!(permits.try_take("stranger").is_some());
    }
}
