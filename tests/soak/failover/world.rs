//! The servers, the proxies and the writers.

use super::LOST;
use crate::support::cluster::{Cluster, Replication};
use crate::support::fenced::init;
use crate::support::postgres::SUPERUSER;
use crate::support::{DEADLINE, Proxy, ProxyOptions, wait_until};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::sleep;
use tokio_postgres::{Config, Error, NoTls, SimpleQueryMessage};

pub const WRITERS: i32 = 30;
const PROXIES: usize = 3;
/// Commits of a session. The next session has a higher token and uses another proxy.
const COMMITS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

pub const SCHEMA: &str =
    "CREATE TABLE entries (writer int, token bigint, number bigint, server int DEFAULT inet_server_port())";
pub const POLICIES: &str =
    "version: 1\nresources:\n  - name: writer/{writer}\n    tables: [{name: public.entries, key: writer}]\n";

pub struct World {
    // Before the servers: fields are dropped in this order.
    writers: Writers,
    pub proxies: Vec<Proxy>,
    pub cluster: Cluster,
}

/// Leaders that write continuously, each to its own resource.
pub struct Writers {
    runtime: Runtime,
    journal: Arc<Journal>,
}

/// An acknowledged write.
#[derive(Clone)]
pub struct Committed {
    pub writer: i32,
    pub number: i64,
    /// The port of its server.
    pub server: u16,
    pub at: Instant,
}

#[derive(Default)]
struct Journal {
    committed: Mutex<Vec<Committed>>,
    /// Number of errors by their kind.
    errors: Mutex<BTreeMap<String, usize>>,
}

impl World {
    pub fn start() -> Self {
        let world = Self::without_writers();
        world.writers.start(&world.proxies);
        world
    }

    pub fn without_writers() -> Self {
        let cluster = Cluster::start(1, Replication::Synchronous, |primary| {
            init(primary, "postgres");
            primary.sql(SCHEMA);
        });
        let options = ProxyOptions::default()
            .policies(POLICIES)
            .upstream(&format!("postgres://{}?target_session_attrs=primary", cluster.hosts()))
            .control(&format!("postgres://{SUPERUSER}@{}/postgres?target_session_attrs=primary", cluster.hosts()))
            .arguments(&["--connect-wait", "10s"]);
        let proxies = (0..PROXIES).map(|_| Proxy::start_with(&cluster[0], &options)).collect();
        Self { writers: Writers::new(), proxies, cluster }
    }

    pub fn ports(&self) -> Vec<u16> {
        ports(&self.proxies)
    }

    pub fn committed(&self) -> Vec<Committed> {
        self.writers.committed()
    }

    pub fn errors(&self) -> BTreeMap<String, usize> {
        self.writers.errors()
    }

    /// Waits until each writer has that many commits on the server.
    pub fn wait_for_all_writers(&self, node: usize, commits: usize) {
        self.writers.wait_for_all(self.cluster[node].port(), commits);
    }
}

fn ports(proxies: &[Proxy]) -> Vec<u16> {
    proxies.iter().map(|proxy| proxy.address().host_and_port().1.parse().unwrap()).collect()
}

impl Writers {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, journal: Arc::default() }
    }

    /// From now on, they write through the proxies.
    pub fn start(&self, proxies: &[Proxy]) {
        for writer in 0..WRITERS {
            self.runtime.spawn(write(writer, ports(proxies), self.journal.clone()));
        }
    }

    pub fn committed(&self) -> Vec<Committed> {
        self.journal.committed.lock().unwrap().clone()
    }

    pub fn errors(&self) -> BTreeMap<String, usize> {
        self.journal.errors.lock().unwrap().clone()
    }

    /// Waits until each writer has that many commits on the server with this port.
    pub fn wait_for_all(&self, port: u16, commits: usize) {
        wait_until(format!("all writers commit on the server of port {port}"), DEADLINE, || {
            let mut counts = vec![0; WRITERS as usize];
            let committed = self.committed();
            committed.iter().filter(|row| row.server == port).for_each(|row| counts[row.writer as usize] += 1);
            counts.iter().all(|count| *count >= commits)
        });
    }
}

/// A leader of its own resource. Never repeats a write whose outcome is unknown.
async fn write(writer: i32, ports: Vec<u16>, journal: Arc<Journal>) {
    let (mut token, mut number) = (0, 0);
    loop {
        token += 1;
        let port = ports[(writer as usize + token) % ports.len()];
        if let Err(error) = write_session(writer, token, &mut number, port, &journal).await {
            *journal.errors.lock().unwrap().entry(kind(&error)).or_default() += 1;
            sleep(PAUSE).await;
        }
    }
}

/// The SQLSTATE. An error of the fence also has its message, because LF006 has many reasons.
fn kind(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) if error.code().code().starts_with("LF") => format!("{}: {}", error.code().code(), error.message()),
        Some(error) => error.code().code().to_owned(),
        None => LOST.to_owned(),
    }
}

async fn write_session(writer: i32, token: usize, number: &mut i64, port: u16, journal: &Journal) -> Result<(), Error> {
    let mut config = Config::new();
    config.host("127.0.0.1").port(port).user(SUPERUSER).dbname("postgres").options(format!("-c lease.fence={token}"));
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    for _ in 0..COMMITS {
        *number += 1;
        let answer = client.simple_query(&insert(writer, token, *number)).await?;
        let server = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        let row = Committed { writer, number: *number, server: server.expect("a port"), at: Instant::now() };
        journal.committed.lock().unwrap().push(row);
        sleep(PAUSE).await;
    }
    *number += 1;
    client.batch_execute(&format!("BEGIN; {}", insert(writer, token, *number))).await?;
    // The next session begins while this transaction is open. It must not commit after that session's first commit.
    tokio::spawn(async move {
        sleep(3 * PAUSE).await;
        client.batch_execute("COMMIT").await
    });
    Ok(())
}

fn insert(writer: i32, token: usize, number: i64) -> String {
    format!("INSERT INTO entries (writer, token, number) VALUES ({writer}, {token}, {number}) RETURNING server")
}
