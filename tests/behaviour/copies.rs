//! Copies of a database keep its fences, but ignore rows about server processes of the original.

use crate::guard::world::{guard, policy_folder};
use crate::support::fenced::{Fenced, code, init, ok, value};
use crate::support::guardian::Folder;
use crate::support::programs;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, wait_until};
use std::fs;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const TABLE: &str = "CREATE TABLE jobs (n int)";
const ADMISSIONS: &str = "SELECT count(*) FROM fencegate_state.admission";
const PROXIES: &str = "SELECT count(*) FROM fencegate_state.proxy";

/// Dumps the database `postgres` as this role, and restores it to another database.
fn restore(postgres: &Postgres, role: &str, options: &[&str], to: (&Postgres, &str)) {
    let mut dump = programs::pg_dump(&postgres.address(), "postgres");
    let dump = programs::run(dump.env("PGUSER", role).args(options)).stdout;
    let file = Folder::new("dump");
    fs::write(file.join("dump.sql"), dump).unwrap();
    let mut psql = programs::psql(&to.0.address(), to.1);
    programs::run(psql.env("PGUSER", role).arg("-qf").arg(file.join("dump.sql")));
}

/// A session in the database `copy`, through the proxy.
fn holder_in_copy(proxy: &Proxy, token: i64) -> Wire {
    let mut wire = Wire::login(&proxy.address(), "postgres", "copy");
    ok(&mut wire, &format!("SET lease.fence = {token}"));
    wire
}

fn value_in(postgres: &Postgres, database: &str, sql: &str) -> String {
    postgres.sql_in(database, sql)[0][0].clone().unwrap()
}

#[test]
fn a_restored_copy_ends_no_session_of_the_original() {
    let world = Fenced::start(TABLE, POLICIES);
    let mut holder = world.holder(47);
    ok(&mut holder, "BEGIN; INSERT INTO jobs VALUES (47)");
    world.postgres.sql("CREATE DATABASE copy");
    restore(&world.postgres, "postgres", &[], (&world.postgres, "copy"));
    assert_eq!(value_in(&world.postgres, "copy", ADMISSIONS), "1", "the dump has the row of the original's process");

    assert_eq!(code(&mut holder_in_copy(&world.proxy, 46), "INSERT INTO jobs VALUES (46)"), "LF001");
    let mut newer = holder_in_copy(&world.proxy, 48);
    ok(&mut newer, "INSERT INTO jobs VALUES (48)");
    ok(&mut holder, "COMMIT");
    ok(&mut holder, "INSERT INTO jobs VALUES (47)");
    let own = "SELECT count(*) FROM fencegate_state.admission WHERE database = fencegate.own_database()";
    assert_eq!(value_in(&world.postgres, "copy", own), "1");
    // A proxy that enforces nothing in this database would prevent fences from counting as enforced.
    let in_force = "SELECT count(*) FILTER (WHERE database = fencegate.own_database()) || ' of ' || count(*) FROM fencegate_state.proxy";
    wait_until("the proxy's row is its own", DEADLINE, || value_in(&world.postgres, "copy", in_force) == "1 of 1");
}

#[test]
fn init_removes_the_rows_of_other_databases() {
    let world = Fenced::start(TABLE, POLICIES);
    let mut holder = world.holder(47);
    ok(&mut holder, "INSERT INTO jobs VALUES (47)");
    world.postgres.sql("CREATE DATABASE copy");
    restore(&world.postgres, "postgres", &[], (&world.postgres, "copy"));
    let rows = |database: &str| [ADMISSIONS, PROXIES].map(|sql| value_in(&world.postgres, database, sql));
    assert_eq!(rows("copy"), ["1", "1"]);
    init(&world.postgres, "copy");
    assert_eq!(rows("copy"), ["0", "0"]);
    init(&world.postgres, "postgres");
    assert_eq!(rows("postgres"), ["1", "1"]);
    assert_eq!(value_in(&world.postgres, "copy", "SELECT token FROM fencegate_state.epoch"), "47");
}

