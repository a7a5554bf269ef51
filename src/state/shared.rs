//! State that all sessions of the proxy share: settings, policies, databases, the cache of verdicts.
//!
//! Must never create a database outside of the registry: its sessions would not know the others.

use super::connections::Connections;
use super::database::SharedDatabase;
use super::databases::{Databases, LOOK};
use super::encryption::TlsMaterial;
use super::health::Health;
use super::history::History;
use super::lifecycle::{Orders, Phase};
use super::parse_permits::ParsePermits;
use super::policy_tables::PolicyTables;
use super::recent::Recent;
use super::room::MessageBudget;
use super::sessions::Sessions;
use super::succession;
use crate::config::{Settings, SettingsArguments};
use crate::metrics::Metrics;
use fencegate_fence::background::Background;
use fencegate_fence::log_limit::LogLimit;
use fencegate_fence::supervise::supervise;
use fencegate_fence::{Authority, Database, Leaders, Role, is_missing};
use fencegate_leader::etcd::Etcd;
use fencegate_policy::PolicySet;
use fencegate_statement::reader_process::READERS;
use fencegate_statement::{Alone, Cache};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Long texts whose tokens are read at the same time.
const TOKENS_AT_ONCE: usize = 2;

/// Bytes of long messages that all sessions hold at the same time, each until the server has taken it.
const HELD_AT_ONCE: usize = 64 * 1024 * 1024;
/// The part of it that is for messages behind others that the server has not answered: it may not take them for long.
const HELD_BEHIND: usize = 20 * 1024 * 1024;

/// Connections at the same time that pass cancel requests on.
const CANCELS: usize = 32;

/// Connections at the same time that pass an invalid packet on, for the server's own error.
const WRONG_PACKETS: usize = 8;
/// The longest that a reload waits for the databases to record the policies.
const APPLY_LIMIT: Duration = Duration::from_secs(5);

/// Number of connections that may be open besides those of clients and sessions.
pub const BESIDE_SESSIONS: usize = CANCELS + WRONG_PACKETS;

/// The options with which a proxy starts.
pub struct StartOptions {
    /// The settings, checked.
    pub settings: Settings,
    /// The sources of the settings, which a reload reads again.
    pub arguments: SettingsArguments,
    /// Key material for clients' and the server's connections.
    pub encryption: TlsMaterial,
    /// The policies, which can be kept with those settings.
    pub policies: PolicySet,
    /// There if the settings have it.
    pub etcd: Option<Arc<Etcd>>,
}

/// One proxy process.
pub struct Shared {
    settings: RwLock<Arc<Settings>>,
    /// The sources of the settings.
    pub arguments: SettingsArguments,
    /// Held by the reload that is under way.
    pub reloading: tokio::sync::Mutex<()>,
    /// Time of the start.
    pub started: SystemTime,
    /// Changed settings and the shutdown, for running sessions.
    pub orders: watch::Sender<Orders>,
    /// Clients and their places.
    pub connections: Arc<Connections>,
    /// The open sessions.
    pub sessions: Arc<Sessions>,
    /// The latest rejections.
    pub recent: Recent,
    /// The latest events, for the picture on the status page.
    pub history: History,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Certificates and keys in force.
    pub encryption: Arc<TlsMaterial>,
    /// The limit on repeated log lines.
    pub log_limit: Arc<LogLimit>,
    /// Runs the work that sessions share.
    pub background: Background,
    /// State of the server and of etcd, for `/readyz`.
    pub health: Health,
    /// The policies in force.
    pub policies: watch::Sender<Arc<PolicySet>>,
    /// Which of their tables exist.
    pub policy_tables: PolicyTables,
    /// Texts that were read.
    pub cache: Cache,
    /// For the tokens of long texts: `TOKENS_AT_ONCE`.
    pub parse_permits: ParsePermits,
    /// For parsing in another process: [`READERS`].
    pub parse_permits_apart: ParsePermits,
    /// For long messages; those that the server takes at once.
    pub room: Arc<MessageBudget>,
    /// For those behind others, `HELD_BEHIND`.
    pub room_behind: Arc<MessageBudget>,
    /// A permit for each of `CANCELS`.
    pub cancels: Semaphore,
    /// A permit for each of `WRONG_PACKETS`.
    pub wrong_packets: Semaphore,
    /// Knows the leaders of the elections that policies name.
    pub authority: Option<Arc<Authority>>,
    pub(super) databases: Databases,
    /// Different for every proxy process: tells its admissions from others'.
    id: String,
}

