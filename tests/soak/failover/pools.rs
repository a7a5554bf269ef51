//! Errors that users of pools or of a list of hosts receive, with psycopg, node-postgres and pgjdbc.

use super::assert_only_expected;
use super::world::World;
use crate::drivers::program::{java, node, python};
use crate::support::cluster::Replication;
use crate::support::programs::for_address;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

#[test]
fn of_psycopg_when_the_primary_is_killed() {
    writes_through_a_promotion("psycopg_pool", python("psycopg_pool_failover.py"), true);
}

#[test]
fn of_psycopg_when_the_old_primary_runs() {
    writes_through_a_promotion("psycopg_pool", python("psycopg_pool_failover.py"), false);
}

#[test]
fn of_node_postgres_when_the_primary_is_killed() {
    writes_through_a_promotion("node-postgres", node("node_postgres_pool_failover.js"), true);
}

#[test]
fn of_node_postgres_when_the_old_primary_runs() {
    writes_through_a_promotion("node-postgres", node("node_postgres_pool_failover.js"), false);
}

#[test]
#[ignore = "needs a JDK and two packages: make drivers"]
fn of_pgjdbc_when_the_primary_is_killed() {
    writes_through_a_promotion("pgjdbc", java("JdbcFailover.java"), true);
}

#[test]
#[ignore = "needs a JDK and two packages: make drivers"]
fn of_pgjdbc_when_the_old_primary_runs() {
    writes_through_a_promotion("pgjdbc", java("JdbcFailover.java"), false);
}

/// The program prints `ready` once it writes. After the promotion it reads a line, writes more, and prints the results.
fn writes_through_a_promotion(pool: &str, mut command: Command, is_killed: bool) {
    let mut world = World::without_writers();
    for_address(&mut command, &world.proxies[0].address(), "postgres");
    let ports: Vec<String> = world.ports().iter().map(u16::to_string).collect();
    command.env("PORTS", ports.join(",")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    if is_killed {
        world.cluster[0].kill9();
    }
    world.cluster.promote(1);
    world.cluster.set_replication(Replication::Asynchronous);
    program.stdin.take().unwrap().write_all(b"promoted\n").unwrap();
    let mut report = String::new();
    output.read_to_string(&mut report).unwrap();
    assert!(program.wait().unwrap().success(), "{report}");

    let lines = |word: &str| report.lines().filter_map(|line| line.strip_prefix(word)).collect::<Vec<_>>();
    let mut errors: BTreeMap<String, usize> = BTreeMap::new();
    for kind in lines("error ") {
        *errors.entry(kind.to_owned()).or_default() += 1;
    }
    let state = if is_killed { "killed" } else { "running" };
    println!("{pool}, old primary {state}: {} writes acknowledged; errors: {errors:?}", lines("committed ").len());
    assert_only_expected(&errors);
    let rows = world.cluster[1].sql("SELECT number FROM entries");
    let present: HashSet<String> = rows.into_iter().flatten().flatten().collect();
    let lost: Vec<_> = lines("committed ").into_iter().filter(|number| !present.contains(*number)).collect();
    assert!(lost.is_empty(), "acknowledged but not committed: {lost:?}");
}
