//! One PostgreSQL for all tests of this file that run at the same time, with a database for each.

use fencegate::config::ServerTls;
use fencegate::fence::session::{Activity, Identity, SessionFence, Token};
use fencegate::fence::{Database, Refusal, Registration, init};
use fencegate::metrics::Metrics;
use fencegate::policy::{FencedTable, Mode, OnMissing, QualifiedName, Resource};
use fencegate::statement::Operation;
use fencegate::tls::{Connector, ControlConfig};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

const BIN: &str = "/usr/lib/postgresql/15/bin";
static NUMBER: AtomicU32 = AtomicU32::new(0);
static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());

/// A server in a temporary directory, reached by its Unix socket only. Stopped and deleted on drop.
pub struct Server {
    directory: PathBuf,
    process: Child,
}

impl Server {
    async fn shared() -> Arc<Server> {
        let server = {
            let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            running.upgrade().unwrap_or_else(|| {
                let server = Arc::new(Server::start());
                *running = Arc::downgrade(&server);
                server
            })
        };
        for _ in 0..200 {
            if server.config("postgres", "postgres").connect(NoTls).await.is_ok() {
                return server;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server does not start");
    }

    fn start() -> Server {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("fencegate-fence-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
        if root {
            assert!(Command::new("chown").arg("postgres").arg(&directory).status().unwrap().success());
        }
        let program = |name: &str| {
            let path = Path::new(BIN).join(name);
            let mut command = if root {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
                command.arg(path);
                command
            } else {
                Command::new(path)
            };
            command.current_dir(&directory).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let data = directory.join("data");
        let initialised = program("initdb").args(["-N", "-A", "trust", "-U", "postgres", "-D"]).arg(&data).status();
        assert!(initialised.unwrap().success());
        let mut command = program("postgres");
        command.arg("-D").arg(&data).arg("-k").arg(&directory).args(["-h", ""]);
        for setting in ["fsync=off", "max_connections=300", "max_prepared_transactions=5", "track_commit_timestamp=on"]
        {
            command.args(["-c", setting]);
        }
        let process = command.spawn().unwrap();
        Server { directory, process }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join(".s.PGSQL.5432")
    }

    pub fn config(&self, database: &str, user: &str) -> Config {
        let mut config = Config::new();
        config.host_path(&self.directory).dbname(database).user(user);
        config
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A test's own database, with the schema, the table `public.ticks` and roles of its own.
pub struct World {
    pub server: Arc<Server>,
    pub database: String,
    /// Superuser.
    pub root: Client,
    pub resource: Arc<Resource>,
}

impl World {
    pub async fn new() -> World {
        let world = World::bare().await;
        let report = init(&world.control_config("postgres"), Some(&world.control())).await.unwrap();
        assert!(report.to_run.is_empty());
        world
    }

    /// Without the schema.
    pub async fn bare() -> World {
        let server = Server::shared().await;
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
        let proxy = Database::new(self.database.clone(), control, id, None, metrics());
        proxy.put_in_force(std::slice::from_ref(&self.resource));
        proxy
    }

    pub async fn session(&self, proxy: &Arc<Database>) -> Session {
        self.session_as(proxy, &format!("{}_app", self.database)).await
    }

    pub async fn session_as(&self, proxy: &Arc<Database>, user: &str) -> Session {
        let client = connect(&self.config(user)).await;
        let identity = self.identity(&client).await;
        Session::new(proxy, client, identity)
    }

    pub async fn identity(&self, client: &Client) -> Identity {
        let row = one(
            client,
            "SELECT pg_backend_pid(), (SELECT extract(epoch FROM backend_start) FROM \
             pg_stat_get_activity(pg_backend_pid())), (SELECT system_identifier FROM pg_control_system()), \
             extract(epoch FROM pg_postmaster_start_time())",
        )
        .await;
        Identity {
            pid: row[0].parse().unwrap(),
            backend_start: row[1].clone(),
            system_identifier: row[2].clone(),
            postmaster_start: row[3].clone(),
        }
    }

    /// The first column of the first row, as superuser.
    pub async fn ask(&self, query: &str) -> String {
        one(&self.root, query).await[0].clone()
    }

    pub async fn run(&self, statements: &str) {
        self.root.batch_execute(statements).await.unwrap();
    }

    /// Returns when a process of the database waits for an advisory lock.
    pub async fn somebody_waits(&self) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        while self.ask(waiting).await == "0" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The epoch row as text: (generation,token,drained).
    pub async fn epoch(&self) -> String {
        self.ask("SELECT coalesce((SELECT (generation, token, drained)::text FROM fencegate.epoch), 'none')").await
    }

    /// How many admissions the process has.
    pub async fn admissions(&self, session: &Session) -> String {
        self.ask(&format!("SELECT count(*) FROM fencegate.admission WHERE pid = {}", session.pid())).await
    }

    pub async fn lives(&self, session: &Session) -> bool {
        self.ask(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", session.pid())).await == "1"
    }
}

/// A server process with the fence half of a relay.
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

    pub async fn admit(&self, resource: &Arc<Resource>, token: Token) -> Result<(), Refusal> {
        self.proxy.admit(&self.fence, resource, token).await
    }

    /// Begins a transaction, writes, and stays in it.
    pub async fn write(&self, token: Token) {
        assert!(self.fence.begin_write([("scheduler", token)]));
        self.client.batch_execute("BEGIN; INSERT INTO ticks VALUES (1)").await.unwrap();
        self.fence.set_activity(Activity::Waiting);
    }
}

pub fn resource(name: &str, fingerprint: &str) -> Arc<Resource> {
    Arc::new(Resource {
        name: name.into(),
        election: None,
        keyed: None,
        family: None,
        tables: vec![FencedTable {
            name: QualifiedName { schema: "public".into(), name: "ticks".into() },
            operations: vec![Operation::Insert],
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

pub async fn one(client: &Client, query: &str) -> Vec<String> {
    let messages = client.simple_query(query).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.unwrap_or_else(|| panic!("no row: {query}"));
    (0..row.len()).map(|index| row.get(index).unwrap_or_default().to_owned()).collect()
}

/// Counters that nobody reads.
pub fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().unwrap())
}
