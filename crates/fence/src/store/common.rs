//! State that the control connections of a database share: facts about the database, and single-use connections.
//!
//! Must never open a connection while connections are kept closed.

use super::error::LIMIT;
use super::sql;
use super::table_lock::TableLocks;
use super::{Found, StoreError};
use fencegate_postgres::sql::{answers, column, rows};
use fencegate_postgres::tls::ControlConfig;
use futures_util::FutureExt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::time::Instant;
use tokio_postgres::Client;

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

    pub(super) fn session_comes(&self) {
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
        if let Ok(own) = client.simple_query(&sql::process::own()).await {
            let own = answers(own);
            let process = |row| Some((column(row, "pid")?.to_owned(), column(row, "backend_start")?.to_owned()));
            rows(&own).filter_map(process).for_each(|it| self.leaves(it));
        }
        Ok(client)
    }
}
