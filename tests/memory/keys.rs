//! Many keys do not increase the proxy's memory: the state of each key is bounded. FENCEGATE_LENGTH=2500 tests a million
//! keys.

use crate::support::fenced::init;
use crate::support::identity::identity;
use crate::support::{Options, Postgres, length};
use fencegate::metrics::Metrics;
use fencegate_fence::background::Background;
use fencegate_fence::session::{Activity, FULL, SessionFence};
use fencegate_fence::{Database, Registration};
use fencegate_policy::{Resource, load};
use fencegate_postgres::ServerTls;
use fencegate_postgres::tls::{Connector, ControlConfig};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

const SESSIONS: usize = 4;

/// Maximum memory, in KiB: the epochs of 65,536 keys, and the admissions of the sessions.
const ALLOWED: i64 = 16 * 1024;

const POLICIES: &str =
    "version: 1\nresources:\n  - name: shard/{shard}\n    tables: [{name: public.shards, key: shard}]\n";

/// Runs in a separate process, because concurrent tests use memory too.
#[test]
fn many_keys_are_written_and_little_is_kept() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let ran = alone.args(["--exact", "keys::in_this_process", "--ignored", "--nocapture"]).output().unwrap();
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many_keys_are_written_and_little_is_kept runs it"]
async fn in_this_process() {
    let keys = usize::try_from(length(4_000, 40_000)).unwrap();
    let postgres = Postgres::start(Options::default());
    init(&postgres, "postgres");
    let family = family();
    // Nearly all keys already have an epoch, because creating epochs takes most of the time.
    let seeded = keys - 500;
    postgres.sql(&format!(
        "INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash) \
         SELECT 'shard/' || n, 7, true, 'other' FROM generate_series(0, {seeded} - 1) n"
    ));
    let config: Config = (postgres.control_url() + "postgres").parse().unwrap();
    let control = ControlConfig::new(config.clone(), Arc::new(Connector::new(ServerTls::default()).unwrap()));
    let database = Database::new(
        "postgres",
        control,
        "p1",
        fencegate_fence::Authority::new(Background::current()),
        Metrics::new().unwrap().fence,
        Background::current(),
    );
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(Session::open(&database, &config).await);
    }
    let began = Instant::now();
    database.apply_policy(std::slice::from_ref(&family)).await.unwrap();
    println!("policies recorded in {seeded} epochs: {:?}", began.elapsed());
    let began = Instant::now();
    database.apply_policy(std::slice::from_ref(&family)).await.unwrap();
    println!("policies found recorded: {:?}", began.elapsed());

    // The first keys allocate memory that all later ones share.
    sessions[0].write(&database, &family, 0..100).await;
    let (before, began) = (memory(), Instant::now());
    let writers = sessions.into_iter().enumerate().map(|(number, session)| {
        let (database, family) = (database.clone(), family.clone());
        tokio::spawn(async move {
            session.write(&database, &family, (number..keys).step_by(SESSIONS)).await;
            session
        })
    });
    let mut written = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        written.push(writer.await.unwrap());
    }
    let grown = memory() - before;
    println!("{keys} keys in {:?}; memory {before} KiB, grown by {grown} KiB", began.elapsed());
    let rows: usize = postgres.value("SELECT count(*) FROM fencegate_state.admission").parse().unwrap();
    println!("rows of admissions: {rows}");
    assert!(rows <= SESSIONS * FULL, "{rows} admissions");
    assert!(grown < ALLOWED, "grown by {grown} KiB");
    assert_eq!(postgres.value("SELECT count(*) FROM fencegate_state.epoch"), keys.to_string());

    let began = Instant::now();
    let fences = database.fences(std::slice::from_ref(&family)).await.unwrap();
    println!("fences shown: {:?}", began.elapsed());
    assert_eq!((fences.of_keys.len(), fences.left_out), (1000, keys - 1000));
}

struct Session {
    fence: Arc<SessionFence>,
    _client: Client,
    _registration: Registration,
}

impl Session {
    async fn open(database: &Arc<Database>, config: &Config) -> Session {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let fence = Arc::new(SessionFence::new(Ok(identity(&client).await)));
        Session { _registration: database.register(fence.clone()), fence, _client: client }
    }

    /// The steps of a relay for a write to each key, as far as the fence is concerned.
    async fn write(&self, database: &Arc<Database>, family: &Resource, keys: impl Iterator<Item = usize>) {
        for key in keys {
            let resource = family.of_key(&key.to_string()).unwrap();
            database.admit(&self.fence, &resource, 7).await.unwrap();
            assert!(self.fence.begin_write([(resource.name.as_str(), 7)]));
            self.fence.set_activity(Activity::Idle);
            if key % 100_000 == 0 {
                println!("key {key}: {} KiB", memory());
            }
        }
    }
}

fn family() -> Arc<Resource> {
    let folder = crate::support::guardian::Folder::new("keys");
    std::fs::write(folder.join("keys.yaml"), POLICIES).unwrap();
    load(folder.path()).unwrap().resources[0].clone()
}

/// The current memory of this process, in KiB.
fn memory() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
