//! Leases in PostgreSQL: with many candidates in one election, during crashes of the server, and as locks for jobs.
//!
//! Usage: target/release/leases

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::stage::{Stage, program};
use fencegate_leader::{Election, Leadership, State};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

const CANDIDATES: usize = 100;
/// Sessions that claim jobs concurrently.
const WORKERS: usize = 8;
const CLAIMING: Duration = Duration::from_secs(10);
const CRASHES: usize = 5;
/// Shutdown mode before each restart. Immediate means without a checkpoint.
const RESTARTS: [&str; 4] = ["fast", "immediate", "fast", "immediate"];

#[tokio::main]
async fn main() {
    let stage = Stage::start(&program().unwrap(), "version: 1\n").await.unwrap();
    let database = format!("host={} port=5432 user=postgres dbname=app", stage.folder().display());
    contend(&database).await;
    claim(&database).await;
    // Must be the last benchmark: it stops the server.
    interrupt(&stage, &database).await;
}

/// Each candidate has its own connection, as if it were a process, and resigns as soon as it leads.
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

/// The server ends all sessions and recovers, as after the crash of a backend. Then the whole server is restarted.
async fn interrupt(stage: &Stage, database: &str) {
    let leadership = election(database, "interrupted", 0).campaign().await.unwrap();
    let mut times = Vec::new();
    for _ in 0..CRASHES {
        let victim = connect(database).await;
        let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let (state, start) = (leadership.subscribe(), Instant::now());
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        times.extend(outlived(&leadership, state, start).await);
    }
    report(&format!("{CRASHES} crashes"), &times);
    for how in RESTARTS {
        let (state, start) = (leadership.subscribe(), Instant::now());
        pg_ctl(stage, &["restart", "--mode", how]);
        let restarted = start.elapsed();
        let renewed = outlived(&leadership, state, start).await;
        report(&format!("a restart, {how}, which took {restarted:.1?}"), renewed.as_slice());
    }
    leadership.resign().await.unwrap();
    // The restarted server is no longer a child of the stage, so stop it here.
    pg_ctl(stage, &["stop", "--mode", "immediate"]);
}

/// Time from `start` to the renewal of the lease; None if the lease was lost.
async fn outlived(leadership: &Leadership, mut state: watch::Receiver<State>, start: Instant) -> Option<Duration> {
    state.changed().await.ok()?;
    leadership.check().inspect_err(|lost| println!("lost: {lost}")).ok()?;
    Some(start.elapsed())
}

fn report(what: &str, times: &[Duration]) {
    let most = times.iter().max().map_or("never".to_owned(), |most| format!("at most {most:.1?} after the beginning"));
    println!("{what}, TTL 10 s: {} outlived; the next renewal {most}", times.len());
}

/// Runs pg_ctl as the server's system user.
fn pg_ctl(stage: &Stage, arguments: &[&str]) {
    let data = stage.folder().join("data");
    let owner = data.metadata().unwrap();
    let mut command = Command::new(stage.programs().join("pg_ctl"));
    command.uid(owner.uid()).gid(owner.gid()).current_dir("/").stdout(Stdio::null()).arg("--pgdata").arg(&data);
    let status = command.arg("--log").arg(data.join("restarted.log")).args(arguments).status().unwrap();
    assert!(status.success(), "pg_ctl {arguments:?}: {status}");
}

/// Claims jobs like a queue: acquires a lease for each job, and releases it when the job is done.
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

fn election(database: &str, name: &str, number: usize) -> Election {
    Election::postgres(database).name(name).holder(format!("candidate {number}")).build().unwrap()
}

async fn connect(database: &str) -> Client {
    let (client, connection) = database.parse::<Config>().unwrap().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
