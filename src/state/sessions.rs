//! The open sessions: user, address, counters.
//!
//! Owns the registry of all open sessions, for the console, cancel requests and shutdown. The fence owns a session's
//! admissions, which `fence::Database` also finds by the server process. Must never keep a session that has ended, nor
//! reveal values in its statements.

use crate::config::Address;
use crate::metrics::Metrics;
use bytes::Bytes;
use dashmap::DashMap;
use fencegate_fence::session::SessionFence;
use fencegate_session::End;
use fencegate_session::parameter::ParameterValue;
use fencegate_wire::error::start_of;
use fencegate_wire::startup::Startup;
#[cfg(test)]
use fencegate_wire::startup::{self, Packet};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// Maximum length of an application name in the server, in bytes (`NAMEDATALEN`).
const LONGEST_NAME: usize = 63;

/// A session: its user, its client's address, its counters.
#[derive(Debug)]
pub struct SessionRecord {
    /// Number of the session in this proxy process, from 1.
    pub number: u64,
    /// The role that logged in.
    pub user: String,
    /// The database.
    pub database: String,
    /// Address of the client with its port, or `unix`.
    pub address: String,
    /// The address of its server in the settings.
    pub server: Address,
    /// The server process.
    pub pid: Option<i32>,
    /// Key of the session's cancel requests.
    pub cancel_key: Bytes,
    /// Cancel requests: one permit for the request in progress, one for the next.
    pub cancels: Semaphore,
    /// Held while a cancel request is forwarded.
    pub cancel_lock: tokio::sync::Mutex<()>,
    /// Signaled when an operator or a change of the primary ends the session.
    pub kill: CancellationToken,
    /// True if a change of the primary ends the session.
    pub is_replaced: Arc<AtomicBool>,
    /// True while the database is paused and the session is held: the proxy reads nothing from its client.
    held: AtomicBool,
    /// Start time of the session.
    pub started: SystemTime,
    /// Traffic counters.
    pub passed: Passed,
    /// The activity and the admissions of its server process.
    pub fence: Arc<SessionFence>,
    /// The value of `lease.fence` when the server was last ready.
    presented: Mutex<ParameterValue>,
    /// The value of `application_name` that the server reported last.
    application_name: Mutex<String>,
}

/// Traffic counters of a session.
#[derive(Debug, Default)]
pub struct Passed {
    /// Bytes from the client.
    pub received: AtomicU64,
    /// Bytes to the client.
    pub sent: AtomicU64,
    /// Simple queries, and executions of prepared statements.
    pub queries: AtomicU64,
}

impl Passed {
    /// Sets the bytes received from the client and sent to it since the session was accepted.
    pub fn bytes(&self, received: u64, sent: u64, metrics: &Metrics) {
        let both =
            [(&self.received, received, &metrics.bytes_from_clients), (&self.sent, sent, &metrics.bytes_to_clients)];
        for (counter, bytes, metric) in both {
            let before = counter.load(Ordering::Relaxed);
            if before != bytes {
                counter.store(bytes, Ordering::Relaxed);
                metric.inc_by(bytes - before);
            }
        }
    }

    /// Counts a query or execution.
    pub fn query(&self, metrics: &Metrics) {
        self.queries.fetch_add(1, Ordering::Relaxed);
        metrics.queries.inc();
    }

