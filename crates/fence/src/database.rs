//! One downstream database: its control connections, its sessions in this process, and its remembered epochs.
//!
//! Owns the lifetime of the connections and of the watcher, and finds a session of this proxy by its server process. Must
//! never decide that a session may write: only Admit (`admit.rs`) decides that, in the database.
//!
//! Functions here are not cancel-safe unless their comment says so: a Query that was sent continues.

use super::authority::Authority;
use super::enforcement::Enforced;
use super::fence_error::CutOff;
use super::first::FirstTokens;
use super::in_force::InForce;
use super::lease::Leased;
use super::memory::{Memory, Rise};
use super::permission::Permitted;
use super::resource_lock::{ResourceLock, ResourceLocks};
use super::session::{Activity, Epoch, Identity, SessionFence, Token};
use super::store::{Found, Key, Listener, Postgres, Store, StoreError};
use super::vacate::Vacating;
use super::watch as watcher;
use crate::background::Background;
use crate::log_limit::LogLimit;
use crate::metrics::FenceMetrics;
use dashmap::DashMap;
use fencegate_postgres::tls::ControlConfig;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Maximum wait for the reason why a session has ended. A server that hangs does not answer control connections either.
const CUT_OFF_LIMIT: Duration = Duration::from_secs(2);

/// One downstream database. All of its methods need a tokio runtime with timers and I/O.
#[derive(Debug)]
pub struct Database {
    name: String,
    pub(super) store: Arc<dyn Store>,
    /// The id of this proxy process in the admissions that it grants. Unique to the process.
    pub(super) proxy: String,
    /// Confirms a token before it raises a fence whose policy names an election.
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) leased: watch::Sender<Leased>,
    /// The lease holders that were logged last.
    pub(super) logged_leaders: Mutex<Leased>,
    pub(super) memory: Arc<Memory>,
    /// How full the server's notification queue was at the last heartbeat, from 0 to 1.
    pub(super) queue_usage: Mutex<Option<f64>>,
    pub(super) metrics: FenceMetrics,
    /// The runtime for all work that queries the database.
    pub background: Background,
    /// Limits the log when tokens are raised very often.
    pub log_limit: Arc<LogLimit>,
    /// The sessions that a drain may have to revoke: a subset of [`crate::state::sessions`].
    pub(super) sessions: DashMap<Key, Arc<SessionFence>>,
    pub(super) policies: RwLock<InForce>,
    /// Resources for which another proxy has loaded different policies later. No session is admitted to them until a reload.
    pub(super) superseded: Mutex<BTreeSet<String>>,
    pub(super) enforced: Enforced,
    /// Permit one advance at a time per resource in this process. Other sessions wait for its result.
    resource_locks: ResourceLocks,
    pub(super) first_tokens: FirstTokens,
    pub(super) permitted: Mutex<Permitted>,
    pub(super) watcher: Mutex<Option<AbortHandle>>,
    /// At least one fenced table exists, according to the last reading of the catalog.
    pub(super) has_fenced_tables: AtomicBool,
    pub(super) vacating: Vacating,
}

/// Lets drains find a session, until it is dropped after the end of the server connection.
#[derive(Debug)]
#[must_use = "drains find the session until this is dropped"]
pub struct Registration {
    database: Arc<Database>,
    key: Option<Key>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.database.sessions.remove(&key);
            self.database.memory.wake.notify_one();
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stop_watching();
    }
}

impl Database {
    /// A PostgreSQL database without open connections. `control` includes the database's name. `proxy` must be unique among
    /// all proxy processes that ever run. Its methods that query the database run in `background`.
    pub fn new(
        name: impl Into<String>,
        control: ControlConfig,
        proxy: impl Into<String>,
        authority: Option<Arc<Authority>>,
        metrics: FenceMetrics,
        background: Background,
    ) -> Arc<Self> {
        let proxy = proxy.into();
        let store = |listener| Arc::new(Postgres::new(control, proxy.clone(), listener)) as Arc<dyn Store>;
        Database::over(store, name, &proxy, authority, metrics, background)
    }

