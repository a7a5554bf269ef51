//! The control connections of one database: opened when needed, probed, limited, replaced.
//!
//! Owns connecting and every limit on waiting. Must never run a statement twice by itself: only the caller knows
//! whether repeating it is safe.
//!
//! Functions here are not cancel-safe unless their comment says so: a Query that was sent continues.

use super::common::{Common, Process, past_table_locks};
use super::error::LIMIT;
use super::notification::{LEASE_CHANNEL, pass_on};
use super::probed::{Probed, name_privilege};
use super::sql::{self, Prepared, prepare};
use super::{Listener, StoreError};
use crate::resource_lock::ResourceLocks;
use fencegate_postgres::sql::{StatementResult, answers};
use fencegate_postgres::tls::ControlConfig;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard as Held, Notify};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, error::SqlState};

/// Time limit of LISTEN, which scans the server's notification queue. The queue may hold gigabytes.
const LISTEN_LIMIT: Duration = Duration::from_secs(60);
/// Between two notifications that end a LISTEN.
const BETWEEN_CLOSES: Duration = Duration::from_millis(10);
/// The part of [`LIMIT`] within which a new connection must have prepared its statements. The rest is for the error to arrive.
const PREPARE_LIMIT: Duration = Duration::from_secs(4);
/// Pause between checks whether a connection or its server process has ended.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Minimum and maximum time for which all operations fail after a failed attempt to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A slot for one control connection, which is opened when needed.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) config: ControlConfig,
    /// `on` if a commit must be durable before its result is used.
    synchronous_commit: &'static str,
    /// Statements that are prepared on the connection.
    prepared: &'static [&'static Prepared],
    /// Set for the lane that listens.
    listener: Option<Arc<dyn Listener>>,
    pub(super) common: Arc<Common>,
    slot: Mutex<Slot>,
    /// Ends a LISTEN that is under way: the slot is about to be closed or held.
    closing: Notify,
    /// Order the retries of Queries that wait for a resource's lock: one at a time per resource.
    pub(super) resource_locks: ResourceLocks,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    connected: Option<Arc<Connected>>,
    failed: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    error: StoreError,
    /// [`ControlConfig::version()`] when the attempt began.
    version: u64,
    /// [`Common::sessions()`] when the attempt began.
    sessions: u64,
    until: Instant,
    pause: Duration,
}

#[derive(Debug)]
struct Connected {
    client: Client,
    pid: String,
    backend_start: String,
    /// The task that drives the socket.
    driver: tokio::task::AbortHandle,
    serial: u64,
    /// [`ControlConfig::version()`] when the connection was opened.
    version: u64,
    system_identifier: String,
    postmaster_start: String,
}

impl Slot {
    /// The connection's server process and its start. None while the connection is not open.
    pub(super) fn process(&self) -> Option<Process> {
        self.connected.as_ref().map(|connected| (connected.pid.clone(), connected.backend_start.clone()))
    }
}

