//! One downstream database: its control connections, its sessions in this process, what is
//! remembered of its epochs.
//!
//! Owns the life of the connections and of the watcher, and finds a session of this proxy by its server process. Must
//! never decide that a session may write: that is Admit's (`admit.rs`), in the database.
//!
//! Not cancel-safe where nothing else is said: a Query that was sent goes on.

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
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::tls::ControlConfig;
use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The longest wait for the reason why a session has ended: a server that hangs does not answer control connections either.
const CUT_OFF_LIMIT: Duration = Duration::from_secs(2);

/// One downstream database. All of its methods need a tokio runtime with timers and I/O.
#[derive(Debug)]
pub struct Database {
    name: String,
    pub(super) store: Arc<dyn Store>,
    /// In the rows of the admissions that this process gave; different for every proxy process.
    pub(super) proxy: String,
    /// Asked before a fence is raised whose policy names an election.
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) leased: watch::Sender<Leased>,
    /// The leaders by leases that were logged last.
    pub(super) logged_leaders: Mutex<Leased>,
    pub(super) memory: Arc<Memory>,
    /// How full the server's queue of notifications was at the last beat, from 0 to 1.
    pub(super) queue_usage: Mutex<Option<f64>>,
    pub(super) metrics: Arc<Metrics>,
    /// Keeps storms of tokens out of the log.
    pub(crate) log_limit: Arc<LogLimit>,
    /// The sessions that a drain may have to revoke: a part of [`crate::state::sessions`].
    pub(super) sessions: DashMap<Key, Arc<SessionFence>>,
    pub(super) policies: RwLock<InForce>,
    /// Where others' policies count that were loaded later: nobody is admitted to these until a reload.
    pub(super) superseded: Mutex<BTreeSet<String>>,
    pub(super) enforced: Enforced,
    /// One advance at a time per resource in this process: the others wait for its result.
    resource_locks: ResourceLocks,
    pub(super) first_tokens: FirstTokens,
    pub(super) permitted: Mutex<Permitted>,
    pub(super) watcher: Mutex<Option<AbortHandle>>,
    /// One of the fenced tables exists, as its catalog was read last.
    pub(super) has_fenced_tables: AtomicBool,
    pub(super) vacating: Vacating,
}

