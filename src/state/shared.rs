//! State that all sessions of the proxy share: settings, policies, databases, the cache of verdicts.
//!
//! Must never create a database outside of the registry: its sessions would not know the others.

use super::connections::Connections;
use super::database::SharedDatabase;
use super::databases::{Databases, LOOK};
use super::health::Health;
use super::health::PolicyTables;
use super::history::History;
use super::history::Recent;
use super::lifecycle::Predecessors;
use super::lifecycle::{Orders, Phase};
use super::room::MessageBudget;
use super::room::ParsePermits;
use super::servers::Servers;
use super::sessions::Sessions;
use super::succession;
use crate::config::{Settings, SettingsArguments};
use crate::listen::ListenError;
use crate::metrics::Metrics;
use crate::tls::TlsMaterial;
use async_trait::async_trait;
use fencegate_fence::background::Background;
use fencegate_fence::log_limit::LogLimit;
use fencegate_fence::supervise::supervise;
use fencegate_fence::{Authority, Database, Leaders, Role, is_missing};
use fencegate_leader::etcd::{Etcd, EtcdMembers};
use fencegate_policy::PolicySet;
use fencegate_postgres::tls::ControlConfig;
use fencegate_statement::reader_process::READERS;
use fencegate_statement::{Cache, ExclusiveUse};
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Maximum number of long texts whose tokens are read concurrently.
const TOKENS_AT_ONCE: usize = 2;

/// Maximum size of the long messages that all sessions hold, in bytes. Each message counts until the server has
/// received it.
const HELD_AT_ONCE: usize = 64 * 1024 * 1024;
/// Share of that size for messages behind unanswered ones, which the server may not receive for a long time.
const HELD_BEHIND: usize = 20 * 1024 * 1024;

/// Maximum number of concurrent connections that forward cancel requests.
const CANCELS: usize = 32;

/// Maximum number of concurrent connections that forward an invalid packet to obtain the server's own error.
const WRONG_PACKETS: usize = 8;
/// Maximum time that a reload waits for the databases to record the policies.
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
    /// The policies, which the settings support.
    pub policies: PolicySet,
    /// None unless the settings configure etcd.
    pub etcd: Option<Arc<Etcd>>,
}

/// The listening sockets of this proxy. `server` implements it.
#[async_trait]
pub trait ListeningSockets: Send + Sync {
    /// Opens the addresses of these settings that are not open yet. They accept from [`Self::put_in_force`] on. Cancel-safe:
    /// opens none.
    ///
    /// # Errors
    /// An address is not available. None is opened.
    async fn open_missing(&self, settings: &Settings) -> Result<(), ListenError>;

    /// Closes the addresses that these settings do not name, and lets the others accept. Not cancel-safe: an address may still
    /// be open.
    async fn put_in_force(&self, settings: &Settings);
}