#[cfg(test)]
impl Shared {
    /// A proxy whose server is away: a database without sessions needs no connection.
    pub fn of_test() -> Arc<Self> {
        use clap::Parser;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            settings: SettingsArguments,
        }
        let line = "x --upstream /nowhere --control postgres://gate@localhost:1/ --policies policies";
        let arguments = Line::parse_from(line.split_whitespace()).settings;
        let settings = Settings::load(&arguments).unwrap();
        let encryption = TlsMaterial::new(&settings).unwrap();
        let start = StartOptions { settings, arguments, encryption, policies: PolicySet::default(), etcd: None };
        Shared::new(start, "test".to_owned(), Arc::new(Metrics::new().unwrap()))
    }
}

impl Shared {
    /// A proxy without sessions. The caller's runtime is the one for the work that they will share.
    pub fn new(start: StartOptions, id: String, metrics: Arc<Metrics>) -> Arc<Self> {
        let StartOptions { settings, arguments, encryption, policies, etcd } = start;
        let background = Background::current();
        let authority = etcd.map(|etcd| Authority::new(etcd, background.clone()));
        if let Some(authority) = &authority {
            authority.follow(&policies.elections());
        }
        Arc::new(Shared {
            orders: watch::Sender::new(Orders {
                phase: Phase::Running,
                idle_timeout: settings.limits.idle,
                paused: Arc::default(),
            }),
            connections: Arc::default(),
            settings: RwLock::new(Arc::new(settings)),
            arguments,
            reloading: tokio::sync::Mutex::default(),
            started: SystemTime::now(),
            sessions: Arc::default(),
            recent: Recent::default(),
            history: History::default(),
            metrics,
            encryption: Arc::new(encryption),
            log_limit: LogLimit::new(background.clone()),
            background,
            health: Health::default(),
            policies: watch::Sender::new(Arc::new(policies)),
            policy_tables: PolicyTables::default(),
            cache: Cache::default(),
            room: MessageBudget::new(HELD_AT_ONCE - HELD_BEHIND),
            room_behind: MessageBudget::new(HELD_BEHIND),
            cancels: Semaphore::new(CANCELS),
            wrong_packets: Semaphore::new(WRONG_PACKETS),
            parse_permits: ParsePermits::new(TOKENS_AT_ONCE, false),
            parse_permits_apart: ParsePermits::new(READERS, true),
            authority,
            databases: Databases::default(),
            id,
        })
    }