    /// Bytes received, bytes sent, queries.
    fn totals(&self) -> [u64; 3] {
        [&self.received, &self.sent, &self.queries].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Logs an event at a configurable level, or not at all.
macro_rules! log_at {
    ($level:expr, $($event:tt)*) => {
        match $level {
            Some(Level::INFO) => tracing::info!($($event)*),
            Some(_) => tracing::debug!($($event)*),
            None => {}
        }
    };
}

impl SessionRecord {
    /// A session that starts now.
    pub fn new(
        number: u64,
        startup: &Startup,
        address: String,
        (server, pid, cancel_key): (Address, Option<i32>, Bytes),
        fence: SessionFence,
        presented: &ParameterValue,
        application_name: &str,
    ) -> Self {
        SessionRecord {
            number,
            user: startup.user().to_owned(),
            database: startup.database().to_owned(),
            address,
            server,
            pid,
            cancel_key,
            cancels: Semaphore::new(2),
            cancel_lock: tokio::sync::Mutex::default(),
            kill: CancellationToken::new(),
            is_replaced: Arc::default(),
            held: AtomicBool::new(false),
            started: SystemTime::now(),
            passed: Passed::default(),
            fence: Arc::new(fence),
            presented: Mutex::new(presented.clone()),
            application_name: Mutex::new(start_of(application_name, LONGEST_NAME).to_owned()),
        }
    }

    /// Ends the session, because another server is the primary.
    pub fn replace(&self) {
        self.is_replaced.store(true, Ordering::SeqCst);
        self.kill.cancel();
    }

    /// Returns true if the database is paused and the session is held.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// The session's `application_name` in the server.
    pub fn application_name(&self) -> String {
        self.application_name.lock().clone()
    }

    /// Records that the server has reported another `application_name`.
    pub fn rename_application(&self, name: &str) {
        start_of(name, LONGEST_NAME).clone_into(&mut self.application_name.lock());
    }

    /// The value of `lease.fence` in canonical form; None if only the server knows it.
    pub fn presented(&self) -> Option<String> {
        match &*self.presented.lock() {
            ParameterValue::Known(value) => Some(value.to_string()),
            ParameterValue::Invalid | ParameterValue::Unknown => None,
        }
    }

    /// Records the tokens that the session presents from now on.
    pub fn present(&self, value: &ParameterValue) {
        let mut presented = self.presented.lock();
        if *presented != *value {
            *presented = value.clone();
        }
    }

    /// Logs the start of the session.
    pub fn log_start(&self, level: Option<Level>) {
        let SessionRecord { number: session, user, database, address, .. } = self;
        let application_name = self.application_name();
        log_at!(level, session, user, database, address, application_name, "session_started");
    }

    /// Logs the session's end: its cause and the traffic counters.
    pub fn log_end(&self, level: Option<Level>, end: &End) {
        let SessionRecord { number: session, user, database, address, .. } = self;
        let seconds = self.started.elapsed().unwrap_or_default().as_secs_f64();
        let [received, sent, queries] = self.passed.totals();
        log_at!(level, session, user, database, address, seconds, received, sent, queries, reason = %end, "session_ended");
    }
}

/// All sessions that are open.
#[derive(Debug, Default)]
pub struct Sessions {
    by_number: DashMap<u64, Arc<SessionRecord>>,
    /// Sessions by their cancel keys.
    by_key: DashMap<Bytes, Arc<SessionRecord>>,
    /// Notified when a session ends or becomes held, for PAUSE.
    rests: Notify,
}

/// Keeps a session in the registry until it is dropped.
#[must_use = "the session leaves the registry when this is dropped"]
pub struct SessionEntry(Arc<Sessions>, Arc<SessionRecord>);

impl Drop for SessionEntry {
    fn drop(&mut self) {
        let SessionEntry(sessions, session) = self;
        sessions.by_number.remove(&session.number);
        // After a restart, the server may reuse a key.
        sessions.by_key.remove_if(&session.cancel_key, |_, it| it.number == session.number);
        sessions.rests.notify_waiters();
    }
}

impl Sessions {
    /// Adds an open session.
    pub fn enter(self: &Arc<Self>, session: Arc<SessionRecord>) -> SessionEntry {
        self.by_number.insert(session.number, session.clone());
        if !session.cancel_key.is_empty() {
            self.by_key.insert(session.cancel_key.clone(), session.clone());
        }
        SessionEntry(self.clone(), session)
    }

    /// The session to which the server gave that key.
    pub fn with_key(&self, key: &[u8]) -> Option<Arc<SessionRecord>> {
        self.by_key.get(key).map(|session| session.clone())
    }

    /// The session of that number.
    pub fn with_number(&self, number: u64) -> Option<Arc<SessionRecord>> {
        self.by_number.get(&number).map(|session| session.clone())
    }

    /// Records whether the session is held.
    pub fn hold(&self, session: &SessionRecord, is_held: bool) {
        // Most calls change nothing.
        if session.is_held() != is_held {
            session.held.store(is_held, Ordering::SeqCst);
            self.rests.notify_waiters();
        }
    }

    /// Waits until all sessions of the database are held or have ended. Cancel-safe.
    pub async fn all_held(&self, database: &str) {
        loop {
            let mut rests = pin!(self.rests.notified());
            rests.as_mut().enable();
            if self.by_number.iter().all(|it| it.database != database || it.is_held()) {
                return;
            }
            rests.await;
        }
    }

    /// The number of open sessions.
    pub fn count(&self) -> usize {
        self.by_number.len()
    }

    /// All sessions, by number.
    pub fn list(&self) -> Vec<Arc<SessionRecord>> {
        let mut open: Vec<_> = self.by_number.iter().map(|session| session.clone()).collect();
        open.sort_by_key(|session| session.number);
        open
    }
}

#[cfg(test)]
impl SessionRecord {
    /// A session of the role `stranger` in the database of that name.
    pub fn of_test(number: u64) -> Arc<Self> {
        let packet = Bytes::from_static(b"\0\0\0\x17\0\x03\0\0user\0stranger\0\0");
        let Ok(Packet::Startup(startup)) = startup::read(packet) else { unreachable!() };
        let fence = SessionFence::new(Err(fencegate_fence::session::IdentityError::NoAnswer));
        let backend = (Address::Tcp { host: String::new(), port: 0 }, None, Bytes::new());
        Arc::new(SessionRecord::new(number, &startup, String::new(), backend, fence, &ParameterValue::Unknown, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::runtime::Builder;

    /// The runtime has no timers, so waiters must be woken.
    #[test]
    fn all_held_returns_once_the_last_session_is_held_or_ends() {
        let (sessions, [one, other]) = (Arc::new(Sessions::default()), [1, 2].map(SessionRecord::of_test));
        let [_one, entry] = [&one, &other].map(|session| sessions.enter(session.clone()));
        let runtime = Builder::new_current_thread().build().unwrap();
        let mut waits = Box::pin(sessions.all_held("stranger"));
        runtime.block_on(async {
            assert!(sessions.all_held("another").now_or_never().is_some());
            assert!((&mut waits).now_or_never().is_none());
            sessions.hold(&one, true);
            assert!((&mut waits).now_or_never().is_none());
            let waiter = async {
                waits.await;
                true
            };
            let ends = async {
                tokio::task::yield_now().await;
                drop(entry);
            };
            assert!(tokio::join!(waiter, ends).0);
        });
    }
}
