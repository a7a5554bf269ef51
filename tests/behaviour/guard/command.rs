//! `fencegate guard`: install, status and remove.

use super::world::{LEVELS, POLICIES, World, attempt, guard, policy_folder};
use crate::support::fenced::ok;
use crate::support::postgres::Options;
use crate::support::ticks;
use crate::support::{DEADLINE, Postgres, Release, Wire, wait_until};
use std::process::Output;

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The lines of `status` with problems, reduced to their first and third word. The output must not depend on the role.
fn complaints(world: &World) -> Vec<String> {
    let output = world.try_guard("status");
    let asked_by_others = guard("status", &world.control("reader"), Some(&world.folder));
    assert_eq!((stdout(&asked_by_others), asked_by_others.status), (stdout(&output), output.status));
    let complaints: Vec<String> = stdout(&output)
        .lines()
        .skip(1)
        .filter(|line| !line.contains("  ok") && !line.contains("  none"))
        .map(|line| {
            let state =
                ["missing", "changed", "disabled"].into_iter().find(|state| line.contains(&format!("  {state}")));
            format!("{} {}", line.split("  ").next().unwrap(), state.unwrap_or("?"))
        })
        .collect();
    assert_eq!(output.status.code(), Some(i32::from(!complaints.is_empty())), "{output:?}");
    assert_eq!(stderr(&output).contains("run `fencegate guard install`"), !complaints.is_empty(), "{output:?}");
    complaints
}

#[test]
fn install_is_idempotent() {
    let world = World::start("install_is_idempotent");
    // A resource with this name has a different lock.
    let mut other = world.around(5);
    ok(&mut other, "SELECT pg_advisory_lock(hashtextextended('fencegate:init', 0))");
    assert_eq!(complaints(&world), [""; 0]);
    let table = "\
TABLE             RESOURCE   GUARD  DIFFERENCE
public.owned      scheduler  ok
public.part       scheduler  ok
public.parts      scheduler  ok
public.ticks      scheduler  ok
(functions)                  ok
(event triggers)             ok
";
    assert_eq!(stdout(&world.guard("status")), table);
    assert_eq!(stdout(&world.guard("install")), "guard: 16 triggers on 4 tables, up to date\n");

    // The guard is removed from tables that the policies no longer fence.
    let less = "version: 1\nresources: [{name: scheduler, tables: [public.ticks]}]\n";
    world.load(less);
    assert_eq!(complaints(&world), ["public.owned changed", "public.part changed", "public.parts changed"]);
    let released = ["owned", "part", "parts"]
        .map(|table| format!("removed the guard from public.{table}: the policies no longer fence it\n"));
    let expected = format!("guard: 4 triggers on 1 table, 9 changes\n{}", released.concat());
    assert_eq!(stdout(&world.guard("install")), expected);
    assert_eq!(complaints(&world), [""; 0]);

    let removed = stdout(&world.guard("remove"));
    assert_eq!(removed.lines().count(), 4 + 2 + 7, "{removed}");
    assert_eq!(
        world.postgres.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'fencegate%'"),
        "0"
    );
    assert_eq!(stdout(&world.guard("remove")), "no guard to remove\n");
    assert_eq!(complaints(&world), ["public.ticks missing", "(functions) missing"]);
    assert_eq!(stdout(&world.guard("install")), "guard: 4 triggers on 1 table, 10 changes\n");
}

#[test]
fn status_detects_differences() {
    let world = World::start("status_detects_differences");
    let trigger = |table: &str, kind: &str| {
        world.postgres.value(&format!(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname LIKE '%_{kind}'"
        ))
    };
    let [statement, insert, replica] = ["statement", "insert", "replica"].map(|kind| trigger("ticks", kind));
    let function =
        "CREATE OR REPLACE FUNCTION fencegate.guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'";
    for (sql, expected) in [
        (format!("ALTER TABLE ticks DISABLE TRIGGER {statement}"), "public.ticks disabled"),
        (format!("ALTER TABLE ticks ENABLE TRIGGER {statement}"), "public.ticks disabled"),
        (format!("ALTER TABLE ticks ENABLE REPLICA TRIGGER {insert}"), "public.ticks disabled"),
        (format!("ALTER TABLE ticks ENABLE TRIGGER {replica}"), "public.ticks disabled"),
        (format!("ALTER TABLE ticks ENABLE ALWAYS TRIGGER {replica}"), "public.ticks changed"),
        (format!("ALTER TABLE part DISABLE TRIGGER {}", trigger("part", "insert")), "public.part disabled"),
        (format!("DROP TRIGGER {insert} ON ticks"), "public.ticks missing"),
        (format!("DROP TRIGGER {insert} ON ticks; CREATE TRIGGER {insert} AFTER INSERT ON ticks EXECUTE FUNCTION fencegate.guard('observe')"), "public.ticks changed"),
        ("CREATE TRIGGER fencegate_guard_other AFTER INSERT ON elsewhere EXECUTE FUNCTION fencegate.guard('observe')".into(), "public.elsewhere changed"),
        (function.into(), "(functions) changed"),
        ("ALTER SCHEMA fencegate OWNER TO reader".into(), "(functions) changed"),
        ("ALTER FUNCTION fencegate.check_write(text, text, boolean) RESET search_path".into(), "(functions) changed"),
        ("ALTER EVENT TRIGGER fencegate_guard_drop DISABLE".into(), "(event triggers) disabled"),
        ("DROP EVENT TRIGGER fencegate_guard_drop".into(), "(event triggers) missing"),
        ("DROP EVENT TRIGGER fencegate_guard_drop; DROP EVENT TRIGGER fencegate_guard_definition".into(), "(event triggers) missing"),
        ("CREATE OR REPLACE FUNCTION fencegate.notice_definition() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'".into(), "(event triggers) changed"),
        ("REVOKE USAGE ON SCHEMA fencegate FROM PUBLIC".into(), "(functions) disabled"),
        ("REVOKE EXECUTE ON FUNCTION fencegate.check_write(text, text, boolean) FROM PUBLIC".into(), "(functions) disabled"),
    ] {
        world.postgres.sql(&sql);
        assert_eq!(complaints(&world), [expected], "{sql}");
        assert!(!stdout(&world.guard("install")).contains("up to date"), "{sql}");
        assert_eq!(complaints(&world), [""; 0], "{sql}");
    }
}

