//! One PostgreSQL server for all concurrent tests of this module, with a database for each test.

use crate::support::identity::{identity, one};
use crate::support::{Address, Options, Postgres, Release, until};
use fencegate::metrics::Metrics;
use fencegate_fence::FenceMetrics;
use fencegate_fence::background::Background;
use fencegate_fence::session::{Activity, Identity, SessionFence, Token};
use fencegate_fence::{Database, FenceError, Registration, init};
use fencegate_policy::{FencedTable, Mode, OnMissing, QualifiedName, Resource};
use fencegate_postgres::ServerTls;
use fencegate_postgres::tls::{Connector, ControlConfig};
use fencegate_statement::Operation;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tokio_postgres::{Client, Config, NoTls};

static NUMBER: AtomicU32 = AtomicU32::new(0);
/// The running servers, by release.
static RUNNING: [Mutex<Weak<Server>>; 2] = [const { Mutex::new(Weak::new()) }; 2];

/// Converts the schemas to those of version 5.
pub const VERSION_5: &str = "DROP TYPE IF EXISTS fencegate.epoch; DROP FUNCTION IF EXISTS fencegate.leased_resources; \
    DO $$ DECLARE name text; BEGIN \
      FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'fencegate_state'::regnamespace AND relkind IN ('r', 'S') LOOP \
        EXECUTE format('ALTER TABLE fencegate_state.%I SET SCHEMA fencegate', name); \
      END LOOP; \
    END $$; \
    DROP SCHEMA fencegate_state; COMMENT ON SCHEMA fencegate IS 'fencegate schema version 5'";

/// Reachable only through its Unix socket.
pub struct Server(Postgres);

impl Server {
    fn shared(release: Release) -> Arc<Server> {
        let mut running =
            RUNNING[usize::from(release == Release::Eighteen)].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        running.upgrade().unwrap_or_else(|| {
            let options = Options::default().release(release);
            let options = options.setting("max_connections", "300").setting("track_commit_timestamp", "on");
            let server = Arc::new(Server(Postgres::start(options)));
            *running = Arc::downgrade(&server);
            server
        })
    }

    pub fn socket(&self) -> PathBuf {
        let Address::Unix(socket) = self.0.socket() else { unreachable!() };
        socket
    }

    pub fn config(&self, database: &str, user: &str) -> Config {
        let mut config = Config::new();
        config.host_path(self.0.socket_dir()).port(self.0.port()).dbname(database).user(user);
        config
    }
}

/// A test's own database, with the schema, the table `public.ticks` and roles of its own.
pub struct World {
    pub server: Arc<Server>,
    pub database: String,
    /// A superuser's connection.
    pub root: Client,
    pub resource: Arc<Resource>,
}

impl World {
    pub async fn new() -> World {
        World::new_on(Release::Installed).await
    }

    pub async fn new_on(release: Release) -> World {
        let world = World::bare_on(release).await;
        let report = init(&world.control_config("postgres"), Some(&world.control())).await.unwrap();
        assert!(report.to_run.is_empty());
        world
    }

    /// A world without the schema.
    pub async fn bare() -> World {
        World::bare_on(Release::Installed).await
    }

