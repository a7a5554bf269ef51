//! One downstream database: it connects the steps of the protocol with their state.
//!
//! Owns the lifetime of the connections and of the watcher. Must never decide that a session may write: only Admit
//! (`admit.rs`) decides that, in the database.
//!
//! Functions here are not cancel-safe unless their comment says so: a Query that was sent continues.

mod operations;

use super::authority::Authority;
use super::background::Background;
use super::log_limit::LogLimit;
use super::memory::Memory;
use super::policies::Policies;
use super::raising::RaisingState;
use super::registry::{Registry, key};
use super::session::{Identity, SessionFence};
use super::step::{Context, Environment, FenceMetrics};
use super::store::{Found, Key, Listener, Postgres, Store, StoreError};
use super::watch;
use super::watcher::Watcher;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_postgres::tls::ControlConfig;
use operations::Vacating;
use std::sync::{Arc, Weak};

/// One downstream database. All of its methods need a tokio runtime with timers and I/O.
#[derive(Debug)]
pub struct Database {
    pub(super) environment: Environment,
    pub(super) store: Arc<dyn Store>,
    /// Epochs as they were last read.
    pub(super) memory: Arc<Memory>,
    /// The sessions that a drain may have to revoke: a subset of the program's sessions.
    pub(super) sessions: Registry,
    pub(super) policies: Policies,
    raising: RaisingState,
    pub(super) watcher: Watcher,
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
        if let Some(key) = self.key.take()
            && self.database.sessions.remove(&key)
        {
            self.database.memory.wake.notify_one();
        }
    }
}

impl Database {
    /// A PostgreSQL database without open connections. `control` includes the database's name. `proxy` must be unique among
    /// all proxy processes that ever run. Its methods that query the database run in `background`.
    pub fn new(
        name: impl Into<String>,
        control: ControlConfig,
        proxy: impl Into<String>,
        authority: Arc<Authority>,
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
        authority: Arc<Authority>,
        metrics: FenceMetrics,
        background: Background,
    ) -> Arc<Self> {
        let memory = Arc::new(Memory::default());
        let (store, watched) = (store(memory.clone()), memory.clone());
        let log_limit = LogLimit::new(background.clone());
        let (name, proxy) = (name.into(), proxy.to_owned());
        Arc::new_cyclic(|database: &Weak<Database>| {
            let (database, runtime) = (database.clone(), background.clone());
            Database {
                environment: Environment { name, proxy, authority, metrics, background, log_limit },
                store,
                memory,
                sessions: Registry::default(),
                policies: Policies::default(),
                raising: RaisingState::default(),
                watcher: Watcher::new(move || watch::start(&runtime, &watched, database.clone())),
                vacating: Vacating::default(),
            }
        })
    }

