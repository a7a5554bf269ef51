//! `DROP DATABASE` and its like need a database alone: the control connections get out of their way.
//!
//! Owns when the control connections are closed for such a statement. Must never close them while sessions need them,
//! unless the statement ends those sessions: a statement that the server refuses must cost nobody anything.

use super::database::Database;
use super::permission::Role;
use super::store::control::{ControlError, Lane, is_true};
use super::store::sql;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the server waits for others to leave before it refuses the statement (`CountOtherDBBackends`).
const SERVER_WAITS: Duration = Duration::from_secs(5);

/// A statement is about to have the database alone.
#[derive(Debug, Default)]
pub(super) struct Vacating(Mutex<Option<Wanted>>);

#[derive(Debug)]
struct Wanted {
    by_force: bool,
    until: Instant,
}

impl Vacating {
    fn begins(&self, by_force: bool) {
        *self.wanted() = Some(Wanted { by_force, until: Instant::now() + SERVER_WAITS });
    }

    /// The statement has been run.
    pub(super) fn is_over(&self) {
        *self.wanted() = None;
    }

    /// A statement waits: the control connections close as soon as no session is left.
    pub(super) fn lasts(&self) -> bool {
        self.wanted().as_ref().is_some_and(|wanted| Instant::now() < wanted.until)
    }

    /// The statement ends everybody: no connection opens that it might not be able to end.
    pub(super) fn is_forced(&self) -> bool {
        self.wanted().as_ref().is_some_and(|wanted| wanted.by_force && Instant::now() < wanted.until)
    }

    fn wanted(&self) -> MutexGuard<'_, Option<Wanted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Database {
    /// Call this before a statement is forwarded that needs this database alone. It closes the control connections if
    /// `role`, as which the session acts, may run the statement. If other sessions use the database and the statement does
    /// not end them, the connections close behind the last of these sessions, if it leaves while the server waits for it.
    /// `from_here`: the session of the statement is itself in this database, and does not count.
    ///
    /// Where the role cannot be asked about, they stay: the server refuses the statement, and it can be tried again.
    /// Cancel-safe.
    pub async fn close_for(self: &Arc<Self>, role: &Role, by_force: bool, from_here: bool) {
        if !self.lanes().iter().any(|lane| lane.is_open()) {
            return;
        }
        let has_others = self.sessions.len() > usize::from(from_here);
        let ends_sessions = by_force && has_others;
        let may = if ends_sessions { self.may_force(role).await } else { self.may_have_alone(role).await };
        if !may.unwrap_or(false) {
            return;
        }
        self.vacating.begins(by_force);
        if by_force {
            // The server does not wait: it ends the sessions that the role may end, and the control role's may not be among them.
            self.end_connections().await;
        } else if !has_others {
            self.close().await;
        }
    }

    /// The database was dropped, renamed or the like: another one may have its name now. Control connections open again.
    pub fn is_no_longer_vacated(&self) {
        self.vacating.is_over();
    }

    async fn end_connections(&self) {
        self.stop_watching();
        self.leave().await;
        for lane in self.lanes() {
            lane.end().await;
        }
    }

    async fn may_have_alone(self: &Arc<Self>, role: &Role) -> Result<bool, ControlError> {
        self.says_disposable(&sql::is_disposable(role)).await
    }

    async fn may_force(self: &Arc<Self>, role: &Role) -> Result<bool, ControlError> {
        let own: Vec<_> = self.lanes().into_iter().filter_map(Lane::process).collect();
        self.says_disposable(&sql::is_disposable_by_force(role, &own)).await
    }

    async fn says_disposable(self: &Arc<Self>, query: &str) -> Result<bool, ControlError> {
        let answers = self.look(query).await?;
        Ok(answers.iter().flat_map(|answer| &answer.rows).any(|row| is_true(row, "disposable")))
    }

    fn lanes(&self) -> [&Lane; 3] {
        [&self.admission, &self.publish, &self.look]
    }
}