    /// A database in any store. The store passes notifications to the listener.
    pub fn over(
        store: impl FnOnce(Arc<dyn Listener>) -> Arc<dyn Store>,
        name: impl Into<String>,
        proxy: &str,
        authority: Option<Arc<Authority>>,
        metrics: FenceMetrics,
        background: Background,
    ) -> Arc<Self> {
        let memory = Arc::new(Memory::default());
        Arc::new(Database {
            name: name.into(),
            store: store(memory.clone()),
            proxy: proxy.to_owned(),
            sessions: DashMap::new(),
            policies: InForce::nothing(),
            superseded: Mutex::default(),
            enforced: Enforced::default(),
            resource_locks: ResourceLocks::default(),
            first_tokens: FirstTokens::default(),
            permitted: Mutex::default(),
            authority,
            leased: watch::Sender::default(),
            logged_leaders: Mutex::default(),
            memory,
            queue_usage: Mutex::default(),
            metrics,
            log_limit: LogLimit::new(background.clone()),
            background,
            watcher: Mutex::default(),
            has_fenced_tables: AtomicBool::new(false),
            vacating: Vacating::default(),
        })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if a session is registered.
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Returns true if the database has sessions or connections, or state that a new entry would lack: a statement that needs the
    /// database exclusively is pending, or `/readyz` reports newer policies of other proxies.
    pub fn is_in_use(&self) -> bool {
        let is_watched = self.watcher.lock().is_some();
        let is_superseded = !self.superseded.lock().is_empty() && !self.is_missing();
        self.has_sessions() || is_watched || self.store.is_open() || self.vacating.lasts() || is_superseded
    }

    /// Returns true if the database did not exist at the last attempt to connect, and has no sessions.
    pub fn is_missing(&self) -> bool {
        self.store.found() == Found::Missing && !self.has_sessions()
    }

    /// Reports that a session has logged in to the database. Discards an earlier finding that the database does not exist.
    pub fn session_comes(&self) {
        self.store.session_comes();
    }

    /// The processes that have locked fencegate's tables in this database, if any. Leaves no connection open. Cancel-safe.
    pub async fn table_locks(&self) -> Result<Option<String>, StoreError> {
        let by = self.store.table_locks().await?;
        let who: Vec<String> = by.into_iter().map(|it| it.who).collect();
        Ok((!who.is_empty()).then(|| who.join("; ")))
    }

    /// Returns true if the database had no schema `fencegate` at the last attempt to connect.
    pub fn is_unprepared(&self) -> bool {
        self.store.found() == Found::Unprepared
    }

    /// Returns true if the database is known to have no schema `fencegate`, and no fenced table was seen in it.
    pub fn fences_nothing(&self) -> bool {
        self.is_unprepared() && !self.has_fenced_tables.load(Ordering::Relaxed)
    }

    /// Registers a session, so that drains can revoke it instead of terminating its process. Starts the watcher if there are
    /// policies, because it may have stopped since the session logged in. Ignores a session with an unknown identity, which
    /// is never admitted.
    pub fn register(self: &Arc<Self>, session: Arc<SessionFence>) -> Registration {
        let key = session.identity.as_ref().ok().map(key);
        if let Some(key) = key.clone() {
            self.sessions.insert(key, session);
            if self.has_policies() {
                watcher::ensure(self);
            }
        }
        Registration { database: self.clone(), key }
    }

    /// A quick refusal from memory: the current epoch, if the token is certainly below it. Confirmed in the database at least
    /// once a second. None decides nothing: the caller continues with [`Database::admit`].
    pub fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.memory.above(resource, token).filter(|_| !self.is_leaders(resource, token))
    }

    /// Returns true if the token is the followed leader's. If the epoch is above it, tokens have gone back or the follower lags.
    /// Only the database and etcd can tell which.
    fn is_leaders(&self, resource: &str, token: Token) -> bool {
        self.resource(resource).is_some_and(|it| self.leads(&it, token))
    }

    /// The tokens of the resources that are not keyed, as they were last read.
    pub fn known_tokens(&self) -> Vec<(String, Token)> {
        let known = |name: String| self.memory.last_read(&name).map(|epoch| (name, epoch.token));
        self.plain_resources().into_iter().filter_map(known).collect()
    }

    /// The fences that any proxy raised or reset recently, as far as this one has read them. The latest is last.
    pub fn rises(&self) -> Vec<Rise> {
        self.memory.rises()
    }

