//! What leases in PostgreSQL do: with many candidates in one election, when the server crashes, and as locks of jobs.
//!
//! Usage: cargo bench --bench leases

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::leader::{Election, Leases, Timings};
use fencegate::stage::Stage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

const CANDIDATES: usize = 90;
/// Sessions that claim jobs at the same time.
const WORKERS: usize = 8;
const CLAIMING: Duration = Duration::from_secs(10);
const RESTARTS: usize = 5;

type Elections = Election<Leases<(Config, NoTls)>>;

#[tokio::main]
async fn main() {
    let stage = Stage::start(Path::new(env!("CARGO_BIN_EXE_fencegate")), "version: 1\n").await.unwrap();
    let database = format!("host={} port=5432 user=postgres dbname=app", stage.folder().display());
    contend(&database).await;
    restart(&database).await;
    claim(&database).await;
}

/// Each candidate has a connection of its own, as in processes of their own, and resigns as soon as it leads.
async fn contend(database: &str) {
    let (sender, mut won) = mpsc::channel(CANDIDATES);
    for number in 0..CANDIDATES {
        let (election, sender) = (election(database, "contended", number), sender.clone());
        tokio::spawn(async move { sender.send(election.campaign().await.unwrap()).await.unwrap() });
    }
    let mut times = Vec::new();
    let mut leadership = won.recv().await.unwrap();
    for _ in 1..CANDIDATES {
        let resigned = Instant::now();
        leadership.resign().await.unwrap();
        leadership = won.recv().await.unwrap();
        times.push(resigned.elapsed());
    }
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{CANDIDATES} candidates, from one's resignation to the next's lead: median {median:.1?}, most {most:.1?}"
    );
}

/// Every server process of the database ends and the server recovers, as after the crash of one of them.
async fn restart(database: &str) {
    let leadership = election(database, "restarted", 0).campaign().await.unwrap();
    let mut times = Vec::new();
    for _ in 0..RESTARTS {
        let victim = connect(database).await;
        let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let before = leadership.deadline();
        let crashed = Instant::now();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        tokio::select! {
            _ = leadership.renewed(before) => times.push(crashed.elapsed()),
            loss = leadership.lost() => println!("lost by the crash of the server: {loss}"),
        }
    }
    times.sort();
    println!(
        "{RESTARTS} crashes of the server, TTL 10 s: {} outlived; the next renewal at most {:.1?} after it",
        times.len(),
        times.last().unwrap()
    );
    leadership.resign().await.unwrap();
}

/// As a queue would: a lease for each job, taken, and given back when it is done.
async fn claim(database: &str) {
    let start = Instant::now();
    let worker = |number: usize| {
        let database = database.to_owned();
        tokio::spawn(async move {
            let client = connect(&database).await;
            let acquire = "SELECT token FROM fencegate.acquire($1, 'worker', '30 s')";
            let acquire = client.prepare(acquire).await.unwrap();
            let release = client.prepare("SELECT fencegate.release($1, $2)").await.unwrap();
            let mut jobs = 0;
            while start.elapsed() < CLAIMING {
                let job = format!("job/{number}/{jobs}");
                let token: i64 = client.query_one(&acquire, &[&job]).await.unwrap().get(0);
                client.query_one(&release, &[&job, &token]).await.unwrap();
                jobs += 1;
            }
            jobs
        })
    };
    let mut jobs = 0;
    for worker in (0..WORKERS).map(worker).collect::<Vec<_>>() {
        jobs += worker.await.unwrap();
    }
    let a_second = f64::from(jobs) / start.elapsed().as_secs_f64();
    println!("{WORKERS} sessions: {a_second:.0} jobs a second, each with a lease that is acquired and released");
}

fn election(database: &str, name: &str, number: usize) -> Elections {
    let config: Config = database.parse().unwrap();
    let timings = Timings::new(Duration::from_secs(10)).unwrap();
    Election::new(Leases::new((config, NoTls)) as Arc<_>, name.parse().unwrap(), format!("candidate {number}"), timings)
}

async fn connect(database: &str) -> Client {
    let (client, connection) = database.parse::<Config>().unwrap().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
