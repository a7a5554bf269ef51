//! Active Record, the ORM of Rails: settings at connect, prepared statements, savepoints, fixtures, migrations, and the
//! tasks that create and drop databases.

use crate::frameworks::world::{Outcome, World, application, assert_only_fenced_writes_fail, run};
use crate::support::Address;

#[test]
fn with_prepared_statements() {
    with_and_without_a_token("prepared");
}

#[test]
fn without_prepared_statements() {
    with_and_without_a_token("plain");
}

#[test]
fn its_tasks_make_purge_and_drop_databases() {
    let world = World::start("");
    let outcome = run(&mut application("ruby".into(), "active_record_tasks.rb"), &world.proxy.address(), None);
    assert_eq!(outcome.lines(), ["notes", "notes", "dropped"]);
    world.wait_until_no_control_connection_is_left();
}

/// Steps that write to their table.
const WRITES: &[&str] = &[
    "inserts_many",
    "upserts",
    "saves",
    "nests_transactions",
    "rolls_back",
    "serialises",
    "locks_rows",
    "runs_raw_sql",
    "copies",
    "loads_fixtures",
    "is_reset",
    "migrates",
    "reconnects",
];

fn with_and_without_a_token(statements: &str) {
    let world = World::start("databases: [app]\n");
    let on_the_server = habits(&world, statements, &world.postgres.address(), Some(1)).lines();
    let proxy = world.proxy.address();
    assert_eq!(on_the_server, habits(&world, statements, &proxy, Some(1)).lines());
    let lines = habits(&world, statements, &proxy, None).lines();
    assert_only_fenced_writes_fail(&lines, &on_the_server, "LF002", WRITES);
    world.raise_to(2);
    let lines = habits(&world, statements, &proxy, Some(1)).lines();
    assert_only_fenced_writes_fail(&lines, &on_the_server, "LF001", WRITES);
}

fn habits(world: &World, statements: &str, address: &Address, token: Option<i64>) -> Outcome {
    let mut command = application("ruby".into(), "active_record_habits.rb");
    let server = format!("postgresql://postgres@127.0.0.1:{}/app", world.postgres.port());
    command.arg(statements).env("FRAMEWORK_SCHEMA_URL", server);
    run(&mut command, address, token)
}
