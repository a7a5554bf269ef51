//! `DROP DATABASE` and its like need a database without other connections: the control connections are closed for them.
//!
//! Owns when. Must never close them while sessions need them, unless the statement ends those sessions: a statement that the
//! server refuses must do no harm.

use super::database::Database;
use super::permission::Role;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the server waits for others to leave before it refuses the statement (`CountOtherDBBackends`).
const SERVER_WAITS: Duration = Duration::from_secs(5);

/// Until when a statement waits that is about to have the database alone.
#[derive(Debug, Default)]
pub(super) struct Vacating(Mutex<Option<Instant>>);

impl Vacating {
    /// A statement waits: the control connections close as soon as no session is left.
    pub(super) fn lasts(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }
}

impl Database {
    /// Those of the databases that the role may not drop, rename or move; this database need not be among them. None if the
    /// control connection cannot report them. Cancel-safe.
    pub async fn foreign_databases(self: &Arc<Self>, role: &Role, databases: &[String]) -> HashSet<String> {
        self.store().foreign_databases(role, databases).await.unwrap_or_default()
    }

    /// Some control connection is open.
    pub fn is_open(&self) -> bool {
        self.store.is_open()
    }

    /// Call this before a statement is forwarded that needs this database alone. It closes the control connections if
    /// `role`, as which the session acts, may run the statement. If other sessions use the database and the statement does
    /// not end them, the connections close behind the last of these sessions, if it leaves while the server waits for it.
    /// `from_here`: the session of the statement is itself in this database, and does not count.
    ///
    /// Where the role cannot be asked about, they stay: the server refuses the statement, and it can be tried again.
    /// Cancel-safe.
    pub async fn close_for(self: &Arc<Self>, role: &Role, by_force: bool, from_here: bool) {
        if !self.store.is_open() {
            return;
        }
        let has_others = self.sessions.len() > usize::from(from_here);
        if !self.store().may_have_alone(role, by_force && has_others).await.unwrap_or(false) {
            return;
        }
        let until = Instant::now() + SERVER_WAITS;
        // Before the watcher may close them: by force it has to wait for their end, too.
        self.store.keep_closed(by_force.then_some(until));
        *self.vacating.0.lock() = Some(until);
        if by_force || !has_others {
            // By force the server does not wait: it ends the sessions that the role may end, and the control role's may not be
            // among them. So those have to have ended, and no connection opens that it might not be able to end.
            self.stop_watching();
            self.close_connections(by_force).await;
        }
    }

    /// The database was dropped, renamed or the like: another one may have its name now. Control connections open again.
    pub fn end_vacating(&self) {
        *self.vacating.0.lock() = None;
        self.store.keep_closed(None);
    }
}