/// Lets drains find a session. Dropped when the server connection has ended.
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
    /// A database of PostgreSQL to which no connection is open yet. `control` has the database's name set;
    /// `proxy` is different for every proxy process that ever runs.
    pub fn new(
        name: impl Into<String>,
        control: ControlConfig,
        proxy: impl Into<String>,
        authority: Option<Arc<Authority>>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let proxy = proxy.into();
        let store = |listener| Arc::new(Postgres::new(control, proxy.clone(), listener)) as Arc<dyn Store>;
        Database::over(store, name, &proxy, authority, metrics)
    }

    /// A database in any store, which tells the listener of news.
    pub fn over(
        store: impl FnOnce(Arc<dyn Listener>) -> Arc<dyn Store>,
        name: impl Into<String>,
        proxy: &str,
        authority: Option<Arc<Authority>>,
        metrics: Arc<Metrics>,
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
            log_limit: Arc::default(),
            watcher: Mutex::default(),
            has_fenced_tables: AtomicBool::new(false),
            vacating: Vacating::default(),
        })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// At least one session is registered.
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The database has sessions or connections, or state that a new entry would not have: a statement is about to have it
    /// alone, or policies of other proxies count, which `/readyz` reports.
    pub fn is_in_use(&self) -> bool {
        let is_watched = self.watcher.lock().is_some();
        let is_superseded = !self.superseded.lock().is_empty() && !self.is_missing();
        self.has_sessions() || is_watched || self.store.is_open() || self.vacating.lasts() || is_superseded
    }

    /// There was none of that name on the server at the last attempt to connect, and no session has come since.
    pub fn is_missing(&self) -> bool {
        self.store.found() == Found::Missing && !self.has_sessions()
    }

    /// A session has logged in to the database: the result of an earlier attempt to connect, that there is none of that name,
    /// counts no longer.
    pub fn session_comes(&self) {
        self.store.session_comes();
    }

    /// The processes that have locked fencegate's tables in this database, if any. Leaves no connection. Cancel-safe.
    pub async fn table_locks(&self) -> Result<Option<String>, StoreError> {
        let by = self.store.table_locks().await?;
        let who: Vec<String> = by.into_iter().map(|it| it.who).collect();
        Ok((!who.is_empty()).then(|| who.join("; ")))
    }

    /// It had no schema `fencegate` at the last attempt to connect.
    pub fn is_unprepared(&self) -> bool {
        self.store.found() == Found::Unprepared
    }

    /// As far as is known it has neither the schema `fencegate` nor any of the fenced tables.
    pub fn fences_nothing(&self) -> bool {
        self.is_unprepared() && !self.has_fenced_tables.load(Ordering::Relaxed)
    }

    /// Makes a session known, so that it can be revoked instead of terminated, and has it watched over where anything may be
    /// fenced: the watcher may have left since the session logged in. A session whose identity is not known is never
    /// admitted, and is not kept.
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

    /// A quick no: the epoch in force, if the token is certainly below it. None says nothing; the
    /// caller asks [`Database::admit`]. Some is confirmed in the database at least once a second.
    pub fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.memory.above(resource, token).filter(|_| !self.is_leaders(resource, token))
    }

    /// If the epoch is above the leader's token, tokens have gone back, or the follower lags: that is found out in the database,
    /// and in etcd.
    fn is_leaders(&self, resource: &str, token: Token) -> bool {
        self.resource(resource).is_some_and(|it| self.leads(&it, token))
    }

    /// The tokens of the resources that are not keyed, as they were last read.
    pub fn known_tokens(&self) -> Vec<(String, Token)> {
        let known = |name: String| self.memory.last_read(&name).map(|epoch| (name, epoch.token));
        self.plain_resources().into_iter().filter_map(known).collect()
    }

    /// The fences raised or reset lately, by whichever proxy, as far as they were read; the latest last.
    pub fn rises(&self) -> Vec<Rise> {
        self.memory.rises()
    }

    /// To be called when a revoked session has become idle, or has nothing running: takes its
    /// rows away, so that it need not be terminated. Does nothing while a statement may run, and
    /// leaves the rows of a session that has written in a transaction still open.
    ///
    /// Failures are left to the drain. Cancel safe.
    pub async fn release(self: &Arc<Self>, session: &Arc<SessionFence>) {
        let Ok(who) = &session.identity else { return };
        // First the floors, then the activity: below these floors nothing can begin any more, so
        // what is idle after they were read stays so as far as they go.
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

    /// Why was this session's server process terminated? The newer epoch of something that it had
    /// been admitted to, if there is one. Asks the database, since a notification may not have
    /// come yet; where that fails or takes long, what revoked the session is the answer. A session that was
    /// never admitted blocks no other: nothing is asked.
    ///
    /// Cancel safe.
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
            // One that raises its token may have been ended for what it still held.
            let presented = [presented.get(&resource).map(|it| it.epoch), asked];
            let presented = presented.into_iter().flatten().filter(|it| *it < highest).max()?;
            Some(CutOff { resource, presented, highest })
        })
    }

    /// The session's admission was taken away: whatever ends its process now, a newer token for that resource does not.
    pub(super) fn released(&self, key: &Key, resource: &str, epoch: Epoch) {
        if let Some(session) = self.sessions.get(key) {
            session.released(resource, epoch);
        }
    }

    /// Closes the control connections. The next need opens them again; until then memory is not believed. Cancel safe.
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

    /// Says that no session writes through this proxy any more, if that is so; opens no connection for it. Where it fails,
    /// this proxy counts as lost for a while.
    async fn leave(&self) {
        if self.sessions.is_empty()
            && self.store.proxy_connection() != 0
            && let Err(error) = self.store.leave().await
        {
            tracing::debug!(database = self.name, %error, "the proxy's row is left");
        }
    }

    /// The database, to be asked; and the watcher, for as long as it is.
    pub(super) fn store(self: &Arc<Self>) -> &dyn Store {
        watcher::ensure(self);
        &*self.store
    }

    /// Reads the epochs of these resources. Remembers them, and which resources have none.
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