/// One proxy process.
pub struct Shared {
    settings: RwLock<Arc<Settings>>,
    /// The sources of the settings.
    pub arguments: SettingsArguments,
    /// Held by the reload in progress.
    pub reloading: tokio::sync::Mutex<()>,
    /// The listening sockets, from the first accepted connection on.
    pub sockets: OnceLock<Arc<dyn ListeningSockets>>,
    /// Time of the start.
    pub started: SystemTime,
    /// Changed settings and the shutdown, for running sessions.
    pub orders: watch::Sender<Orders>,
    /// Clients and their places.
    pub connections: Arc<Connections>,
    /// The servers behind the proxy.
    pub servers: Arc<Servers>,
    /// The open sessions.
    pub sessions: Arc<Sessions>,
    /// Proxies whose sockets this one has taken over.
    pub predecessors: Predecessors,
    /// The latest rejections.
    pub recent: Recent,
    /// The latest events, for the picture on the status page.
    pub history: History,
    /// The counters.
    pub metrics: Arc<Metrics>,
    encryption: RwLock<Arc<TlsMaterial>>,
    /// How to open control connections. A reload replaces it for all databases.
    control: ControlConfig,
    /// The limit on repeated log lines.
    pub log_limit: Arc<LogLimit>,
    /// Runs the work that sessions share.
    pub background: Background,
    /// State of the server and of etcd, for `/readyz`.
    pub health: Health,
    /// The policies in force.
    pub policies: watch::Sender<Arc<PolicySet>>,
    /// Which tables of the policies exist.
    pub policy_tables: PolicyTables,
    /// The cache of verdicts.
    pub cache: Cache,
    /// Permits for reading the tokens of long texts: `TOKENS_AT_ONCE`.
    pub parse_permits: ParsePermits,
    /// Permits for parsing in another process: [`READERS`].
    pub parse_permits_out_of_process: ParsePermits,
    /// Room for long messages that the server can receive immediately.
    pub room: Arc<MessageBudget>,
    /// Room for messages behind unanswered ones: `HELD_BEHIND` bytes.
    pub room_behind: Arc<MessageBudget>,
    /// A permit for each of `CANCELS`.
    pub cancels: Semaphore,
    /// A permit for each of `WRONG_PACKETS`.
    pub wrong_packets: Semaphore,
    /// The authority on the leaders of the policies' elections.
    pub authority: Arc<Authority>,
    /// The cluster of that authority.
    etcd: Mutex<Option<Arc<Etcd>>>,
    pub(super) databases: Databases,
    /// Unique to this proxy process. Distinguishes its admissions from those of other proxies.
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
    /// A proxy without sessions. The caller's runtime runs the work that sessions share.
    pub fn new(start: StartOptions, id: String, metrics: Arc<Metrics>) -> Arc<Self> {
        let StartOptions { settings, arguments, encryption, policies, etcd } = start;
        let background = Background::current();
        let control = ControlConfig::new(settings.control.clone(), encryption.control.clone());
        let servers = Arc::new(Servers::new(&settings.upstream));
        let authority = Authority::new(background.clone());
        authority.set_etcd(etcd.clone());
        authority.follow(&policies.elections());
        Arc::new(Shared {
            orders: watch::Sender::new(Orders {
                phase: Phase::Running,
                idle_timeout: settings.limits.idle,
                paused: Arc::default(),
            }),
            connections: Arc::default(),
            servers: servers.clone(),
            settings: RwLock::new(Arc::new(settings)),
            arguments,
            reloading: tokio::sync::Mutex::default(),
            sockets: OnceLock::new(),
            started: SystemTime::now(),
            sessions: Arc::default(),
            predecessors: Predecessors::default(),
            recent: Recent::default(),
            history: History::default(),
            metrics,
            encryption: RwLock::new(Arc::new(encryption)),
            control: control.with_primary(servers),
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
            parse_permits_out_of_process: ParsePermits::new(READERS, true),
            authority,
            etcd: Mutex::new(etcd),
            databases: Databases::default(),
            id,
        })
    }