impl Lane {
    pub(super) fn new(
        config: ControlConfig,
        synchronous_commit: &'static str,
        prepared: &'static [&'static Prepared],
        listener: Option<Arc<dyn Listener>>,
        common: Arc<Common>,
    ) -> Self {
        Lane {
            config,
            synchronous_commit,
            prepared,
            listener,
            common,
            slot: Mutex::default(),
            closing: Notify::new(),
            resource_locks: ResourceLocks::default(),
        }
    }

    /// Runs one simple Query. Several statements in it are one implicit transaction.
    ///
    /// After an error that is not [an answer](StoreError::is_answer), it is unknown whether the statements
    /// took effect. Not cancel-safe: a Query that was sent continues.
    pub(super) async fn run(&self, query: &str) -> Result<Vec<StatementResult>, StoreError> {
        let connected = self.connected().await?;
        let error = match timeout(LIMIT, connected.client.simple_query(query)).await {
            Ok(Ok(messages)) => return Ok(answers(messages)),
            Ok(Err(error)) => match StoreError::on_query(error) {
                refusal @ StoreError::Denied(_) => return Err(name_privilege(&connected.client, refusal).await),
                error if error.is_answer() => return Err(error),
                error => error,
            },
            Err(_) => StoreError::TimedOut(LIMIT),
        };
        self.discard(&connected).await;
        Err(error)
    }

    /// Repeats a Query that had no effect because its wait for a lock exceeded the server's lock_timeout. Names and terminates
    /// the processes that block it from a table of fencegate. The error names those that did not end.
    pub(super) async fn run_past_table_locks(&self, query: &str) -> Result<Vec<StatementResult>, StoreError> {
        let until = Instant::now() + LIMIT;
        past_table_locks(&self.config, &self.common, || self.process(), until, || self.run(query)).await
    }

    /// Names the privilege that the role has lost since the connection was opened, if any.
    pub(super) async fn check_privileges(&self) -> Result<(), StoreError> {
        let answers = self.run(&sql::proxy::privileges()).await?;
        Probed(answers).has_privileges()
    }

    /// The connection's server process and its start. None while the connection is not open or is being opened.
    pub(super) fn process(&self) -> Option<Process> {
        self.slot.try_lock().ok()?.process()
    }

    /// The number of the connection. 0 while the connection is not open or is being opened.
    pub(super) fn serial(&self) -> u64 {
        let Some(slot) = self.slot.try_lock().ok() else { return 0 };
        slot.connected.as_ref().filter(|it| !it.client.is_closed()).map_or(0, |it| it.serial)
    }

    /// While the result is held, the connection cannot be opened, and no Query can begin on it. Cancel-safe.
    pub(super) async fn hold(&self) -> Held<'_, Slot> {
        let mut slot = pin!(self.slot.lock());
        loop {
            self.closing.notify_waiters();
            // LISTEN may begin after the notification.
            if let Ok(slot) = timeout(BETWEEN_CLOSES, slot.as_mut()).await {
                return slot;
            }
        }
    }

    /// Returns true if the connection is open or being opened.
    pub(super) fn is_open(&self) -> bool {
        self.slot.try_lock().map_or(true, |slot| slot.connected.is_some())
    }

    /// Closes the connection, if open, after the Queries on it are answered.
    pub(super) async fn close(&self) {
        let mut slot = self.hold().await;
        if let Some(connected) = slot.connected.take() {
            self.give_up(&connected);
        }
    }

    /// Closes the connection, and returns after its server process has ended.
    pub(super) async fn end(&self) {
        let mut slot = self.hold().await;
        let Some(connected) = slot.connected.take() else { return };
        self.give_up(&connected);
        let ended = async {
            // The expected answer is the error that the process was terminated.
            connected.client.simple_query("SELECT pg_terminate_backend(pg_backend_pid())").await.ok();
            while !connected.driver.is_finished() {
                sleep(BETWEEN_LOOKS).await;
            }
        };
        timeout(LIMIT, ended).await.ok();
    }

    /// Lets the next operation try to connect even if a recent attempt failed. Cancel-safe.
    pub(super) async fn forget_failure(&self) {
        self.slot.lock().await.failed = None;
    }

    /// Closes the connection if it is outdated. Queries on it continue, unless another server is the primary: then they end
    /// with an error, and their effect is unknown.
    pub(super) fn close_outdated(&self) {
        // The holder of the slot opens the connection or checks this itself.
        if let Ok(mut slot) = self.slot.try_lock() {
            self.close_unless_usable(&mut slot);
        }
    }

    fn close_unless_usable(&self, slot: &mut Slot) {
        let is_usable = |it: &Connected| !it.client.is_closed() && it.version == self.config.version();
        if let Some(unusable) = slot.connected.take_if(|it| !is_usable(it)) {
            if self.config.is_superseded(&unusable.system_identifier, &unusable.postmaster_start) {
                // A commit there may wait for a standby that no longer follows. Sessions on the new primary need the same lock.
                unusable.driver.abort();
            }
            self.give_up(&unusable);
        }
    }

    async fn connected(&self) -> Result<Arc<Connected>, StoreError> {
        let mut slot = self.slot.lock().await;
        self.close_unless_usable(&mut slot);
        if let Some(connected) = &slot.connected {
            return Ok(connected.clone());
        }
        if self.common.is_kept_closed() {
            return Err(StoreError::Vacated);
        }
        let (mut version, sessions) = (self.config.version(), self.common.sessions());
        let counts = |failure: &&Failure| {
            Instant::now() < failure.until
                && failure.version == version
                && (failure.sessions == sessions || !matches!(failure.error, StoreError::NoDatabase { .. }))
        };
        if let Some(failure) = slot.failed.as_ref().filter(counts) {
            return Err(failure.error.clone());
        }
        let opened = loop {
            tokio::select! {
                opened = self.open() => break opened,
                // Every Query waits for this connection, and its server may no longer answer.
                () = self.config.outdated(version) => version = self.config.version(),
            }
        };
        let error = match opened {
            Ok(connected) => {
                self.common.note(None);
                *slot = Slot { connected: Some(connected.clone()), failed: None };
                return Ok(connected);
            }
            Err(error) => error,
        };
        self.common.note(Some(&error));
        // The attempt itself waited for the lock, which may be free by now. A closed lane may open again.
        if matches!(error, StoreError::TablesLocked(_) | StoreError::LockNotAvailable | StoreError::Vacated) {
            slot.failed = None;
            return Err(error);
        }
        let pause = slot.failed.as_ref().map_or(BACK_OFF.0, |last| (last.pause * 2).min(BACK_OFF.1));
        slot.failed = Some(Failure { error: error.clone(), version, sessions, until: Instant::now() + pause, pause });
        Err(error)
    }

    async fn open(&self) -> Result<Arc<Connected>, StoreError> {
        let opened = timeout(LIMIT, self.connect()).await.unwrap_or(Err(StoreError::TimedOut(LIMIT)))?;
        self.listen(&opened).await?;
        Ok(Arc::new(opened))
    }

    async fn connect(&self) -> Result<Connected, StoreError> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let until = Instant::now() + PREPARE_LIMIT;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let version = self.config.version();
        let (client, mut connection) =
            self.config.connect().await.map_err(|error| StoreError::on_connect(&self.config, error))?;
        let listener = self.listener.clone();
        let common = self.common.clone();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let (AsyncMessage::Notification(news), Some(listener)) = (message, &listener) {
                    pass_on(&news, &**listener, &common);
                }
            }
            if let Some(listener) = listener {
                listener.lost(serial);
            }
            // The server sends the reason before it ends the process, and closes the connection after the process has ended.
            let has_more = |polled: Result<_, tokio_postgres::Error>| {
                polled.map_or_else(|error| error.as_db_error().is_some(), |_| true)
            };
            while poll_fn(|context| connection.poll_message(context)).await.is_some_and(has_more) {}
        });
        let mut opening = Connected {
            client,
            pid: String::new(),
            backend_start: String::new(),
            driver: driver.abort_handle(),
            serial,
            version,
            system_identifier: String::new(),
            postmaster_start: String::new(),
        };
        let probed = Probed::of(&self.config, &opening.client, self.synchronous_commit).await?;
        probed.is_of_primary(&self.config)?;
        probed.may_fence()?;
        probed.has_schema()?;
        probed.has_privileges()?;
        [opening.pid, opening.backend_start, opening.system_identifier, opening.postmaster_start] =
            ["pid", "backend_start", "system_identifier", "postmaster_start"].map(|it| probed.field(it));
        self.prepare(&opening, until).await?;
        Ok(opening)
    }

    /// Executes LISTEN on the connection, if the lane has a listener.
    async fn listen(&self, opened: &Connected) -> Result<(), StoreError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let listen = format!("LISTEN fencegate; LISTEN {LEASE_CHANNEL}");
        let listens = tokio::select! {
            listens = timeout(LISTEN_LIMIT, opened.client.simple_query(&listen)) => {
                let listens = listens.map_err(|_| StoreError::TimedOut(LISTEN_LIMIT));
                listens.and_then(|it| it.map_err(|error| StoreError::on_opening(&self.config, error)))
            }
            () = self.closing.notified() => Err(StoreError::Vacated),
        };
        match listens {
            Ok(_) => listener.listens(opened.serial),
            Err(_) => self.give_up(opened),
        }
        listens.map(drop)
    }

    /// Prepares the lane's statements, which locks the tables. Terminates processes that block these locks.
    async fn prepare(&self, opening: &Connected, until: Instant) -> Result<(), StoreError> {
        let statements = prepare(self.prepared);
        let attempt = |text: String| async move {
            opening.client.batch_execute(&text).await.map_err(|error| match error.code() {
                Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::LockNotAvailable,
                _ => StoreError::on_opening(&self.config, error),
            })
        };
        match attempt(statements.clone()).await {
            Err(StoreError::LockNotAvailable) => {
                // The statements before the one that waited are already prepared.
                let again = format!("DEALLOCATE ALL; {statements}");
                let control = || Some((opening.pid.clone(), opening.backend_start.clone()));
                // Boxed, so that the future of every Query stays small.
                let again = past_table_locks(&self.config, &self.common, control, until, || attempt(again.clone()));
                Box::pin(again).await
            }
            prepared => prepared,
        }
    }

    /// Abandons a connection after an error. Terminates its server process over a new connection, because
    /// the process may hold locks or still be running, and may not notice that the socket is closed.
    async fn discard(&self, connected: &Arc<Connected>) {
        connected.driver.abort();
        self.give_up(connected);
        let mut slot = self.slot.lock().await;
        if slot.connected.as_ref().is_some_and(|current| Arc::ptr_eq(current, connected)) {
            slot.connected = None;
            let (config, query) =
                (self.config.clone(), sql::proxy::end_process(&connected.pid, &connected.backend_start));
            let pid = connected.pid.clone();
            tokio::spawn(async move {
                let ended = timeout(LIMIT, async {
                    let (client, connection) =
                        config.connect().await.map_err(|error| StoreError::on_opening(&config, error))?;
                    let driver = tokio::spawn(connection);
                    let ended = client.simple_query(&query).await.map(drop).map_err(StoreError::on_query);
                    driver.abort();
                    ended
                });
                if let Err(error) = ended.await.unwrap_or(Err(StoreError::TimedOut(LIMIT))) {
                    tracing::warn!(database = config.database(), pid, %error, "control_process_not_ended");
                }
            });
        }
    }

    fn give_up(&self, connected: &Connected) {
        self.common.leaves((connected.pid.clone(), connected.backend_start.clone()));
        if let Some(listener) = &self.listener {
            listener.lost(connected.serial);
        }
    }
}