    /// Deletes the rows of a revoked session that has become idle or runs no statement, so that its process need not be
    /// terminated. Does nothing while a statement may run. Keeps the rows of a session that has written in its open transaction.
    ///
    /// Ignores failures: the drain takes care of the rows. Cancel-safe.
    pub async fn release(self: &Arc<Self>, session: &Arc<SessionFence>) {
        let Ok(who) = &session.identity else { return };
        // Read the floors before the activity. No write below these floors can begin any more, so a session that is idle now
        // stays without writes below them.
        let floors: HashMap<String, Epoch> = session.floors().into_iter().collect();
        if floors.is_empty() || session.activity() == Activity::Busy {
            return;
        }
        let Ok(rows) = self.store().admissions_of(who).await else { return };
        for row in &rows {
            let Some(floor) = floors.get(&row.resource).filter(|floor| row.epoch < **floor) else { continue };
            if let Some(resource) = self.resource(&row.resource)
                && let Err(error) = self.advance(&resource, *floor).spare(std::slice::from_ref(row)).await
            {
                tracing::debug!(resource = row.resource, %error, "a revoked session's admission is left to the drain");
            }
        }
    }

    /// Explains why this session's server process was terminated: the newer epoch of a resource to which the session
    /// was admitted, if any. Reads the database, because a notification may not have arrived yet. If the read fails or
    /// takes too long, uses the epochs that revoked the session. Reads nothing for a session that was never admitted, because
    /// such a session blocks no other.
    ///
    /// Cancel-safe.
    pub async fn cut_off_by(self: &Arc<Self>, session: &SessionFence) -> Option<CutOff> {
        let (presented, asking) = (session.presented(), session.asking());
        if presented.is_empty() && asking.is_none() {
            return None;
        }
        let names = presented.keys().chain(asking.iter().map(|(resource, _)| resource)).map(String::as_str);
        let read = timeout(CUT_OFF_LIMIT, self.read_epochs(&names.collect::<Vec<_>>())).await;
        let highest = read.ok().and_then(Result::ok).unwrap_or_else(|| session.floors());
        highest.into_iter().find_map(|(resource, highest)| {
            let asked =
                asking.iter().find(|(name, _)| *name == resource).map(|(_, token)| Epoch { token: *token, ..highest });
            // A session that raises its token may have been terminated because of its older admission.
            let presented = [presented.get(&resource).map(|it| it.epoch), asked];
            let presented = presented.into_iter().flatten().filter(|it| *it < highest).max()?;
            Some(CutOff { resource, presented, highest })
        })
    }

    /// Records that the session's admission was deleted. A newer token for the resource can no longer be the reason if the
    /// process ends.
    pub(super) fn released(&self, key: &Key, resource: &str, epoch: Epoch) {
        if let Some(session) = self.sessions.get(key) {
            session.released(resource, epoch);
        }
    }

    /// Closes the control connections. The next operation opens them again. Until then no verdict comes from memory. Cancel-safe.
    pub async fn close(&self) {
        self.stop_watching();
        self.close_connections(false).await;
    }

    pub(super) fn stop_watching(&self) {
        if let Some(watcher) = self.watcher.lock().take() {
            watcher.abort();
        }
    }

    pub(super) async fn close_connections(&self, wait: bool) {
        self.leave().await;
        self.store.close(wait).await;
    }

    /// Publishes that this proxy has no more sessions, if that is true. Never opens a connection. If it fails, this proxy counts
    /// as lost for a while.
    async fn leave(&self) {
        if self.sessions.is_empty()
            && self.store.proxy_connection() != 0
            && let Err(error) = self.store.leave().await
        {
            tracing::debug!(database = self.name, %error, "the proxy's row is left");
        }
    }

    /// The store for an operation. Starts the watcher if it does not run.
    pub(super) fn store(self: &Arc<Self>) -> &dyn Store {
        debug_assert!(self.background.is_here(), "a relay thread must not wait for a control connection");
        watcher::ensure(self);
        &*self.store
    }

    /// Reads and remembers the epochs of these resources. Forgets resources without an epoch.
    pub(super) async fn read_epochs(self: &Arc<Self>, resources: &[&str]) -> Result<Vec<(String, Epoch)>, StoreError> {
        let read = self.store().epochs(resources).await?;
        let read: Vec<_> = read.into_iter().map(|it| (it.resource, it.epoch)).collect();
        self.learn(&read);
        let there: HashSet<&str> = read.iter().map(|(resource, _)| resource.as_str()).collect();
        resources.iter().filter(|resource| !there.contains(*resource)).for_each(|it| self.memory.forget(it));
        Ok(read)
    }

    pub(super) fn learn(&self, read: &[(String, Epoch)]) {
        read.iter().for_each(|(resource, epoch)| self.memory.learn(resource, *epoch));
    }

    pub(super) fn resource_lock(&self, resource: &str) -> ResourceLock<'_> {
        self.resource_locks.of(resource)
    }
}

pub(super) fn key(who: &Identity) -> Key {
    (who.pid, who.backend_start.clone())
}
