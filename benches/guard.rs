//! Cost of the guard: the duration of a statement and of a row with and without it, for an admitted process.
//!
//! Usage: target/release/guard \[ROUNDS\]   (default: 5 rounds; the median is shown)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::stage::{Stage, program};
use std::process::Command;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

const POLICIES: &str = "
version: 1
resources:
  - name: scheduler
    tables: [public.plain, public.parts]
";

const SCHEMA: &str = "
CREATE TABLE plain (id int, note text);
CREATE TABLE parts (id int, note text) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1000000);
CREATE TABLE keyed (id int, note text);
";

/// A trigger for a keyed table, created by hand in the form of `guard install`.
const KEYED: &str = "CREATE TRIGGER fencegate_guard_keyed AFTER INSERT OR UPDATE OR DELETE ON keyed
    FOR EACH ROW EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'scheduler', 'note', '')";

/// Number of executions that are timed together, because a single one is too short.
const SHORT: u32 = 2000;
const ROWS: u32 = 100_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next_back().map_or(5, |rounds| rounds.parse().expect("a number of rounds"));
    let fencegate = program().unwrap();
    let stage = Stage::start(&fencegate, POLICIES).await.unwrap();
    let (mut direct, mut through) = (Config::new(), Config::new());
    for (config, port) in [(&mut direct, 5432), (&mut through, 6432)] {
        config.host_path(stage.folder()).port(port).user("postgres").dbname("app");
    }
    let direct = connect(&direct).await;
    direct.batch_execute(SCHEMA).await.unwrap();
    let through = connect(&through).await;
    through.batch_execute("SET lease.fence = 1; INSERT INTO plain VALUES (1, '')").await.unwrap();

    let without = measure(&through, rounds).await;
    let policies = stage.folder().join("policies");
    let control = format!("postgres://postgres@/app?host={}&port=5432", stage.folder().display());
    let mut install = Command::new(&fencegate);
    install.args(["guard", "install", "--control", &control, "--policies"]).arg(policies);
    assert!(install.status().unwrap().success());
    direct.batch_execute(KEYED).await.unwrap();
    let with = measure(&through, rounds).await;

    println!("{:<34} {:>12} {:>12} {:>12}", "microseconds", "without", "with", "difference");
    for ((name, without), (_, with)) in without.iter().zip(&with) {
        println!("{name:<34} {without:>12.2} {with:>12.2} {:>12.2}", with - without);
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Microseconds per statement, or per row of long statements.
async fn measure(client: &Client, rounds: usize) -> Vec<(&'static str, f64)> {
    let many = |table: &str| format!("INSERT INTO {table} SELECT g, '' FROM generate_series(1, {ROWS}) g");
    let mut results = Vec::new();
    for (name, prepare, sql, repeat, rows) in [
        ("INSERT of 1 row, a statement", String::new(), "INSERT INTO plain VALUES (1, '')".to_owned(), SHORT, 1),
        ("INSERT of 100,000, a row", String::new(), many("plain"), 1, ROWS),
        ("UPDATE of 100,000, a row", many("plain"), "UPDATE plain SET note = ''".into(), 1, ROWS),
        ("INSERT into a partition, a row", String::new(), many("parts"), 1, ROWS),
        ("INSERT with a key, a row", String::new(), many("keyed"), 1, ROWS),
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            client.batch_execute("TRUNCATE plain, parts").await.unwrap();
            client.batch_execute("DELETE FROM keyed").await.unwrap();
            client.batch_execute(&prepare).await.unwrap();
            let start = Instant::now();
            for _ in 0..repeat {
                client.batch_execute(&sql).await.unwrap();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(repeat * rows));
        }
        times.sort_by(f64::total_cmp);
        results.push((name, times[times.len() / 2]));
    }
    results
}
