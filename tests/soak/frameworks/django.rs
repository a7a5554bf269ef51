//! Django: migrations, its ORM with persistent and with pooled connections, and its test runner.

use crate::frameworks::world::{Outcome, World, application, assert_only_fenced_writes_fail, run};
use crate::support::fenced::init;
use crate::support::{Address, programs};

const POOLED: &str = "FRAMEWORK_POOL";

#[test]
fn with_a_token_it_runs_as_on_the_server_and_without_one_as_far_as_it_may() {
    let world = World::start("databases: [app]\n");
    let (server, proxy) = (world.postgres.address(), world.proxy.address());
    let token = Some(1);
    let everything = |address: &Address| {
        let migrated = manage(address, token, "", &["migrate"]).lines();
        let persistent = manage(address, token, "", &["habits"]).lines();
        let pooled = manage(address, token, POOLED, &["habits"]).lines();
        (migrated, persistent, pooled, manage(address, token, "", &["migrate", "scheduler", "zero"]).lines())
    };
    let on_the_server = everything(&server);
    assert_eq!(on_the_server, everything(&proxy));

    let migration = manage(&proxy, None, "", &["migrate"]);
    assert!(!migration.success);
    assert!(migration.errors.contains("DatabaseError: resource \"scheduler\" is fenced"), "{}", migration.errors);
    manage(&proxy, token, "", &["migrate"]).lines();
    let with_token = on_the_server.1;
    for settings in ["", POOLED] {
        let lines = manage(&proxy, None, settings, &["habits"]).lines();
        assert_only_fenced_writes_fail(&lines, &with_token, "LF002", WRITES);
    }
    world.raise_to(2);
    let lines = manage(&proxy, token, "", &["habits"]).lines();
    assert_only_fenced_writes_fail(&lines, &with_token, "LF001", WRITES);
}

/// Creates databases, including copies, and drops them shortly after the proxy was connected to them.
#[test]
fn its_test_runner_makes_and_drops_databases() {
    let world = World::start("");
    let proxy = world.proxy.address();
    // The databases of the tests are fenced too, unless the policy excludes them.
    let refused = manage(&proxy, Some(1), "", &["test", "scheduler"]);
    assert!(refused.errors.contains("run `fencegate init`"), "{}", refused.errors);
    init(&world.postgres, "template1");
    for arguments in [&["--noinput"][..], KEEPING, KEEPING, &["--noinput", "--parallel", "2"]] {
        let arguments: Vec<&str> = ["test", "scheduler"].iter().chain(arguments).copied().collect();
        let outcome = manage(&proxy, Some(1), "", &arguments);
        assert!(outcome.success && outcome.errors.contains("\nOK\n"), "{arguments:?}: {}", outcome.errors);
    }
    let left = "SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE 'test%'";
    assert_eq!(world.postgres.value(left), "");
    world.wait_until_no_control_connection_is_left();
}

const KEEPING: &[&str] = &["--noinput", "--keepdb", "--exclude-tag", "serialised"];

#[test]
fn a_session_that_is_cut_off_is_replaced() {
    let world = World::start("databases: [app]\n");
    world.postgres.sql_in("app", "CREATE TABLE jobs (name text)");
    for setting in ["", POOLED] {
        let lines = manage(&world.proxy.address(), Some(1), setting, &["cut_off"]).lines();
        assert_eq!(lines, ["DatabaseError LF001", "again"], "{setting}");
        world.postgres.sql_in("app", "DELETE FROM fencegate_state.admission; DELETE FROM fencegate_state.epoch");
    }
}

/// Steps that write to their table.
const WRITES: &[&str] = &[
    "inserts_many",
    "upserts",
    "nests_transactions",
    "rolls_back",
    "uses_savepoints_by_hand",
    "acts_on_commit",
    "locks_rows",
    "updates",
    "runs_raw_sql",
    "copies",
    "knows_its_time_zone",
    "checks_constraints",
    "turns_autocommit_off",
    "empties",
    "dumps_and_loads",
    "deletes",
];

fn manage(address: &Address, token: Option<i64>, setting: &str, arguments: &[&str]) -> Outcome {
    let mut command = application(programs::python(), "django/manage.py");
    command.args(arguments);
    if !setting.is_empty() {
        command.env(setting, "yes");
    }
    run(&mut command, address, token)
}
