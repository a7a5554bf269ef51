//! Duration of a takeover, from the leader's end to the follower's first admitted write, after a crash (kill -9), a
//! stall (SIGSTOP) and a resignation, by TTL of the lease.
//!
//! Usage: target/release/failover [[etcd|postgres] RUNS [TTL…]]   (default: etcd, 20 runs with 2, 5 and 10 s)
//!
//! The leaders are processes of this program that use the library. The server records the time of each write in its
//! row. All clocks are this machine's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::stage::{Stage, program};
use fencegate_leader::etcd::{Etcd, EtcdSettings, candidates};
use fencegate_leader::{Election, ElectionBuilder, Leases, Patience};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Config, NoTls};

/// Number of concurrent elections. Each has its own resource and table.
const LANES: usize = 5;
/// A run that takes longer fails.
const LIMIT: Duration = Duration::from_secs(120);

/// The servers, and whether leases in PostgreSQL or elections in etcd determine the leader.
struct Servers {
    stage: Stage,
    by_leases: bool,
}

/// Ways in which a leader ends.
#[derive(Clone, Copy)]
enum End {
    Crash,
    Stall,
    Resign,
}

impl End {
    const ALL: [(End, &str, Signal); 3] = [
        (End::Crash, "crash", Signal::SIGKILL),
        (End::Stall, "stall", Signal::SIGSTOP),
        (End::Resign, "resign", Signal::SIGTERM),
    ];
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "leader") {
        set_pdeathsig(Signal::SIGKILL).unwrap();
        let [_, coordinator, lane, ttl, database] = arguments.as_slice() else { panic!("a leader has four arguments") };
        return match coordinator.starts_with("http://") {
            true => lead(Election::on(etcd(coordinator)), lane, ttl, database).await,
            false => {
                let mut config: Config = coordinator.parse().unwrap();
                config.application_name(format!("lane{lane}"));
                lead(Election::on(Leases::new((config, NoTls))), lane, ttl, database).await
            }
        };
    }
    let is_named = |name: &str| arguments.first().is_some_and(|first| first == name);
    let by_leases = is_named("postgres");
    let numbers = &arguments[usize::from(by_leases || is_named("etcd"))..];
    let mut numbers = numbers.iter().map(|text| text.parse::<u64>().expect("a number"));
    let runs = numbers.next().unwrap_or(20);
    let ttls: Vec<u64> = numbers.collect();
    let ttls = if ttls.is_empty() { vec![2, 5, 10] } else { ttls };
    let stage = Stage::start(&program().unwrap(), &policies(by_leases)).await.unwrap();
    let witness = Arc::new(connect(&database(&stage, 5432)).await);
    for lane in 0..LANES {
        witness.batch_execute(&format!("CREATE TABLE lane{lane} (token bigint, at timestamptz)")).await.unwrap();
    }
    println!("{runs} runs each, in seconds from the leader's end to its follower's first admitted write");
    println!("{:>5} {:>8} {:>8} {:>8} {:>8} {:>8}", "TTL", "end", "least", "median", "p90", "most");
    let stage = Arc::new(Servers { stage, by_leases });
    for ttl in ttls {
        for (end, name, _) in End::ALL {
            let mut times = Vec::new();
            let lanes = (0..LANES).map(|lane| {
                let count = (0..runs).filter(|run| *run as usize % LANES == lane).count();
                tokio::spawn(run_lane(stage.clone(), witness.clone(), lane, count, ttl, end))
            });
            for lane in lanes.collect::<Vec<_>>() {
                times.extend(lane.await.unwrap());
            }
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
            println!("{ttl:>5} {name:>8} {:8.3} {:8.3} {:8.3} {:8.3}", at(0.0), at(0.5), at(0.9), at(1.0));
        }
    }
}

async fn run_lane(stage: Arc<Servers>, witness: Arc<Client>, lane: usize, runs: usize, ttl: u64, end: End) -> Vec<f64> {
    let mut times = Vec::new();
    for _ in 0..runs {
        witness.batch_execute(&format!("TRUNCATE lane{lane}")).await.unwrap();
        let old = start(&stage, lane, ttl);
        until(&witness, lane, 1).await;
        let _new = start(&stage, lane, ttl);
        until_candidates(&stage, &witness, lane).await;
        // Vary the time since the last renewal.
        sleep(Duration::from_millis(ttl * 1000 / 3 * (times.len() as u64 % 5) / 5)).await;
        let (_, _, how) = End::ALL[end as usize];
        let ended = SystemTime::now();
        kill(Pid::from_raw(old.id().unwrap().try_into().unwrap()), how).unwrap();
        let first = until(&witness, lane, 2).await;
        times.push(first.duration_since(ended).unwrap_or_default().as_secs_f64());
        drop((old, _new));
        until_empty(&stage, &witness, lane).await;
    }
    times
}

