//! Out of the way of who needs a database alone: `DROP DATABASE` and the like.
//!
//! Owns when the control connections are closed for that. Must never close them while a session has need of them, unless
//! the statement ends all sessions: the server refuses it as long as they stay, and they are not to feel it.

use super::control::{ControlError, Lane, is_true};
use super::database::Database;
use super::permission::Role;
use super::sql;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long the server waits for others to leave, before it refuses the statement.
const SERVER_WAITS: Duration = Duration::from_secs(5);

/// Until when somebody wants the database alone.
#[derive(Debug, Default)]
pub(super) struct Wanted(Mutex<Option<Instant>>);

impl Wanted {
    fn begins(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + SERVER_WAITS);
    }

    /// Somebody wants it: the control connections are to be closed as soon as no session is left.
    pub(super) fn lasts(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }
}

impl Database {
    /// To be called before a statement is forwarded that needs this database alone, if the session acts as that role, and
    /// whether it is in this database itself (it may copy it). Where the role may run it, the control connections are closed; but while sessions use the database that the statement does
    /// not end they stay, and are closed behind the last one, if it leaves in the time that the server waits for it.
    ///
    /// Where the role cannot be asked about they stay as well: the server refuses the statement, which may be tried again.
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
        self.wanted.begins();
        match has_others {
            // The server waits for nobody: it ends those whom the role may end, which need not be the control connections.
            _ if by_force => self.end_connections().await,
            false => self.close().await,
            true => {}
        }
    }

    /// The next need opens them again.
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