    /// Leaders of the followed elections.
    pub fn leaders(&self) -> Leaders {
        self.authority.leaders().borrow().clone()
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// The certificates and keys in force.
    pub fn encryption(&self) -> Arc<TlsMaterial> {
        self.encryption.read().clone()
    }

    /// How to open the control connections to one database.
    pub fn control_for(&self, database: &str) -> ControlConfig {
        self.control.with_database(database)
    }

    /// Makes the control connections of all databases outdated, because another server is the primary.
    pub fn outdate_control_connections(&self) {
        self.control.outdate();
    }

    /// Applies settings to later events, and certificates to new connections.
    pub fn put_in_force(&self, settings: Settings, encryption: TlsMaterial) {
        self.orders.send_modify(|orders| orders.idle_timeout = settings.limits.idle);
        self.control.replace(settings.control.clone(), encryption.control.clone());
        *self.encryption.write() = Arc::new(encryption);
        *self.settings.write() = Arc::new(settings);
    }

    /// Uses these members of etcd from now on. None: no policy may name an election.
    pub fn put_etcd_in_force(&self, members: Option<EtcdMembers>) {
        let mut etcd = self.etcd.lock();
        match (etcd.as_ref(), members) {
            (Some(etcd), Some(members)) => return etcd.replace(members),
            (_, members) => *etcd = members.map(Etcd::with),
        }
        self.authority.set_etcd(etcd.clone());
    }

    /// Sets the phase of the proxy's life.
    pub fn set_phase(&self, phase: Phase) {
        self.orders.send_modify(|orders| orders.phase = phase);
    }

    /// Pauses or resumes a database. Returns false if nothing changed.
    pub fn set_paused(&self, database: &str, is_paused: bool) -> bool {
        self.orders.send_if_modified(|orders| {
            let paused = Arc::make_mut(&mut orders.paused);
            if is_paused { paused.insert(database.to_owned()) } else { paused.remove(database) }
        })
    }

    /// Waits until the database is not paused, or the proxy is stopping. Cancel-safe.
    pub async fn not_paused(&self, database: &str) {
        let goes_on = |orders: &Orders| !orders.paused.contains(database) || orders.phase != Phase::Running;
        // This process owns the sender, so the channel stays open.
        self.orders.subscribe().wait_for(goes_on).await.ok();
    }

    /// Waits until the proxy is stopping. Cancel-safe.
    pub async fn stopping(&self) {
        // This process owns the sender, so the channel stays open.
        self.orders.subscribe().wait_for(|orders| orders.phase != Phase::Running).await.ok();
    }

    /// The database of that name. The registry keeps it while it is used, and for a while afterwards.
    pub fn shared_database(&self, name: &str) -> Arc<SharedDatabase> {
        self.databases.get_or_create(name, || {
            let (control, authority) = (self.control_for(name), self.authority.clone());
            let (metrics, background) = (self.metrics.clone(), self.background.clone());
            let fence = Database::new(name, control, self.id.clone(), authority, metrics.fence.clone(), background);
            let shared_database = SharedDatabase::new(fence, self.policies.subscribe(), self.metrics.clone());
            shared_database.follow();
            let leaders = self.authority.leaders();
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
        if !is_known && is_missing(&self.control_for(name)).await {
            return None;
        }
        let found = self.shared_database(name);
        if !is_known && self.policies.borrow().applies_to(name) {
            found.prepare().await;
        }
        Some(found)
    }

    /// All known databases by name, without dropped ones.
    pub fn shared_databases(&self) -> Vec<Arc<SharedDatabase>> {
        let mut known = self.databases.all();
        known.retain(|it| !it.fence.is_missing());
        known.sort_by(|one, other| one.fence.name().cmp(other.fence.name()));
        known
    }

    /// Puts policies in force in all databases. Waits a limited time for the databases, which record the policies
    /// independently. Cancel-safe.
    pub async fn apply(&self, policies: PolicySet) {
        let policies = Arc::new(policies);
        self.authority.follow(&policies.elections());
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

    /// Closes the control connections to a database before a statement that needs the database alone, see
    /// [`Database::vacate`]. `from`: the database of the statement's session. Cancel-safe.
    pub async fn vacate_database(&self, wanted: &ExclusiveUse, role: &Role, from: &str) {
        if wanted.database == self.settings().control_database() {
            self.servers.release();
        }
        let known = self.databases.get(&wanted.database).map(|known| known.fence.clone());
        let is_own = wanted.database == from;
        // The server never drops the session's own database, so its connections may stay open.
        if let Some(database) = known.filter(|_| wanted.is_copied || !is_own) {
            database.vacate(role, wanted.by_force, is_own).await;
        }
    }

    /// Forgets earlier readings of the catalog, because the name may now refer to another database.
    pub fn forget_database(&self, name: &str) {
        if let Some(database) = self.databases.get(name) {
            database.fence.end_vacating();
            database.forget_catalog();
        }
    }
}
