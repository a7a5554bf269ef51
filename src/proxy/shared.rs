//! What all sessions of the proxy share: settings, policies, databases, the cache of verdicts.

use super::connections::Connections;
use super::definitions::AllSuspects;
use super::encryption::Encryption;
use super::health::Health;
use super::log_limit::LogLimit;
use super::recent::Recent;
use super::session::Sessions;
use super::shutdown::Stage;
use super::{Start, succession};
use crate::config::{Settings, SettingsArguments};
use crate::fence::{Authority, Catalogue, Database, is_missing};
use crate::metrics::Metrics;
use crate::policy::{PolicySet, Resource};
use crate::statement::Cache;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// What is known of a database's fenced tables is looked up anew when a session starts, unless it is this fresh.
const FRESH: Duration = Duration::from_secs(1);

/// Who waits for a database to be prepared waits this long at most.
pub const PREPARE_LIMIT: Duration = Duration::from_secs(1);

/// Announcements that the catalogue has changed are heard at most this often.
const ANNOUNCEMENTS: Duration = Duration::from_millis(250);

/// The catalogue is read again after this time without an announcement: whoever changed it may have been killed before
/// saying so, or be no proxy.
const UNANNOUNCED: Duration = Duration::from_secs(10);

/// More questions about writes past fences that only observe are not asked at once, in a database: etcd may be silent.
const MOST_OBSERVATIONS: usize = 64;

/// KiB of long texts that are read at the same time; a longer one is read alone. The parser takes up to a thousand times that.
pub const READ_AT_ONCE: usize = 512;

/// KiB of long messages that all sessions hold at the same time, each until the server has taken it.
pub const HELD_AT_ONCE: usize = 64 * 1024;

/// Connections to the server that belong to no session, at the same time: they pass requests to cancel on, and have the server say
/// what is wrong with a packet.
pub const BESIDE_SESSIONS: usize = 32;

/// One proxy process.
pub struct Shared {
    settings: RwLock<Arc<Settings>>,
    /// What the settings were read from.
    pub arguments: SettingsArguments,
    /// Held by the reload that is under way.
    pub reloading: tokio::sync::Mutex<()>,
    pub started: SystemTime,
    /// What sessions that run have to know of the settings, and of the end.
    pub orders: watch::Sender<Orders>,
    pub connections: Arc<Connections>,
    pub sessions: Arc<Sessions>,
    /// The rejections of late.
    pub recent: Recent,
    pub metrics: Arc<Metrics>,
    pub encryption: Arc<Encryption>,
    pub log_limit: Arc<LogLimit>,
    /// What tells the other proxies that a catalogue has changed.
    pub announcements: TaskTracker,
    pub health: Health,
    pub policies: watch::Sender<Arc<PolicySet>>,
    pub cache: Cache,
    /// A permit for each KiB of [`READ_AT_ONCE`].
    pub long_texts: Arc<Semaphore>,
    /// A permit for each KiB of [`HELD_AT_ONCE`].
    pub long_messages: Arc<Semaphore>,
    /// A permit for each of [`BESIDE_SESSIONS`].
    pub beside_sessions: Semaphore,
    /// Asked who leads the elections that policies name.
    pub authority: Option<Arc<Authority>>,
    databases: Mutex<HashMap<String, Arc<Downstream>>>,
    /// Different for every proxy process: tells its admissions from others'.
    id: String,
}

/// What sessions are told while they run.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    pub stage: Stage,
    /// How long they may be idle outside of a transaction.
    pub idle_timeout: Option<Duration>,
}