    /// The database as the steps of the protocol see it.
    pub(super) fn context(&self) -> Context<'_> {
        Context {
            environment: &self.environment,
            unwatched: &*self.store,
            memory: &self.memory,
            sessions: &self.sessions,
            policies: &self.policies,
            watcher: &self.watcher,
        }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.environment.name
    }

    /// The runtime for all work that queries the database.
    pub fn background(&self) -> &Background {
        &self.environment.background
    }

    /// Limits the log when tokens are raised very often.
    pub fn log_limit(&self) -> &Arc<LogLimit> {
        &self.environment.log_limit
    }

    /// Returns true if a session is registered.
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Returns true if the database has sessions or connections, or state that a new entry would lack: a statement that needs the
    /// database exclusively is pending, or `/readyz` reports newer policies of other proxies.
    pub fn is_in_use(&self) -> bool {
        let is_watched = self.watcher.runs();
        let is_superseded = !self.policies.superseded().is_empty() && !self.is_missing();
        self.has_sessions() || is_watched || self.store.is_open() || self.vacating.lasts() || is_superseded
    }

    /// Returns true if the database did not exist at the last attempt to connect, and has no sessions.
    pub fn is_missing(&self) -> bool {
        self.context().is_missing()
    }

    /// Reports that a session has logged in to the database. Discards an earlier finding that the database does not exist.
    pub fn note_login(&self) {
        self.store.note_login();
    }

    /// The processes that have locked fencegate's tables in this database, if any. Leaves no connection open. Cancel-safe.
    pub async fn table_locks(&self) -> Result<Option<String>, StoreError> {
        let by = self.store.table_locks().await?;
        let holders: Vec<String> = by.into_iter().map(|it| it.holder).collect();
        Ok((!holders.is_empty()).then(|| holders.join("; ")))
    }

    /// Returns true if the database had no schema `fencegate` at the last attempt to connect.
    pub fn is_unprepared(&self) -> bool {
        self.store.found() == Found::Unprepared
    }

    /// Returns true if the database is known to have no schema `fencegate`, and no fenced table was seen in it.
    pub fn fences_nothing(&self) -> bool {
        self.is_unprepared() && !self.policies.has_fenced_tables()
    }

    /// Registers a session, so that drains can revoke it instead of terminating its process. Starts the watcher if there are
    /// policies, because it may have stopped since the session logged in. Ignores a session with an unknown identity, which
    /// is never admitted.
    pub fn register(self: &Arc<Self>, session: Arc<SessionFence>) -> Registration {
        let key = session.identity.as_ref().ok().map(key);
        if let Some(key) = key.clone() {
            self.sessions.insert(key, session);
            if self.policies.has_any() {
                self.watcher.ensure();
            }
        }
        Registration { database: self.clone(), key }
    }

    /// Closes the control connections. The next operation opens them again. Until then no verdict comes from memory. Cancel-safe.
    pub async fn close(&self) {
        self.watcher.stop();
        self.close_connections(false).await;
    }

    /// Closes outdated control connections. The next operation opens them again.
    pub fn close_outdated(&self) {
        self.store.close_outdated();
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
            tracing::debug!(database = self.environment.name, %error, "the proxy's row is left");
        }
    }
}

impl Database {
    /// Reads the catalog of the fenced tables, as it is for all sessions. Cancel-safe.
    pub async fn catalog(&self, fences: Fenced<'_>) -> Result<Catalog, StoreError> {
        let catalog = self.context().store().catalog(fences, None).await?;
        self.policies.set_fenced_tables(catalog.has_fenced_tables());
        Ok(catalog)
    }

    /// The catalog as the session with this schema of temporary relations sees it. Cancel-safe.
    pub async fn catalog_of_session(&self, fences: Fenced<'_>, temporary: &str) -> Result<Catalog, StoreError> {
        let failed = |error| StoreError::CatalogOfSession { schema: temporary.to_owned(), error: Box::new(error) };
        self.store.catalog(fences, Some(temporary)).await.map_err(failed)
    }

    /// Reads the objects that CASCADE may drop from the fenced tables. Cancel-safe.
    pub async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.context().store().dependencies(fences).await
    }

    /// Returns after another proxy has announced a catalog change. Simultaneous announcements count once. Cancel-safe.
    pub fn catalog_announced(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.catalog.notified().await }
    }

    /// Announces to other proxies that the catalog has changed. Cancel-safe: the announcement may be lost.
    pub async fn announce_catalog(&self) {
        if let Err(error) = self.context().store().announce_catalog().await {
            tracing::debug!(database = self.name(), %error, "catalog_change_not_announced");
        }
    }

    /// Notifies the server process of a session that listens for [`super::store::process_payload`]. Cancel-safe: the
    /// notification may be lost.
    ///
    /// # Errors
    /// No control connection could send it.
    pub async fn notify_process(&self, identity: &Identity) -> Result<(), StoreError> {
        self.context().store().notify_process(identity).await
    }

    /// The number of the connection that listens for announcements. 0: none does.
    pub fn listener(&self) -> u64 {
        self.memory.listener()
    }

    /// The number of the connection that began to listen last, even if it no longer listens. 0: none has yet.
    pub fn last_listener(&self) -> u64 {
        self.memory.last_listener()
    }

    /// How full the server's notification queue is, from 0 to 1. None while no connection listens.
    pub fn queue_usage(&self) -> Option<f64> {
        self.watcher.queue_usage()
    }

    /// Returns true if the database has had the schema `fencegate` since this process began: a control connection has listened
    /// there.
    pub fn was_prepared(&self) -> bool {
        self.last_listener() != 0
    }
}
