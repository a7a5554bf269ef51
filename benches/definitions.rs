//! Cost of DDL in a database with many fenced tables: the server's CPU time for reading the catalog, and the delay of
//! writes.
//!
//! Usage: target/release/definitions [TABLES…]   (default: 600 2845 10000 fenced tables)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fencegate::stage::{Stage, program};
use std::fmt::Write as _;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

const ROUNDS: usize = 25;
/// Number of tables created in one transaction. Each takes locks.
const AT_ONCE: usize = 500;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    println!(
        "{:>7} {:>26} {:>32} {:>32}",
        "tables", "processor ms of a reading", "a write of one resource of two", "one of the only resource"
    );
    for size in if sizes.is_empty() { vec![600, 2845, 10_000] } else { sizes } {
        let of_two = measure(size, true).await;
        let of_one = measure(size, false).await;
        let times = |times: &[f64]| format!("{:.1}, worst {:.1} ms", times[times.len() / 2], times[times.len() - 1]);
        println!("{size:>7} {:>26.1} {:>32} {:>32}", of_two.1, times(&of_two.0), times(&of_one.0));
    }
}

/// Duration of a write right after DDL by another session on its table, sorted, and the server's CPU time per DDL
/// statement. Both in milliseconds.
async fn measure(size: usize, has_two: bool) -> (Vec<f64>, f64) {
    let mut policies = "version: 1\nresources:\n  - name: many\n    tables:\n".to_owned();
    (0..size).for_each(|number| writeln!(policies, "      - public.t_{number}").unwrap());
    if has_two {
        policies.push_str("  - name: another\n    tables: [public.another]\n");
    }
    let stage = Stage::start(&program().unwrap(), &policies).await.unwrap();
    let session = |port| {
        let mut config = Config::new();
        config.host_path(stage.folder()).port(port).user("postgres").dbname("app");
        async move { connect(&config).await }
    };
    let direct = session(5432).await;
    direct.batch_execute("CREATE TABLE another (id int)").await.unwrap();
    for first in (0..size).step_by(AT_ONCE) {
        let tables =
            (first..size.min(first + AT_ONCE)).map(|number| format!("CREATE TABLE t_{number} (id int PRIMARY KEY);"));
        direct.batch_execute(&tables.collect::<String>()).await.unwrap();
    }
    // Send ANALYZE as a separate query: otherwise it would hold a lock on each table.
    direct.batch_execute("ANALYZE").await.unwrap();
    direct.batch_execute("NOTIFY fencegate, '{catalogue}'").await.unwrap();
    let (leader, stranger) = (session(6432).await, session(6432).await);
    leader.batch_execute("SET lease.fence = 1; INSERT INTO t_0 VALUES (-1)").await.unwrap();
    let before = processor_ms(&direct).await;
    let mut times = Vec::new();
    for number in 0..ROUNDS {
        for ddl in ["CREATE VIEW led AS TABLE t_0", "DROP VIEW led"] {
            stranger.batch_execute(ddl).await.unwrap();
            let start = Instant::now();
            leader
                .batch_execute(&format!("INSERT INTO t_0 VALUES ({number}); DELETE FROM t_0 WHERE id = {number}"))
                .await
                .unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    let spent = processor_ms(&direct).await - before;
    (times, spent / (2 * ROUNDS) as f64)
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// CPU time of the control connections' server processes.
async fn processor_ms(direct: &Client) -> f64 {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control'";
    let pids = direct.query(sql, &[]).await.unwrap();
    let spent = |pid: i32| {
        let schedstat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        schedstat.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or_default() / 1e6
    };
    pids.iter().map(|row| spent(row.get(0))).sum()
}
