//! SQLAlchemy with psycopg, psycopg2 and asyncpg: pools, savepoints, isolation levels, streams, COPY, reflection.

use crate::frameworks::world::{Outcome, World, application, assert_only_fenced_writes_fail, run};
use crate::support::{Address, programs};

#[test]
fn psycopg() {
    with_and_without_a_token("psycopg", WRITES);
}

#[test]
fn psycopg2() {
    with_and_without_a_token("psycopg2", WRITES);
}

#[test]
fn asyncpg() {
    let writes = ["inserts_many", "nests_transactions", "serialises", "copies", "works_concurrently"];
    with_and_without_a_token("asyncpg", &writes);
}

/// Steps that write to their table. They run twice, with two pools.
const WRITES: &[&str] = &[
    "inserts_many",
    "executes_many",
    "upserts",
    "uses_a_unit_of_work",
    "nests_transactions",
    "rolls_back",
    "serialises",
    "locks_rows",
    "copies",
    "alters",
    "inserts_many",
    "executes_many",
    "upserts",
    "uses_a_unit_of_work",
    "nests_transactions",
    "rolls_back",
    "serialises",
    "locks_rows",
    "copies",
    "alters",
];

/// The pool replaces its only connection.
#[test]
fn a_connection_that_is_cut_off_is_replaced() {
    let world = World::start("databases: [app]\n");
    world.postgres.sql_in("app", "CREATE TABLE jobs (name text)");
    for (driver, token) in [("psycopg", 1), ("psycopg2", 3), ("asyncpg", 5)] {
        let mut command = application(programs::python(), "sqlalchemy_cut_off.py");
        let lines = run(command.arg(driver), &world.proxy.address(), Some(token)).lines();
        assert_eq!(lines, ["LF001 invalidated: True", "again"], "{driver}");
    }
}

fn with_and_without_a_token(driver: &str, writes: &[&str]) {
    let world = World::start("databases: [app]\n");
    let on_the_server = habits(&world, driver, &world.postgres.address(), Some(1)).lines();
    let proxy = world.proxy.address();
    assert_eq!(on_the_server, habits(&world, driver, &proxy, Some(1)).lines());
    let lines = habits(&world, driver, &proxy, None).lines();
    assert_only_fenced_writes_fail(&lines, &on_the_server, "LF002", writes);
    world.raise_to(2);
    let lines = habits(&world, driver, &proxy, Some(1)).lines();
    assert_only_fenced_writes_fail(&lines, &on_the_server, "LF001", writes);
    if driver != "asyncpg" {
        let goes_on = "jobs goes_on_after_an_error: (('LF001', False), 'on')";
        assert!(lines.iter().any(|line| line == goes_on), "{lines:#?}");
    }
    world.wait_until_no_control_connection_is_left();
}

fn habits(world: &World, driver: &str, address: &Address, token: Option<i64>) -> Outcome {
    let mut command = application(programs::python(), "sqlalchemy_habits.py");
    let server = format!("postgresql+psycopg2://postgres@127.0.0.1:{}/app", world.postgres.port());
    command.arg(driver).env("FRAMEWORK_SCHEMA_URL", server);
    run(&mut command, address, token)
}
