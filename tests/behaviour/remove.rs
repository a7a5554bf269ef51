//! `fencegate remove`.

use crate::support::fenced::{Fenced, init, ok};
use crate::support::guardian::Folder;
use crate::support::postgres::Options;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, Postgres, Wire, message, ticks, wait_until};
use std::fs;
use std::process::Output;

const POLICIES: &str = "
version: 1
resources:
  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks, public.parts]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard}]}
";
const SCHEMA: &str = "
CREATE TABLE ticks (id int, token bigint);
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE shards (shard int);
CREATE ROLE leader LOGIN;
";

/// Everything in the database that a new one does not have, and its privileges.
const CONTENT: &str = "SELECT string_agg(it, E'\\n' ORDER BY it) FROM (
    SELECT concat('relation ', oid::regclass, ' ', relacl) FROM pg_class WHERE oid >= 16384 AND relkind <> 't'
        AND relnamespace <> 'pg_toast'::regnamespace
    UNION ALL SELECT concat('function ', oid::regprocedure, ' ', proacl) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat('schema ', nspname, ' ', nspacl) FROM pg_namespace
    UNION ALL SELECT concat('trigger ', tgname, ' on ', tgrelid::regclass) FROM pg_trigger
    UNION ALL SELECT concat('event trigger ', evtname) FROM pg_event_trigger
    UNION ALL SELECT concat('type ', oid::regtype) FROM pg_type WHERE oid >= 16384 AND typnamespace <> 'pg_toast'::regnamespace
    UNION ALL SELECT concat('database ', datname, ' ', datacl) FROM pg_database
    UNION ALL SELECT concat('default ', defaclacl) FROM pg_default_acl
    UNION ALL SELECT concat('comment ', description) FROM pg_description WHERE objoid >= 16384) content(it)";

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn control(postgres: &Postgres, role: &str) -> String {
    postgres.control_url().replace("postgres@", &format!("{role}@")) + "postgres"
}

fn remove_as(postgres: &Postgres, role: &str, arguments: &[&str]) -> Output {
    fencegate().args(["remove", "--control", &control(postgres, role)]).args(arguments).output().unwrap()
}

fn remove(postgres: &Postgres, arguments: &[&str]) -> Output {
    remove_as(postgres, "postgres", arguments)
}

/// The error of a `remove` that must fail without removing anything.
#[track_caller]
fn refused(postgres: &Postgres, role: &str, arguments: &[&str]) -> String {
    let before = postgres.value(CONTENT);
    let output = remove_as(postgres, role, arguments);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{output:?}");
    assert_eq!(postgres.value(CONTENT), before, "{output:?}");
    stderr(&output)
}

#[track_caller]
fn removed(postgres: &Postgres, arguments: &[&str]) -> String {
    let output = remove(postgres, arguments);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{output:?}");
    stdout(&output)
}

fn install(postgres: &Postgres, role: &str) -> Output {
    let folder = Folder::new("remove");
    fs::write(folder.join("policies.yaml"), POLICIES).unwrap();
    let control = control(postgres, role);
    fencegate()
        .args(["guard", "install", "--control", &control, "--policies", &folder.path().display().to_string()])
        .output()
        .unwrap()
}

/// A server with the schema, the guard and leases.
fn prepared() -> Postgres {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    assert!(install(&postgres, "postgres").status.success());
    postgres
}

const NOTHING: &str = "nothing to remove\n";