/// A database that sessions are connected to.
pub struct Downstream {
    pub fence: Arc<Database>,
    pub policies: watch::Receiver<Arc<PolicySet>>,
    /// Wakes what shuts deposed leaders out.
    pub registered: Notify,
    /// Writes past fences that only observe, of which it is being asked whether they would be rejected.
    pub observations: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// Wakes what reads the catalogue after changes that have nothing to do with fenced tables.
    harmless_change: Notify,
    /// What its sessions are defining.
    pub suspects: AllSuspects,
    /// What is recorded in it. Held while policies are being recorded.
    recorded: tokio::sync::Mutex<Recorded>,
    /// Its catalogue is being read: the others wait for that.
    reading: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// What is recorded in a database.
#[derive(Default)]
struct Recorded {
    /// The policies, once all of them are.
    policies: Option<Arc<PolicySet>>,
    /// When that was tried last.
    attempted: Option<Instant>,
}

/// What has been read of a database's catalogue.
#[derive(Default)]
struct Known {
    /// As last read; what cannot be read anew stays.
    catalogue: Arc<Catalogue>,
    /// Nothing has changed since that may have to do with fenced tables, as far as the proxy saw.
    current: bool,
    /// Counts the changes seen: a reading that one overtook does not have it.
    changes: u64,
    /// Counts those that may have to do with fenced tables: a reading that one overtook is not current.
    doubts: u64,
    /// The changes that it has.
    read: u64,
    /// When a reading began last, and which changes had been seen then.
    attempted: Option<(Instant, u64)>,
    /// The control connection that listened then: one that began later may have missed what changed in between.
    listener: u64,
}

/// What is known of a database's catalogue at a moment.
pub struct Seen {
    /// As last read.
    pub catalogue: Arc<Catalogue>,
    /// Nothing has changed since that may have to do with fenced tables.
    pub is_current: bool,
    /// How many such changes there were until now.
    pub doubts: u64,
}

impl Shared {
    /// A proxy without sessions.
    pub fn new(start: Start, id: String, metrics: Arc<Metrics>) -> Arc<Self> {
        let Start { settings, arguments, encryption, policies, etcd } = start;
        let authority = etcd.map(Authority::new);
        if let Some(authority) = &authority {
            authority.follow(&policies.elections());
        }
        Arc::new(Shared {
            orders: watch::Sender::new(Orders { stage: Stage::Running, idle_timeout: settings.limits.idle }),
            connections: Arc::default(),
            settings: RwLock::new(Arc::new(settings)),
            arguments,
            reloading: tokio::sync::Mutex::default(),
            started: SystemTime::now(),
            sessions: Arc::default(),
            recent: Recent::default(),
            metrics,
            encryption: Arc::new(encryption),
            log_limit: Arc::default(),
            announcements: TaskTracker::new(),
            health: Health::default(),
            policies: watch::Sender::new(Arc::new(policies)),
            cache: Cache::default(),
            long_texts: Arc::new(Semaphore::new(READ_AT_ONCE)),
            long_messages: Arc::new(Semaphore::new(HELD_AT_ONCE)),
            beside_sessions: Semaphore::new(BESIDE_SESSIONS),
            authority,
            databases: Mutex::default(),
            id,
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts settings in force, for what comes after.
    pub fn set_settings(&self, settings: Settings) {
        self.orders.send_modify(|orders| orders.idle_timeout = settings.limits.idle);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The proxy comes to its end.
    pub fn set_stage(&self, stage: Stage) {
        self.orders.send_modify(|orders| orders.stage = stage);
    }

    /// Waits until the proxy comes to its end. Cancel-safe.
    pub async fn stopping(&self) {
        // The sender is ours: it does not end.
        self.orders.subscribe().wait_for(|orders| orders.stage != Stage::Running).await.ok();
    }

    /// The database of that name, known from now on.
    pub fn downstream(&self, name: &str) -> Arc<Downstream> {
        let mut databases = self.databases();
        if let Some(known) = databases.get(name) {
            return known.clone();
        }
        let (control, authority) = (self.encryption.control_for(&self.settings(), name), self.authority.clone());
        let fence = Database::new(name, control, self.id.clone(), authority, self.metrics.clone());
        let downstream = Arc::new(Downstream {
            fence,
            policies: self.policies.subscribe(),
            registered: Notify::new(),
            observations: Arc::new(Semaphore::new(MOST_OBSERVATIONS)),
            metrics: self.metrics.clone(),
            harmless_change: Notify::new(),
            suspects: AllSuspects::default(),
            recorded: tokio::sync::Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        });
        databases.insert(name.to_owned(), downstream.clone());
        tokio::spawn(follow_catalogue(downstream.clone()));
        tokio::spawn(follow_harmless_changes(downstream.clone()));
        if let Some(authority) = &self.authority {
            tokio::spawn(succession::shut_out_deposed(downstream.clone(), authority.leaders()));
        }
        downstream
    }

    /// The same, unless the server says that it has none of that name. Cancel-safe.
    pub async fn find_downstream(&self, name: &str) -> Option<Arc<Downstream>> {
        let is_known = self.databases().contains_key(name);
        if !is_known && is_missing(&self.encryption.control_for(&self.settings(), name)).await {
            return None;
        }
        Some(self.downstream(name))
    }

    /// All databases known, by name; not those that are gone.
    pub fn downstreams(&self) -> Vec<Arc<Downstream>> {
        // One that comes back is the same: two of one name would not know each other's sessions.
        let mut known: Vec<_> = self.databases().values().filter(|it| !it.fence.is_missing()).cloned().collect();
        known.sort_by(|one, other| one.fence.name().cmp(other.fence.name()));
        known
    }

    /// Puts policies in force, in all databases. Not cancel-safe: some databases may have them and others not.
    pub async fn apply(&self, policies: PolicySet) {
        let policies = Arc::new(policies);
        if let Some(authority) = &self.authority {
            authority.follow(&policies.elections());
        }
        self.policies.send_replace(policies.clone());
        for database in self.downstreams().iter().filter(|database| policies.applies_to(database.fence.name())) {
            database.forget_catalogue();
            database.prepare().await;
        }
    }

    /// Closes the control connections to a database; the next need opens them again. It may be another one of that name
    /// by then: nothing that was read of its catalogue counts any more. Cancel-safe.
    pub async fn close_database(&self, name: &str) {
        let known = self.databases().get(name).cloned();
        if let Some(database) = known {
            database.forget_catalogue();
            database.fence.close().await;
        }
    }

    fn databases(&self) -> MutexGuard<'_, HashMap<String, Arc<Downstream>>> {
        self.databases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fence holds once the writes have ended that were let through before it. Cancel-safe: nobody is told then.
async fn say_when_enforced(database: Arc<Database>, resource: Arc<Resource>) {
    let (name, resource_name) = (database.name(), &resource.name);
    match database.enforced(&resource).await {
        Ok(()) => tracing::info!(database = name, resource = resource_name, "fence_enforced"),
        Err(error) => tracing::warn!(database = name, resource = resource_name, %error, "fence_enforcement_unknown"),
    }
}

/// Reads the catalogue when somebody else says that it has changed, at most once in a while: anybody can say so. And now
/// and then in case nobody said so: writes need not wait for that.
async fn follow_catalogue(database: Arc<Downstream>) {
    loop {
        match timeout(UNANNOUNCED, database.fence.catalogue_announced()).await {
            Ok(()) => database.forget_catalogue(),
            // Whoever comes to listen reads it anyway.
            Err(_) if database.fence.listener() == 0 => continue,
            Err(_) => database.suppose_change(),
        }
        // No connection is opened to a database in which this proxy has no sessions: it may be about to be dropped.
        if database.fence.has_sessions() {
            database.catch_up().await;
        }
        tokio::time::sleep(ANNOUNCEMENTS).await;
    }
}

/// Reads the catalogue after changes that have nothing to do with fenced tables, for those that build on them later: here,
/// and in other proxies. At most once in a while: nobody waits for it.
async fn follow_harmless_changes(database: Arc<Downstream>) {
    loop {
        database.harmless_change.notified().await;
        if database.fence.has_sessions() {
            database.catch_up().await;
            database.fence.announce_catalogue().await;
        }
        tokio::time::sleep(ANNOUNCEMENTS).await;
    }
}

impl Downstream {
    /// Records the policies in force in the database, once, and reads its catalogue, unless that was done a moment ago.
    /// Not cancel-safe: some resources may be recorded and others not, until the next call.
    pub async fn prepare(&self) {
        self.record_policies().await;
        let _turn = self.reading.lock().await;
        if self.known().attempted.is_none_or(|(at, _)| at.elapsed() > FRESH) || self.is_due() {
            self.read_catalogue().await;
        }
    }

    /// Not cancel-safe, as [`Self::prepare`].
    async fn record_policies(&self) {
        let mut recorded = self.recorded.lock().await;
        let policies = self.policies.borrow().clone();
        if recorded.has(&policies) {
            return;
        }
        recorded.attempted = Some(Instant::now());
        match self.fence.apply_policy(&policies.resources).await {
            Ok(()) => {
                for resource in &policies.resources {
                    tokio::spawn(say_when_enforced(self.fence.clone(), resource.clone()));
                }
                recorded.policies = Some(policies);
            }
            // Admit compares the policies again, and refuses.
            Err(reason) => tracing::warn!(database = self.fence.name(), reason, "policies_not_recorded"),
        }
    }

    /// Tries again to record the policies, where that has failed a while ago: the schema may be there by now. Waits for a
    /// moment at most. Cancel-safe: it goes on by itself.
    pub async fn record_missed_policies(self: &Arc<Self>) {
        let is_due = |recorded: &Recorded| {
            let is_tried = recorded.attempted.is_some_and(|at| at.elapsed() <= FRESH);
            !is_tried && !recorded.has(&self.policies.borrow())
        };
        // Where the lock is held, somebody is recording them.
        if self.recorded.try_lock().is_ok_and(|recorded| is_due(&recorded)) {
            let database = self.clone();
            let recording = tokio::spawn(async move { database.record_policies().await });
            tokio::time::timeout(PREPARE_LIMIT, recording).await.ok();
        }
    }

    /// A table of the database is fenced, as far as its catalogue was read.
    pub fn has_fences(&self) -> bool {
        self.policies.borrow().applies_to(self.fence.name()) && self.known().catalogue.has_fenced_tables()
    }

    /// A session of the database is registered.
    pub fn session_registered(&self) {
        self.registered.notify_one();
    }

    /// What is known of the catalogue.
    pub fn catalogue(&self) -> Seen {
        let known = self.known();
        let is_current = self.is_current(&known);
        Seen { catalogue: known.catalogue.clone(), is_current, doubts: known.doubts }
    }

    /// The catalogue has changed: until it is read, any relation may be fenced.
    pub fn forget_catalogue(&self) {
        let mut known = self.known();
        known.current = false;
        known.changes += 1;
        known.doubts += 1;
    }

    /// The catalogue has changed in a way that had nothing to do with fenced tables when there were so many doubts. False
    /// if there are more by now.
    pub fn note_harmless_change(&self, doubts: u64) -> bool {
        let mut known = self.known();
        let is_harmless = known.doubts == doubts;
        known.changes += u64::from(is_harmless);
        drop(known);
        if is_harmless {
            self.harmless_change.notify_one();
        }
        is_harmless
    }

    /// The catalogue may have changed without a sign: it is due, and what was read before counts until then.
    fn suppose_change(&self) {
        self.known().changes += 1;
    }

    /// Reads the catalogue, if it is due. Cancel-safe: it is due again after a while.
    pub async fn catch_up(&self) {
        let _turn = self.reading.lock().await;
        if self.is_due() {
            self.read_catalogue().await;
        }
    }

    /// Reads the catalogue. While it cannot be read, what was read before stays. Cancel-safe, as [`Self::catch_up`].
    async fn read_catalogue(&self) {
        let policies = self.policies.borrow().clone();
        let listener = self.fence.listener();
        let (changes, doubts) = {
            let mut known = self.known();
            known.attempted = Some((Instant::now(), known.changes));
            (known.changes, known.doubts)
        };
        let tables: Vec<_> = policies
            .resources
            .iter()
            .flat_map(|resource| resource.tables.iter().map(|table| (&**resource, table)))
            .collect();
        let read = self.fence.catalogue(&tables).await;
        let mut known = self.known();
        match read {
            Ok(catalogue) => {
                for resource in policies.resources.iter().filter(|resource| catalogue.may_have(resource)) {
                    self.metrics.expect_writes(self.fence.name(), &resource.name, resource.mode.name());
                }
                known.catalogue = Arc::new(catalogue);
                known.current = known.doubts == doubts;
                known.read = changes;
                // The first connection that listens is opened for the reading itself, before it.
                known.listener = if listener == 0 { self.fence.listener() } else { listener };
            }
            Err(error) => tracing::warn!(database = self.fence.name(), %error, "catalogue_unreadable"),
        }
    }

    /// It is worth waiting for [`Self::catch_up`].
    pub fn is_unread(&self) -> bool {
        let known = self.known();
        let is_current = self.is_current(&known);
        let is_doubtful = !is_current || known.is_doubtful(self.fence.listener());
        is_doubtful && known.is_untried() || !is_current && self.reading.try_lock().is_err()
    }

    /// Nothing that has not been read may have to do with fenced tables. What was harmless by itself may lead to what
    /// somebody is defining.
    fn is_current(&self, known: &Known) -> bool {
        known.current && (known.read == known.changes || self.suspects.is_empty())
    }

    /// The catalogue has changed, or may have, since it was read; and nobody has tried to read it since, or only a
    /// while ago.
    fn is_due(&self) -> bool {
        let known = self.known();
        (known.is_doubtful(self.fence.listener()) || known.read != known.changes) && known.is_untried()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorded {
    /// These policies are recorded.
    fn has(&self, policies: &Arc<PolicySet>) -> bool {
        self.policies.as_ref().is_some_and(|recorded| Arc::ptr_eq(recorded, policies))
    }
}

impl Known {
    /// What has to do with fenced tables may have changed since.
    fn is_doubtful(&self, listener: u64) -> bool {
        !self.current || listener != 0 && listener != self.listener
    }

    /// Nobody has tried to read it since the last change, or only a while ago.
    fn is_untried(&self) -> bool {
        self.attempted.is_none_or(|(at, changes)| changes != self.changes || at.elapsed() > FRESH)
    }
}
