//! The show: the cron without a fence, with it, and with a shell script among its nodes.

use crate::actor::{Actor, Chorus};
use crate::check::{Observed, Row};
use fencegate::stage::Stage;
use nix::sys::signal::Signal;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

/// Of the lease.
const TTL: Duration = Duration::from_secs(3);
/// Between two ticks, in seconds.
const PERIOD: i64 = 1;
const ELECTION: &str = "/cron/leader";
const POLICIES: &str = "version: 1
resources:
  - name: cron
    election: /cron/leader
    tables: [public.ticks]
";
/// The server stamps each row with the token of the session that writes it. No unique key: nothing but the fence keeps
/// two leaders from writing the same tick.
const SETUP: &str = "CREATE TABLE ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tick timestamptz NOT NULL,
    node text NOT NULL,
    token bigint DEFAULT fencegate.token('cron')
)";
const ROWS: &str = "SELECT extract(epoch FROM tick)::bigint, node, token FROM ticks ORDER BY id";

/// How the nodes reach the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Postgres,
    Fencegate,
}

pub async fn run() -> Result<ExitCode, Box<dyn Error>> {
    println!("A cron on three nodes: the leader writes one row every {PERIOD} s. Leases of {} s.", TTL.as_secs());
    let stage = Stage::start(&fencegate()?, POLICIES).await?;
    let witness = connect(&stage).await?;
    witness.batch_execute(SETUP).await?;
    let mut failures = Vec::new();

    println!("\n1. Straight to PostgreSQL: the leader is cut off from etcd, and does not notice");
    let naive = split_brain(&stage, &witness, Door::Postgres).await?;
    print_rows(&naive);
    println!("  WRONG: {} ticks were run twice, {} rows are a deposed leader's.", naive.doubled(), naive.stale());
    if naive.doubled() == 0 || naive.stale() == 0 {
        failures.push("the naive cron was not corrupted: this run proves nothing".to_owned());
    }

    println!("\n2. The same through fencegate");
    let fenced = split_brain(&stage, &witness, Door::Fencegate).await?;
    failures.extend(verdict(&fenced));
    if fenced.late_writes == 0 {
        failures.push("no late write reached the proxy: this run proves nothing".to_owned());
    }

    println!("\n3. A shell script under `fencegate lead` is killed, a node resigns");
    let mixed = shell_among_nodes(&stage, &witness).await?;
    failures.extend(verdict(&mixed));
    if mixed.rows.iter().all(|row| row.node != "shell") {
        failures.push("the shell script did not lead".to_owned());
    }

    println!();
    failures.iter().for_each(|failure| println!("DID NOT HOLD: {failure}"));
    if failures.is_empty() {
        println!("All claims hold: exactly one row per tick with the fence, and corruption without it.");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Three nodes that never look whether they still lead. The leader is cut off from etcd for twice its TTL and 2 s.
async fn split_brain(stage: &Stage, witness: &Client, door: Door) -> Result<Observed, Box<dyn Error>> {
    let mut chorus = Chorus::new();
    let mut nodes = Vec::new();
    for id in ["a", "b", "c"] {
        let (relay, mut lines) = Actor::start(relay(stage)?)?;
        let address = lines.next_line().await?.ok_or("the relay has ended")?;
        let (node, lines) = Actor::start(node(stage, id, &format!("http://{address}"), door, true)?)?;
        chorus.join(lines);
        nodes.push((id, relay, node));
    }
    let old = leader(&mut chorus, "").await?;
    let leads = |line: &str| line.contains(" leads ");
    ticks(&mut chorus, &old, 2).await?;
    let (_, relay, _) = nodes.iter().find(|(id, ..)| *id == old).ok_or("an unknown node leads")?;
    relay.signal(Signal::SIGSTOP)?;
    println!("  {old} is cut off from etcd");
    let cut = Instant::now();
    let new = name(&chorus.until("a new leader", leads).await?);
    chorus.during((TTL * 2 + Duration::from_secs(2)).saturating_sub(cut.elapsed())).await;
    relay.signal(Signal::SIGCONT)?;
    println!("  {old} reaches etcd again");
    ticks(&mut chorus, &new, 2).await?;
    drop(nodes);
    observed(witness, &chorus).await
}

/// A shell script leads until it is killed, then a node until it resigns, then the other.
async fn shell_among_nodes(stage: &Stage, witness: &Client) -> Result<Observed, Box<dyn Error>> {
    let mut chorus = Chorus::new();
    let (shell, lines) = Actor::start(shell(stage)?)?;
    chorus.join(lines);
    leader(&mut chorus, "shell").await?;
    let mut nodes = Vec::new();
    for id in ["b", "c"] {
        let (node, lines) = Actor::start(node(stage, id, stage.etcd(), Door::Fencegate, false)?)?;
        chorus.join(lines);
        nodes.push((id, node));
    }
    ticks(&mut chorus, "shell", 2).await?;
    shell.signal(Signal::SIGKILL)?;
    println!("  shell is killed");
    let second = leader(&mut chorus, "").await?;
    ticks(&mut chorus, &second, 2).await?;
    let (_, node) = nodes.iter().find(|(id, _)| *id == second).ok_or("an unknown node leads")?;
    node.signal(Signal::SIGTERM)?;
    let third = leader(&mut chorus, "").await?;
    ticks(&mut chorus, &third, 2).await?;
    drop(nodes);
    observed(witness, &chorus).await
}

async fn leader(chorus: &mut Chorus, id: &str) -> Result<String, Box<dyn Error>> {
    let line = chorus.until("leads", |line| line.contains(" leads ") && name(line).starts_with(id)).await?;
    Ok(name(&line))
}

async fn ticks(chorus: &mut Chorus, id: &str, count: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..count {
        chorus.until("tick", |line| line.contains(" tick ") && name(line) == id).await?;
    }
    Ok(())
}

/// Who says this.
fn name(line: &str) -> String {
    line.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Reads the table, and empties it for the next scene.
async fn observed(witness: &Client, chorus: &Chorus) -> Result<Observed, Box<dyn Error>> {
    let rows = witness.query(ROWS, &[]).await?;
    let rows = rows.iter().map(|row| Row { tick: row.get(0), node: row.get(1), token: row.get(2) }).collect();
    witness.batch_execute("TRUNCATE ticks").await?;
    Ok(Observed::new(rows, &chorus.said))
}

fn verdict(observed: &Observed) -> Vec<String> {
    print_rows(observed);
    let found = observed.contradictions(PERIOD);
    let (rows, skipped, late) = (observed.rows.len(), observed.skipped, observed.late_writes);
    match found.is_empty() {
        true => println!(
            "  RIGHT: {rows} ticks, one row each; {late} late writes rejected; {skipped} ticks skipped, and said so."
        ),
        false => println!("  NOT AS CLAIMED"),
    }
    found
}

fn print_rows(observed: &Observed) {
    let cell = |row: &Row| format!("{}:{}/{}", row.tick % 60, row.node, row.token);
    let cells: Vec<String> = observed.rows.iter().map(cell).collect();
    println!("  ticks, as second:node/token  {}", cells.join(" "));
}

fn relay(stage: &Stage) -> Result<Command, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["relay", stage.etcd().trim_start_matches("http://")]);
    Ok(command)
}

fn node(stage: &Stage, id: &str, etcd: &str, door: Door, oblivious: bool) -> Result<Command, Box<dyn Error>> {
    let port = if door == Door::Postgres { 5432 } else { 6432 };
    let database = format!("host={} port={port} user=postgres dbname=app", stage.folder().display());
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["node", "--id", id, "--election", ELECTION, "--etcd", etcd, "--database", &database]);
    command.args(["--ttl", &TTL.as_secs().to_string(), "--period", &PERIOD.to_string()]);
    if oblivious {
        command.arg("--oblivious");
    }
    Ok(command)
}

fn shell(stage: &Stage) -> Result<Command, Box<dyn Error>> {
    let mut command = Command::new(fencegate()?);
    command.args(["lead", "--etcd", stage.etcd(), "--election", ELECTION, "--id", "shell"]);
    command.args(["--ttl", &TTL.as_secs().to_string(), "--", "sh"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/distributed_cron/node.sh"));
    command.arg(PERIOD.to_string());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", stage.programs().display())).env("RUST_LOG", "error");
    command.env("PGHOST", stage.folder()).envs([("PGPORT", "6432"), ("PGUSER", "postgres"), ("PGDATABASE", "app")]);
    Ok(command)
}

/// The program, beside the folder of the examples.
fn fencegate() -> Result<PathBuf, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).ok_or("where am I?")?;
    Ok(folder.join("fencegate"))
}

async fn connect(stage: &Stage) -> Result<Client, Box<dyn Error>> {
    let mut config = Config::new();
    config.host_path(stage.folder()).port(5432).user("postgres").dbname("app");
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