#[test]
fn older_objects_remain() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    postgres.sql("CREATE ROLE gate LOGIN; INSERT INTO ticks VALUES (1)");
    let before = postgres.value(CONTENT);
    assert_eq!(removed(&postgres, &[]), NOTHING);
    let control = control(&postgres, "postgres");
    for _ in 0..2 {
        let report =
            run(fencegate().args(["init", "--control", &control, "--role", "gate", "--leases-for", "leader"])).stdout;
        assert!(
            report.starts_with(b"schema fencegate: created, owned by gate"),
            "{}",
            String::from_utf8_lossy(&report)
        );
        assert!(install(&postgres, "postgres").status.success());
        postgres.sql("SET ROLE leader; SELECT fencegate.acquire('cron/scheduler', 'a', '1 hour')");
        let report = removed(&postgres, &[]);
        assert_eq!(postgres.value(CONTENT), before);
        for part in [
            "removed event trigger fencegate_guard_drop",
            "removed trigger fencegate_guard_",
            "removed function fencegate.acquire(text,text,interval)",
            "removed function fencegate.guard()",
            "removed table fencegate_state.epoch",
            "removed sequence fencegate_state.lease_token",
            "removed schema fencegate\n",
            "removed schema fencegate_state\n",
            "REVOKE pg_read_all_stats, pg_signal_backend FROM gate",
        ] {
            assert!(report.contains(part), "{part} in\n{report}");
        }
        assert_eq!(removed(&postgres, &[]), NOTHING);
    }
    postgres.sql("INSERT INTO ticks VALUES (2); INSERT INTO parts VALUES (2)");
    assert_eq!(postgres.value("SELECT count(*) FROM ticks"), "2");
}

#[test]
fn a_proxy_that_uses_the_database_is_named() {
    let policies = "version: 1\nresources:\n  - {name: scheduler, tables: [public.ticks]}\n";
    let mut world = Fenced::start(SCHEMA, policies);
    let mut holder = world.holder(47);
    ok(&mut holder, "INSERT INTO ticks VALUES (1)");
    let error = refused(&world.postgres, "postgres", &[]);
    assert!(error.contains("a proxy uses database postgres; nothing was removed"), "{error}");
    assert!(error.contains("a control connection of role postgres"), "{error}");
    let session = format!("process {}, a session that is admitted to scheduler", ticks::process(&mut holder));
    assert!(error.contains(&session), "{error}");

    // The proxy dies, and the server has not noticed yet that the session's client is gone.
    holder.send(&message::query("SELECT pg_sleep(600)"));
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    wait_until("the statement runs", DEADLINE, || world.postgres.value(sleeps) == "1");
    world.proxy.kill9();
    let controls = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencegate control'";
    wait_until("its control connections are gone", DEADLINE, || world.postgres.value(controls) == "0");
    let error = refused(&world.postgres, "postgres", &[]);
    assert!(error.contains(&session) && !error.contains("control connection"), "{error}");
    world
        .postgres
        .sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'");
    assert!(removed(&world.postgres, &[]).contains("removed schema fencegate"));
}

/// How to create the dependent, how to undo that, its name in the error, and whether `--keep-token` suffices.
const DEPENDENTS: [(&str, &str, &str, bool); 13] = [
    (
        "ALTER TABLE ticks ALTER token SET DEFAULT fencegate.token('scheduler')",
        "ALTER TABLE ticks ALTER token DROP DEFAULT",
        "default value for column token of table public.ticks depends on function fencegate.token(text)",
        true,
    ),
    (
        "ALTER FUNCTION fencegate.token IMMUTABLE; CREATE TABLE stamped (id int, \
         token bigint GENERATED ALWAYS AS (fencegate.token('s')) STORED); ALTER FUNCTION fencegate.token STABLE",
        "DROP TABLE stamped",
        "column token of table public.stamped depends on function fencegate.token(text)",
        true,
    ),
    ("CREATE VIEW v AS SELECT fencegate.token('s')", "DROP VIEW v", "view public.v depends on", true),
    (
        "CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT fencegate.token('s'); END",
        "DROP FUNCTION f()",
        "function public.f() depends on",
        true,
    ),
    (
        "CREATE POLICY p ON ticks USING (token = fencegate.token('s'))",
        "DROP POLICY p ON ticks",
        "policy p on table public.ticks depends on",
        true,
    ),
    (
        "ALTER TABLE ticks ADD CONSTRAINT c CHECK (token = fencegate.token('s'))",
        "ALTER TABLE ticks DROP CONSTRAINT c",
        "constraint c on table public.ticks depends on",
        true,
    ),
    (
        "CREATE DOMAIN d AS bigint DEFAULT fencegate.token('s')",
        "DROP DOMAIN d",
        "type public.d depends on function fencegate.token(text)",
        true,
    ),
    (
        "CREATE RULE r AS ON INSERT TO shards DO ALSO SELECT fencegate.token('s')",
        "DROP RULE r ON shards",
        "rule r on table public.shards depends on",
        true,
    ),
    (
        "CREATE VIEW fences AS SELECT * FROM fencegate_state.epoch",
        "DROP VIEW fences",
        "view public.fences depends on table fencegate_state.epoch",
        false,
    ),
    (
        "CREATE TABLE noted (resource text REFERENCES fencegate_state.epoch)",
        "DROP TABLE noted",
        "constraint noted_resource_fkey on table public.noted depends on",
        false,
    ),
    (
        "CREATE TRIGGER own BEFORE INSERT ON ticks EXECUTE FUNCTION fencegate.guard()",
        "DROP TRIGGER own ON ticks",
        "trigger own on table public.ticks depends on function fencegate.guard()",
        false,
    ),
    (
        "CREATE TABLE fencegate.mine (id int)",
        "DROP TABLE fencegate.mine",
        "table fencegate.mine depends on schema fencegate",
        false,
    ),
    (
        "CREATE FUNCTION fencegate.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "DROP FUNCTION fencegate.mine()",
        "function fencegate.mine() depends on schema fencegate",
        false,
    ),
];