#[test]
fn status_reports_differences() {
    let world = World::start("status_reports_differences");
    let other = POLICIES.to_owned() + "exempt_roles: [reader]\n";
    std::fs::write(world.folder.join("policies.yaml"), other).unwrap();
    let status = stdout(&world.try_guard("status"));
    let line = status.lines().find(|line| line.starts_with("public.ticks ")).unwrap();
    assert!(line.contains("_statement has '') instead of '', 'reader')"), "{line}");
    assert!(!line.contains("CREATE TRIGGER"), "{line}");
}

/// A leader that locks the tables in another order is not terminated as a deadlock victim.
#[test]
fn during_concurrent_writes() {
    let world = World::start("during_concurrent_writes");
    let mut holder = world.around(5);
    let process = ticks::process(&mut holder);
    for what in ["remove", "install"] {
        ok(&mut holder, "BEGIN; DELETE FROM owned WHERE id = 1");
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| world.guard(what));
            wait_until(what, DEADLINE, || {
                world.postgres.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1"
            });
            ok(&mut holder, "DELETE FROM parts");
            ok(&mut holder, "DELETE FROM ticks");
            ok(&mut holder, "COMMIT");
            changed.join().unwrap();
        });
    }
    assert_eq!(complaints(&world), [""; 0]);

    world.guard("remove");
    ok(&mut holder, "BEGIN; INSERT INTO part VALUES (1, 'held')");
    let output = world.try_guard("install");
    assert_eq!(output.status.code(), Some(1));
    let said = format!("which are locked by process {process}, idle in transaction, query: BEGIN; INSERT INTO part");
    assert!(stderr(&output).contains(&said), "{output:?}");
    ok(&mut holder, "COMMIT");
}

#[test]
fn tables_that_cannot_be_guarded() {
    let policies = "version: 1\nresources: [{name: r, tables: [public.absent, public.seen, public.ticks]}]\n";
    let folder = policy_folder("tables_that_cannot_be_guarded", policies);
    let postgres = Postgres::start(Options::default());
    let control = format!("{}postgres", postgres.control_url());
    let output = guard("install", &control, Some(&folder));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "fencegate: database postgres has no fencegate schema: run `fencegate init` first\n");

    postgres.sql("CREATE ROLE control LOGIN");
    ticks::init(&postgres, "control");
    postgres.sql("CREATE VIEW seen AS SELECT 1 AS one");
    let output = guard("install", &control, Some(&folder));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stderr(&output).contains("warning: table public.absent of resource r does not exist"), "{output:?}");
    assert!(stderr(&output).contains("warning: public.seen of resource r is not a table"), "{output:?}");

    std::fs::write(folder.join("policies.yaml"), "version: 1\nnonsense: 1\n").unwrap();
    let output = guard("install", &control, Some(&folder));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("policies.yaml:2:1: "), "{output:?}");
}

/// Other proxies are notified of a definition that bypasses the proxies, unless it is temporary.
#[test]
fn definitions_are_announced() {
    let world = World::start("definitions_are_announced");
    let mut listener = world.around(5);
    ok(&mut listener, "LISTEN fencegate");
    let heard = |listener: &mut Wire, sql: &str| {
        world.postgres.sql(sql);
        listener
            .query("SELECT 1")
            .iter()
            .any(|frame| frame.tag == b'A' && frame.body.windows(11).any(|part| part == b"{catalogue}"))
    };
    assert!(heard(&mut listener, "CREATE TABLE fresh (id int)"));
    assert!(heard(&mut listener, "DROP TABLE fresh"));
    assert!(!heard(&mut listener, "CREATE TEMP TABLE fresh (id int); DROP TABLE fresh"));
}

/// PostgreSQL 18 prints triggers, and clones them to partitions, in the same way.
#[test]
#[ignore = "needs what comes from the network: make soak"]
fn on_postgres_18() {
    let options = Options::default().release(Release::Eighteen);
    let world = World::start_with("on_postgres_18", POLICIES, options);
    assert_eq!(complaints(&world), [""; 0]);
    assert_eq!(stdout(&world.guard("install")), "guard: 16 triggers on 4 tables, up to date\n");
    for level in LEVELS {
        assert_eq!(attempt(&mut world.around(4), level, &["INSERT INTO part VALUES (1, '')"]), "LF001");
        assert_eq!(attempt(&mut world.session(5), level, &["SELECT unnamed()"]), "");
    }
}