    async fn bare_on(release: Release) -> World {
        let server = Server::shared(release);
        let database = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&server.config("postgres", "postgres")).await;
        for statement in ["CREATE DATABASE %", "CREATE ROLE %_control LOGIN", "CREATE ROLE %_app LOGIN"] {
            admin.batch_execute(&statement.replace('%', &database)).await.unwrap();
        }
        let root = connect(&server.config(&database, "postgres")).await;
        root.batch_execute("CREATE TABLE ticks (n int, token bigint); GRANT ALL ON ticks TO PUBLIC").await.unwrap();
        World { server, database, root, resource: resource("scheduler", "a") }
    }

    pub fn control(&self) -> String {
        format!("{}_control", self.database)
    }

    pub fn config(&self, user: &str) -> Config {
        self.server.config(&self.database, user)
    }

    pub fn control_config(&self, user: &str) -> ControlConfig {
        control_config(self.config(user))
    }

    pub fn proxy(&self, id: &str) -> Arc<Database> {
        let control = self.control_config(&self.control());
        let proxy = Database::new(
            self.database.clone(),
            control,
            id,
            fencegate_fence::Authority::new(Background::current()),
            metrics(),
            Background::current(),
        );
        proxy.put_in_force(std::slice::from_ref(&self.resource));
        proxy
    }

    pub async fn session(&self, proxy: &Arc<Database>) -> Session {
        self.session_as(proxy, &format!("{}_app", self.database)).await
    }

    pub async fn session_as(&self, proxy: &Arc<Database>, user: &str) -> Session {
        let client = connect(&self.config(user)).await;
        let identity = identity(&client).await;
        Session::new(proxy, client, identity)
    }

    /// The first column of the first row, as a superuser.
    pub async fn ask(&self, query: &str) -> String {
        one(&self.root, query).await[0].clone()
    }

    pub async fn run(&self, statements: &str) {
        self.root.batch_execute(statements).await.unwrap();
    }

    /// Publishes the token without a drain, which waits only 100 ms for the proxies of old sessions. A busy machine may
    /// need more.
    pub async fn publish(&self, resource: &str, token: Token) {
        let epoch = format!("fencegate_state.epoch SET token = {token}, drained = false WHERE resource = '{resource}'");
        self.run(&format!("UPDATE {epoch}; SELECT pg_notify('fencegate', '{resource}')")).await;
    }

    /// Returns when a process of the database waits for an advisory lock.
    pub async fn is_awaited(&self) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        until("a process waits for an advisory lock", async || self.ask(waiting).await != "0").await;
    }

    /// The epoch row as text: (generation,token,drained).
    pub async fn epoch(&self) -> String {
        self.ask("SELECT coalesce((SELECT (generation, token, drained)::text FROM fencegate_state.epoch), 'none')")
            .await
    }

    /// Number of admissions of the process.
    pub async fn admissions(&self, session: &Session) -> String {
        self.ask(&format!("SELECT count(*) FROM fencegate_state.admission WHERE pid = {}", session.pid())).await
    }

    pub async fn lives(&self, session: &Session) -> bool {
        self.ask(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", session.pid())).await == "1"
    }
}

/// A server process, with the fence's part of a relay.
pub struct Session {
    pub client: Client,
    pub fence: Arc<SessionFence>,
    pub proxy: Arc<Database>,
    pub registration: Option<Registration>,
}

impl Session {
    pub fn new(proxy: &Arc<Database>, client: Client, identity: Identity) -> Session {
        let fence = Arc::new(SessionFence::new(Ok(identity)));
        let registration = Some(proxy.register(fence.clone()));
        Session { client, fence, proxy: proxy.clone(), registration }
    }

    pub fn pid(&self) -> i32 {
        self.fence.identity.as_ref().unwrap().pid
    }

    pub async fn admit(&self, resource: &Arc<Resource>, token: Token) -> Result<(), FenceError> {
        self.proxy.admit(&self.fence, resource, token).await
    }

    /// Begins a transaction, writes, and leaves the transaction open.
    pub async fn write(&self, token: Token) {
        assert!(self.fence.begin_write([("scheduler", token)]));
        self.client.batch_execute("BEGIN; INSERT INTO ticks VALUES (1)").await.unwrap();
        self.fence.set_activity(Activity::Waiting);
    }
}

pub fn resource(name: &str, fingerprint: &str) -> Arc<Resource> {
    Arc::new(Resource {
        name: name.into(),
        issuer: None,
        keyed: None,
        family: None,
        tables: vec![FencedTable {
            name: QualifiedName { schema: "public".into(), name: "ticks".into() },
            operations: vec![Operation::Insert],
            database: None,
            key: None,
        }],
        functions: Vec::new(),
        on_missing: OnMissing::Reject,
        mode: Mode::Enforce,
        fingerprint: fingerprint.into(),
    })
}

pub fn control_config(config: Config) -> ControlConfig {
    ControlConfig::new(config, Arc::new(Connector::new(ServerTls::default()).unwrap()))
}

pub async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Metrics that are not exported.
pub fn metrics() -> FenceMetrics {
    Metrics::new().unwrap().fence
}