#[test]
fn dependents_are_named() {
    let postgres = prepared();
    for (create, undo, named, may_keep) in DEPENDENTS {
        postgres.sql(create);
        let error = refused(&postgres, "postgres", &[]);
        assert!(error.contains("nothing was removed") && error.contains(named), "{create}: {error}");
        assert_eq!(error.contains("--keep-token"), may_keep, "{create}: {error}");
        // All but the first line are dependents.
        assert!(
            error.lines().skip(1).all(|line| line.starts_with("  ") && !line.contains("fencegate_guard_")),
            "{error}"
        );
        postgres.sql(undo);
    }
    // Too many to read: the error lists some of them.
    postgres.sql("DO $$BEGIN FOR n IN 1..70 LOOP EXECUTE format('CREATE VIEW v%s AS SELECT fencegate.token(''s'')', n); END LOOP; END$$");
    let error = refused(&postgres, "postgres", &[]);
    assert!(error.lines().count() == 52 && error.ends_with("\n  20 more\n"), "{error}");
}

#[test]
fn a_column_default_can_keep_its_function() {
    let postgres = prepared();
    postgres.sql("ALTER TABLE ticks ALTER token SET DEFAULT fencegate.token('scheduler')");
    let error = refused(&postgres, "postgres", &[]);
    assert!(error.contains("default value for column token"), "{error}");
    // Other dependents still prevent the removal.
    postgres.sql("CREATE VIEW fences AS SELECT * FROM fencegate_state.epoch");
    let error = refused(&postgres, "postgres", &["--keep-token"]);
    assert!(error.contains("view public.fences") && !error.contains("token of table"), "{error}");
    postgres.sql("DROP VIEW fences");

    let report = removed(&postgres, &["--keep-token"]);
    assert!(
        report.contains("removed table fencegate_state.epoch\n") && !report.contains("removed schema fencegate\n"),
        "{report}"
    );
    let left = "SELECT string_agg(p.oid::regprocedure::text, ' ') || ' ' || (SELECT count(*) FROM pg_class \
        WHERE relnamespace = 'fencegate'::regnamespace) FROM pg_proc p WHERE pronamespace = 'fencegate'::regnamespace";
    assert_eq!(postgres.value(left), "fencegate.token(text) 0");
    let mut wire = Wire::login(&postgres.socket(), "leader", "postgres");
    ok(&mut wire, "SET lease.fence = 7");
    assert_eq!(ok(&mut wire, "SELECT fencegate.token('scheduler')"), [[Some("7".to_owned())]]);
    assert_eq!(removed(&postgres, &["--keep-token"]), NOTHING);

    let report = run(fencegate().args(["init", "--control", &control(&postgres, "postgres")])).stdout;
    assert!(
        report.starts_with(b"schema fencegate: created, owned by postgres"),
        "{}",
        String::from_utf8_lossy(&report)
    );
    removed(&postgres, &["--keep-token"]);
    postgres.sql("ALTER TABLE ticks ALTER token DROP DEFAULT");
    assert_eq!(removed(&postgres, &[]), "removed function fencegate.token(text)\nremoved schema fencegate\n");
}

