//! Performs the task that a session has asked for, in a tokio task of its own: the session's sockets do not wait for it.

use crate::fence::Refusal;
use crate::session::judge::Need;
use crate::session::task::{Done, Task};
use crate::state::context::Context;
use crate::state::sessions::SessionRecord;
use futures_util::FutureExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use tokio::task::JoinHandle;

/// A task under way.
pub struct Performing {
    handle: JoinHandle<Done>,
    /// The outcome if it panics.
    otherwise: Option<Done>,
    /// Dropped with this: then the steps that are left of it are not begun.
    _wanted: Arc<()>,
}

impl Performing {
    /// Begins.
    pub fn new(task: Task, context: &Context, session: &Arc<SessionRecord>) -> Self {
        let wanted = Arc::new(());
        let (otherwise, handle) = match task {
            Task::Admit(needs) => {
                let name = needs.first().map_or_else(String::new, |(need, _)| need.resource.name.clone());
                let failed = Refusal::unavailable(&name, "the task that asks for it has failed".to_owned());
                // It runs to its end even when the session does not: an Admit is not cancel-safe. But no other one begins then.
                let (shared, record) = (context.shared().clone(), session.clone());
                let tell = move |need: &Need| record.log_admission(&shared, need);
                let admit = context.shared_database().admit(needs, &session.fence, Arc::downgrade(&wanted), tell);
                (Done::Admit(Err(failed)), tokio::spawn(admit.map(Done::Admit)))
            }
            Task::CatchUp(wanted, within) => {
                (Done::Tried, tokio::spawn(context.catch_up(wanted, within).map(|()| Done::Tried)))
            }
            Task::LeaveAlone(alone, role) => {
                (Done::LeftAlone(true), tokio::spawn(context.leave_alone(alone, role).map(Done::LeftAlone)))
            }
            Task::ParsePermit { apart } => {
                (Done::ParsePermit(None), tokio::spawn(context.wait_for_parse_permit(apart).map(Done::ParsePermit)))
            }
            Task::Room { bytes, there, behind } => {
                (Done::Room(None), tokio::spawn(context.wait_for_room(bytes, there, behind).map(Done::Room)))
            }
        };
        Performing { handle, otherwise: Some(otherwise), _wanted: wanted }
    }

    /// Ready when it is done, once.
    pub fn poll_done(&mut self, context: &mut std::task::Context<'_>) -> Poll<Done> {
        let done = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready(done.ok().or_else(|| self.otherwise.take()).unwrap_or(Done::Tried))
    }
}
