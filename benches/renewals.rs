//! Cost of renewing many leases: renewals per second and the coordinator's CPU time, by number of elections in one
//! process, with one lease per election and with one lease for all (a session).
//!
//! Usage: target/release/renewals [SECONDS [ELECTIONS…]]   (default: 20 s each for 10, 100, 1000 and 10000)
//!
//! Prints a table. The TTL is 30 s: without a session, each lease is renewed every 10 s.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::stage::{Stage, program};
use fencegate_leader::coordinator::Share;
use fencegate_leader::etcd::{Etcd, EtcdSettings};
use fencegate_leader::{Election, Leadership, Leases};
use procfs::process::{Process, all_processes};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_postgres::{Client, Config, NoTls};

const TTL: Duration = Duration::from_secs(30);
/// Number of concurrent campaigns.
const AT_ONCE: usize = 32;

/// A row of the result.
struct Line {
    coordinator: &'static str,
    lease: &'static str,
    elections: usize,
    /// Per second, as counted by the coordinator.
    renewals: f64,
    /// In percent of one processor.
    processor: f64,
}

#[tokio::main]
async fn main() {
    let arguments = std::env::args().skip(1);
    let numbers: Vec<u64> = arguments.map(|text| text.parse().expect("a number")).collect();
    let seconds = numbers.first().copied().unwrap_or(20);
    let counts: Vec<usize> = numbers.iter().skip(1).map(|&number| number.try_into().unwrap()).collect();
    let counts = if counts.is_empty() { vec![10, 100, 1000, 10_000] } else { counts };
    println!("{:>10} {:>8} {:>10} {:>12} {:>12}", "", "lease", "elections", "renewals/s", "processor");
    for &count in &counts {
        for kind in ["each", "shared"] {
            for coordinator in ["etcd", "PostgreSQL"] {
                // Start new servers for each measurement, so that leftovers do not affect the next one.
                let stage = Stage::start(&program().unwrap(), "version: 1\n").await.unwrap();
                let Some(line) = measure(&stage, coordinator, kind, count, seconds).await else {
                    println!("{coordinator:>10} {kind:>8} {count:>10}  more than can be won and kept");
                    continue;
                };
                let Line { coordinator, lease, elections, renewals, processor } = &line;
                println!("{coordinator:>10} {lease:>8} {elections:>10} {renewals:>12.1} {processor:>10.1} %");
            }
        }
    }
}

async fn measure(
    stage: &Stage,
    coordinator: &'static str,
    lease: &'static str,
    elections: usize,
    seconds: u64,
) -> Option<Line> {
    let won = if coordinator == "etcd" {
        let settings = EtcdSettings { members: vec![stage.etcd().to_owned()], ..EtcdSettings::default() };
        win(Etcd::new(&settings).unwrap(), lease, elections).await?
    } else {
        let database = format!("host={} port=5432 user=postgres dbname=app", stage.folder().display());
        win(Leases::new((database.parse::<Config>().unwrap(), NoTls)), lease, elections).await?
    };
    // Wait until each lease has been renewed once, so that the campaigns are not measured.
    let states: Vec<_> = won.iter().map(Leadership::subscribe).collect();
    for mut state in states {
        state.changed().await.ok()?;
    }
    let before = (count(stage, coordinator).await, processor_time(stage, coordinator));
    sleep(Duration::from_secs(seconds)).await;
    let after = (count(stage, coordinator).await, processor_time(stage, coordinator));
    if won.iter().any(|leadership| leadership.check().is_err()) {
        return None;
    }
    let a_second = |count: f64| count / seconds as f64;
    let (renewals, processor) = (a_second(after.0 - before.0), 100.0 * a_second(after.1 - before.1));
    Some(Line { coordinator, lease, elections, renewals, processor })
}

async fn win<C: Share>(coordinator: Arc<C>, lease: &str, count: usize) -> Option<Vec<Leadership>> {
    let election = || Election::on(coordinator.clone()).ttl(TTL);
    if lease == "shared" {
        let session = election().session().unwrap();
        win_all((0..count).map(|number| session.election(format!("e{number}")).unwrap())).await
    } else {
        win_all((0..count).map(|number| election().name(format!("e{number}")).build().unwrap())).await
    }
}

/// Wins all elections; None if there are too many.
async fn win_all(elections: impl Iterator<Item = Election>) -> Option<Vec<Leadership>> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let campaign = |election: Election| {
        let permits = permits.clone();
        tokio::spawn(async move {
            let _permit = permits.acquire().await;
            election.campaign().await.ok()
        })
    };
    let mut won = Vec::new();
    for campaign in elections.map(campaign).collect::<Vec<_>>() {
        won.push(campaign.await.unwrap()?);
    }
    Some(won)
}

/// Keep-alives that etcd has answered, or leases that PostgreSQL has renewed, one or many per statement.
async fn count(stage: &Stage, coordinator: &str) -> f64 {
    if coordinator == "etcd" {
        let page = http_get(stage.etcd().trim_start_matches("http://")).await;
        let count = page.lines().find_map(|line| line.strip_prefix("etcd_debugging_lease_renewed_total "));
        return count.unwrap().trim().parse().unwrap();
    }
    let client = connect(&format!("host={} port=5432 user=postgres dbname=app", stage.folder().display())).await;
    let query = "SELECT sum(n_tup_upd)::float8 FROM pg_stat_all_tables WHERE relname = 'lease'";
    client.query_one(query, &[]).await.unwrap().get(0)
}

async fn http_get(address: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

/// CPU time in seconds of all current server processes and their children.
fn processor_time(stage: &Stage, coordinator: &str) -> f64 {
    let folder = stage.folder().display().to_string();
    let program = if coordinator == "etcd" { "etcd" } else { "postgres" };
    let processes: Vec<Process> = all_processes().unwrap().flatten().collect();
    let is_server = |process: &&Process| {
        let line = process.cmdline().unwrap_or_default();
        line.first().is_some_and(|first| first.ends_with(program)) && line.iter().any(|word| word.contains(&folder))
    };
    let servers: Vec<i32> = processes.iter().filter(is_server).map(|process| process.pid).collect();
    let stats = processes.iter().filter_map(|process| process.stat().ok());
    let own = stats.filter(|stat| servers.contains(&stat.pid) || servers.contains(&stat.ppid));
    own.map(|stat| stat.utime + stat.stime).sum::<u64>() as f64 / procfs::ticks_per_second() as f64
}

async fn connect(database: &str) -> Client {
    let (client, connection) = database.parse::<Config>().unwrap().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