#[test]
fn only_owners_may_remove_and_the_error_names_them() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    postgres.sql(
        "CREATE ROLE gate LOGIN; CREATE ROLE app LOGIN; CREATE ROLE boss LOGIN; GRANT gate TO boss; \
         ALTER TABLE ticks OWNER TO app; ALTER TABLE parts OWNER TO app; ALTER TABLE part OWNER TO app; ALTER TABLE shards OWNER TO app",
    );
    run(fencegate().args(["init", "--control", &control(&postgres, "postgres"), "--role", "gate"]));
    // Without event triggers, as on a managed server.
    for role in ["gate", "app"] {
        install(&postgres, role);
    }
    let error = refused(&postgres, "boss", &[]);
    assert!(
        error.contains("role boss may not remove all objects")
            && error.contains("app (owner of public.part and 3 more)"),
        "{error}"
    );
    assert!(!error.contains("gate ("), "{error}");
    let error = refused(&postgres, "app", &[]);
    assert!(error.contains("gate (owner of schema fencegate and 1 more)") && !error.contains("app ("), "{error}");
    postgres.sql("GRANT app TO boss; REVOKE pg_read_all_stats FROM gate");
    let error = refused(&postgres, "boss", &[]);
    assert!(error.contains("role boss cannot see whether a proxy uses the database"), "{error}");
    postgres.sql("GRANT pg_read_all_stats TO gate; COMMENT ON SCHEMA fencegate IS 'fencegate schema version 99'");
    let error = refused(&postgres, "boss", &[]);
    assert!(error.contains("fencegate schema version 99, which is newer than this program"), "{error}");
    postgres.sql("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 1'");
    let output = remove_as(&postgres, "boss", &[]);
    assert!(output.status.success() && stdout(&output).contains("removed schema fencegate"), "{output:?}");
    let output = fencegate().args(["remove", "--control", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_proxy_is_not_taken_for_the_server_to_remove_from() {
    let world = Fenced::start(SCHEMA, "version: 1\nresources: []\n");
    let (host, port) = world.proxy.address().host_and_port();
    let output =
        fencegate().args(["remove", "--control", &format!("postgres://postgres@{host}:{port}/postgres")]).output();
    let output = output.unwrap();
    assert!(output.status.code() == Some(1) && stderr(&output).contains("this is a fencegate"), "{output:?}");
    assert_eq!(world.postgres.value("SELECT to_regclass('fencegate_state.epoch') IS NULL"), "f");
}

#[test]
fn remove_waits_briefly_for_locks() {
    let postgres = prepared();
    let mut reader = Wire::login(&postgres.socket(), "postgres", "postgres");
    ok(&mut reader, "BEGIN; SELECT FROM ticks");
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| remove(&postgres, &[]));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        wait_until("it waits", DEADLINE, || postgres.value(waits) == "1");
        ok(&mut reader, "COMMIT");
        let output = removal.join().unwrap();
        assert!(output.status.success(), "{output:?}");
    });
    init(&postgres, "postgres");
    let process = ticks::process(&mut reader);
    ok(&mut reader, "BEGIN; SELECT FROM fencegate_state.epoch");
    let error = refused(&postgres, "postgres", &[]);
    assert!(error.contains(&format!("which are locked by process {process}, idle in transaction")), "{error}");
    ok(&mut reader, "COMMIT");
}

/// In any order, the database has the whole schema or nothing.
#[test]
fn it_runs_beside_init() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    let all = "8|fencegate schema version";
    let state = || {
        postgres.value(
            "SELECT concat((SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('fencegate_state') AND relkind = 'r'), \
             '|', left(obj_description(to_regnamespace('fencegate'), 'pg_namespace'), 24))",
        )
    };
    for _ in 0..4 {
        std::thread::scope(|scope| {
            let removals = [0; 2].map(|_| scope.spawn(|| remove(&postgres, &[])));
            let inits = [0; 2].map(|_| {
                scope.spawn(|| {
                    fencegate().args(["init", "--control", &control(&postgres, "postgres")]).output().unwrap()
                })
            });
            for thread in removals.into_iter().chain(inits) {
                let output = thread.join().unwrap();
                assert!(output.status.success(), "{output:?}");
            }
        });
        assert!([all, "0|"].contains(&state().as_str()), "{}", state());
    }
    removed(&postgres, &[]);
    assert_eq!(state(), "0|");
}