/// Runs a candidate. As leader, it writes until SIGTERM.
async fn lead(election: ElectionBuilder, lane: &str, ttl: &str, database: &str) {
    let ttl = Duration::from_secs(ttl.parse().unwrap());
    let election = election.name(format!("/lane{lane}")).holder("candidate").ttl(ttl).build().unwrap();
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let leadership = election.campaign().await.unwrap();
    let client = leadership.connect(&database.parse().unwrap(), NoTls).await.unwrap();
    let write = format!("INSERT INTO lane{lane} VALUES ({}, clock_timestamp())", leadership.token());
    client.batch_execute(&write).await.unwrap();
    terminate.recv().await;
    leadership.resign().await.unwrap();
}

fn start(Servers { stage, by_leases }: &Servers, lane: usize, ttl: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let coordinator = if *by_leases { database(stage, 5432) } else { stage.etcd().to_owned() };
    command.args(["leader", &coordinator, &lane.to_string(), &ttl.to_string(), &database(stage, 6432)]);
    command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// Waits until this many leaders have written. Returns the time of the last one's first write.
async fn until(witness: &Client, lane: usize, leaders: usize) -> SystemTime {
    let query = format!("SELECT min(at) FROM lane{lane} GROUP BY token ORDER BY token");
    let start = Instant::now();
    loop {
        let rows = witness.query(&query, &[]).await.unwrap();
        if rows.len() >= leaders {
            return rows.last().unwrap().get(0);
        }
        assert!(start.elapsed() < LIMIT, "timed out waiting for a leader to write");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn until_candidates(stage: &Servers, witness: &Client, lane: usize) {
    wait(stage, witness, lane, |count| count == 2).await;
}

/// Waits until no candidate is left, so that the next run begins with a new election.
async fn until_empty(stage: &Servers, witness: &Client, lane: usize) {
    wait(stage, witness, lane, |count| count == 0).await;
}

async fn wait(Servers { stage, by_leases }: &Servers, witness: &Client, lane: usize, enough: impl Fn(usize) -> bool) {
    let (etcd, election) = (etcd(stage.etcd()), format!("/lane{lane}").parse().unwrap());
    let count = async || match by_leases {
        true => places(witness, lane).await,
        false => candidates(&etcd, &election, Patience::USUAL).await.unwrap().len(),
    };
    let start = Instant::now();
    while !enough(count().await) {
        assert!(start.elapsed() < LIMIT, "timed out waiting for candidates");
        sleep(Duration::from_millis(10)).await;
    }
}

/// With leases: the number of connected candidates, or 1 if only a running lease is left.
async fn places(witness: &Client, lane: usize) -> usize {
    let query = format!(
        "SELECT greatest((SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lane{lane}' AND query LIKE '%fencegate.%(%'), \
         (SELECT count(*) FROM fencegate.leader('/lane{lane}')))"
    );
    let count: i64 = witness.query_one(&query, &[]).await.unwrap().get(0);
    usize::try_from(count).unwrap()
}

fn etcd(url: &str) -> Arc<Etcd> {
    Etcd::new(&EtcdSettings { members: vec![url.to_owned()], ..EtcdSettings::default() }).unwrap()
}

fn policies(by_leases: bool) -> String {
    let election = |lane| if by_leases { String::new() } else { format!("    election: /lane{lane}\n") };
    let resource = |lane| format!("  - name: lane{lane}\n{}    tables: [public.lane{lane}]\n", election(lane));
    format!("version: 1\nresources:\n{}", (0..LANES).map(resource).collect::<String>())
}

fn database(stage: &Stage, port: u16) -> String {
    format!("host={} port={port} user=postgres dbname=app", stage.folder().display())
}

async fn connect(database: &str) -> Client {
    let config: Config = database.parse().unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