    /// The leaders of the elections that are followed.
    pub fn leaders(&self) -> Leaders {
        self.authority.as_ref().map(|it| it.leaders().borrow().clone()).unwrap_or_default()
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Applies settings to later events.
    pub fn set_settings(&self, settings: Settings) {
        self.orders.send_modify(|orders| orders.idle_timeout = settings.limits.idle);
        *self.settings.write() = Arc::new(settings);
    }

    /// Sets the phase of the proxy's life.
    pub fn set_phase(&self, phase: Phase) {
        self.orders.send_modify(|orders| orders.phase = phase);
    }

    /// Pauses a database, or has it go on. False: it was paused, or not, already.
    pub fn set_paused(&self, database: &str, is_paused: bool) -> bool {
        self.orders.send_if_modified(|orders| {
            let paused = Arc::make_mut(&mut orders.paused);
            if is_paused { paused.insert(database.to_owned()) } else { paused.remove(database) }
        })
    }

    /// Waits until the database is not paused, or the proxy is stopping. Cancel-safe.
    pub async fn not_paused(&self, database: &str) {
        let goes_on = |orders: &Orders| !orders.paused.contains(database) || orders.phase != Phase::Running;
        // The sender is ours: it does not end.
        self.orders.subscribe().wait_for(goes_on).await.ok();
    }

    /// Waits until the proxy is stopping. Cancel-safe.
    pub async fn stopping(&self) {
        // The sender is ours: it does not end.
        self.orders.subscribe().wait_for(|orders| orders.phase != Phase::Running).await.ok();
    }

    /// The database of that name. The registry keeps it while it is used, and for a while after.
    pub fn shared_database(&self, name: &str) -> Arc<SharedDatabase> {
        self.databases.take_up(name, || {
            let (control, authority) = (self.encryption.control_for(&self.settings(), name), self.authority.clone());
            let (metrics, background) = (self.metrics.clone(), self.background.clone());
            let fence = Database::new(name, control, self.id.clone(), authority, metrics.fence.clone(), background);
            let shared_database = SharedDatabase::new(fence, self.policies.subscribe(), self.metrics.clone());
            shared_database.follow();
            let leaders = self.authority.as_ref().map(|authority| authority.leaders());
            let led = Arc::downgrade(&shared_database);
            let shut_out = move || succession::shut_out_deposed(led.clone(), leaders.clone());
            shared_database.keep_task(supervise(&self.background, "shut_out_deposed", shut_out));
            shared_database
        })
    }

    /// Forgets unused databases, for as long as the proxy runs. Cancel-safe.
    pub async fn forget_unused_databases(self: Arc<Self>) {
        loop {
            sleep(LOOK).await;
            self.databases.forget_unused();
        }
    }

    /// Like [`Self::shared_database`], or None if the server reports that there is no such database. Records the
    /// policies in a database that was unknown. Not cancel-safe: some resources may be unrecorded until the database's
    /// first session.
    pub async fn find_shared_database(&self, name: &str) -> Option<Arc<SharedDatabase>> {
        let is_known = self.databases.get(name).is_some();
        if !is_known && is_missing(&self.encryption.control_for(&self.settings(), name)).await {
            return None;
        }
        let found = self.shared_database(name);
        if !is_known && self.policies.borrow().applies_to(name) {
            found.prepare().await;
        }
        Some(found)
    }

    /// All databases known, by name; not those that are gone.
    pub fn shared_databases(&self) -> Vec<Arc<SharedDatabase>> {
        let mut known = self.databases.all();
        known.retain(|it| !it.fence.is_missing());
        known.sort_by(|one, other| one.fence.name().cmp(other.fence.name()));
        known
    }

    /// Puts policies in force, in all databases. Waits for the databases for a limited time: they record the policies by
    /// themselves. Cancel-safe.
    pub async fn apply(&self, policies: PolicySet) {
        let policies = Arc::new(policies);
        if let Some(authority) = &self.authority {
            authority.follow(&policies.elections());
        }
        self.policies.send_replace(policies.clone());
        let mut databases = self.shared_databases();
        databases.retain(|database| policies.applies_to(database.fence.name()));
        databases.iter().for_each(|database| database.forget_catalog());
        // Continues by itself if a server does not answer: no code depends on its end.
        let preparing = self.background.spawn(async move {
            for database in databases {
                database.prepare().await;
            }
        });
        timeout(APPLY_LIMIT, preparing).await.ok();
    }

    /// Gets the control connections to a database out of the way of a statement that needs it alone, as
    /// [`Database::close_for`] does. `from`: the database of the statement's session. Cancel-safe.
    pub async fn leave_alone(&self, wanted: &Alone, role: &Role, from: &str) {
        let known = self.databases.get(&wanted.database).map(|known| known.fence.clone());
        let is_own = wanted.database == from;
        // The server never drops the session's own database, so its connections may stay open.
        if let Some(database) = known.filter(|_| wanted.is_copied || !is_own) {
            database.close_for(role, wanted.by_force, is_own).await;
        }
    }

    /// There may be another database of that name now: nothing that was read of its catalog counts any more.
    pub fn forget_database(&self, name: &str) {
        if let Some(database) = self.databases.get(name) {
            database.fence.end_vacating();
            database.forget_catalog();
        }
    }
}
