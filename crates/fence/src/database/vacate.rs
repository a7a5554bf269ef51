//! Closes the control connections for `DROP DATABASE` and similar statements, which need a database without other connections.
//!
//! Owns the time of the close, and whether such a statement waits. Must never close the connections while sessions need them,
//! unless the statement terminates those sessions: a statement that the server refuses must be harmless.

use super::Database;
use crate::claim::Role;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Time that the server waits for other sessions to end before it refuses the statement (`CountOtherDBBackends`).
const SERVER_WAITS: Duration = Duration::from_secs(5);

impl Database {
    /// The subset of the databases that the role may not drop, rename or move. The databases need not include this one. Empty if
    /// the control connection cannot report them. Cancel-safe.
    pub async fn foreign_databases(&self, role: &Role, databases: &[String]) -> HashSet<String> {
        self.context().store().foreign_databases(role, databases).await.unwrap_or_default()
    }

    /// Returns true if a control connection is open.
    pub fn is_open(&self) -> bool {
        self.store.is_open()
    }

    /// Call this before forwarding a statement that needs this database exclusively. Closes the control connections if `role`,
    /// as which the session acts, may run the statement.
    ///
    /// If other sessions use the database and the statement does not terminate them, the connections close after the last of
    /// these sessions, if it ends while the server waits for it. `from_here`: the session of the statement is itself in this
    /// database, and does not count.
    ///
    /// If the role cannot be checked, the connections stay open. The server then refuses the statement, which can be retried.
    /// Cancel-safe.
    pub async fn close_for(&self, role: &Role, by_force: bool, from_here: bool) {
        if !self.store.is_open() {
            return;
        }
        let has_others = self.sessions.len() > usize::from(from_here);
        if !self.context().store().may_have_alone(role, by_force && has_others).await.unwrap_or(false) {
            return;
        }
        let until = Instant::now() + SERVER_WAITS;
        // Before the watcher may close them: with FORCE, its close must also wait for their end.
        self.store.keep_closed(by_force.then_some(until));
        self.vacating.set(Some(until));
        if by_force || !has_others {
            // With FORCE the server does not wait. It terminates the sessions that the role may terminate, which may not include
            // those of the control role. These must therefore have ended, and none may open.
            self.watcher.stop();
            self.close_connections(by_force).await;
        }
    }

    /// Permits control connections again after the database was dropped, renamed or the like. Another database may now have its
    /// name.
    pub fn end_vacating(&self) {
        self.vacating.set(None);
        self.store.keep_closed(None);
    }
}

/// The time until which a statement waits for exclusive use of the database.
#[derive(Debug, Default)]
pub(crate) struct Vacating(Mutex<Option<Instant>>);

impl Vacating {
    /// Returns true if a statement waits. The control connections then close as soon as no session is left.
    pub(crate) fn lasts(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// A statement waits until that time. None: no statement waits.
    pub(crate) fn set(&self, until: Option<Instant>) {
        *self.0.lock() = until;
    }
}