/// The database `postgres` has the same OID on every server. The system identifier distinguishes rows of another
/// server.
#[test]
fn rows_of_another_server_are_not_alive() {
    let world = Fenced::start(TABLE, POLICIES);
    let mut holder = world.holder(47);
    ok(&mut holder, "INSERT INTO jobs VALUES (47)");
    let other = Postgres::start(Options::default().own_identifier());
    restore(&world.postgres, "postgres", &[], (&other, "postgres"));
    let proxy = Proxy::start(&other, POLICIES, &[]);
    let mut living = Wire::login(&other.address(), "postgres", "postgres");
    let pid = value(&mut living, "SELECT pg_backend_pid()").unwrap();
    let identifier = "SELECT system_identifier FROM pg_control_system()";
    assert_ne!(world.postgres.value(identifier), other.value(identifier));
    // As if a process of the other server had the same pid and start time.
    other.sql(&format!(
        "UPDATE fencegate_state.admission SET (pid, backend_start) \
           = (SELECT pid, backend_start FROM pg_stat_activity WHERE pid = {pid})"
    ));
    let mut newer = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut newer, "SET lease.fence = 48; INSERT INTO jobs VALUES (48)");
    ok(&mut living, "SELECT 1");
}

/// A template has no sessions. Its rows refer to processes that have ended.
#[test]
fn a_copy_of_a_template_has_its_fences() {
    let world = Fenced::start(TABLE, POLICIES);
    let mut holder = world.holder(47);
    ok(&mut holder, "INSERT INTO jobs VALUES (47)");
    drop(holder);
    wait_until("no other session is connected to the template", DEADLINE, || {
        world.postgres.try_sql("template1", "CREATE DATABASE copy TEMPLATE postgres").is_ok()
    });
    assert_eq!(code(&mut holder_in_copy(&world.proxy, 46), "INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut holder_in_copy(&world.proxy, 48), "INSERT INTO jobs VALUES (48)");
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
}

/// The copy has the same system identifier and the same database OIDs. Its unlogged tables are empty.
#[test]
fn a_promoted_base_backup_ends_no_session_of_the_original() {
    let world = Fenced::start(TABLE, POLICIES);
    let mut holder = world.holder(47);
    ok(&mut holder, "BEGIN; INSERT INTO jobs VALUES (47)");
    let copy = world.postgres.promoted_backup();
    assert_eq!(copy.value(ADMISSIONS), "0");
    let proxy = Proxy::start(&copy, POLICIES, &[]);
    let login = || Wire::login(&proxy.address(), "postgres", "postgres");
    assert_eq!(code(&mut login(), "SET lease.fence = 46; INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut login(), "SET lease.fence = 48; INSERT INTO jobs VALUES (48)");
    ok(&mut holder, "COMMIT");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47");
}

/// The guard's triggers and the column's default refer to the schema. Run `init` and `guard install` before the
/// restore.
#[test]
fn the_owner_of_the_tables_dumps_them_without_rights_on_fencegate() {
    let policies = POLICIES.replace("public.jobs", "app.jobs");
    let world = Fenced::start("CREATE ROLE owner LOGIN; CREATE SCHEMA app AUTHORIZATION owner", &policies);
    let owner = || Wire::login(&world.postgres.address(), "owner", "postgres");
    ok(&mut owner(), "CREATE TABLE app.jobs (n int, token bigint DEFAULT fencegate.token('scheduler'))");
    let folder = policy_folder("copies_dumped_by_the_owner", &policies);
    let install = |database: &str| {
        let installed = guard("install", &(world.postgres.control_url() + database), Some(&folder));
        assert!(installed.status.success(), "{installed:?}");
    };
    install("postgres");
    let refused = programs::pg_dump(&world.postgres.address(), "postgres").env("PGUSER", "owner").output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("permission denied for schema fencegate_state"),
        "{refused:?}"
    );

    world.postgres.sql("CREATE DATABASE copy OWNER owner");
    init(&world.postgres, "copy");
    install("copy");
    restore(&world.postgres, "owner", &["-n", "app"], (&world.postgres, "copy"));
    install("copy");
    let mut around = Wire::login(&world.postgres.address(), "owner", "copy");
    assert_eq!(code(&mut around, "INSERT INTO app.jobs VALUES (1)"), "LF002");
    let mut first = Wire::login(&world.proxy.address(), "owner", "copy");
    ok(&mut first, "SET lease.fence = 1; INSERT INTO app.jobs VALUES (1)");
}
