//! Unqualified names that the search path resolves to fencegate's own objects are refused, like qualified ones. Tables
//! of the same names in other schemas belong to the application.

use super::extended;
use crate::guard::world::{guard, policy_folder};
use crate::support::fenced::{Fenced, code, code_in, init, ok};
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::postgres::SUPERUSER;
use crate::support::wire::error_in;
use crate::support::{Options, Postgres, ProxyOptions, Release, Wire};
use fencegate_statement::{Encoding, Lexing, OWN_SCHEMAS, ServerEncoding, analyze};

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const DELETE: &str = "DELETE FROM epoch";

/// Fencegate's schemas in this version and in others.
fn own() -> String {
    OWN_SCHEMAS.join(", ")
}

fn start(release: Release, policies: &str) -> Fenced {
    let schema = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); CREATE ROLE fencegate_state SUPERUSER; \
        CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
        CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS \
            $$BEGIN PERFORM set_config('search_path', 'fencegate_state, fencegate', false); RETURN NULL; END$$; \
        CREATE TABLE watched (n int); CREATE TRIGGER t AFTER INSERT ON watched EXECUTE FUNCTION leave()";
    Fenced::start_with(Options::default().release(release), schema, &ProxyOptions::default().policies(policies))
}

#[test]
fn a_superuser_does_not_take_the_fence_away() {
    let world = start(Release::Installed, POLICIES);
    let mut leader = world.holder(200);
    ok(&mut leader, "INSERT INTO jobs VALUES (200)");
    drop(leader);
    let mut superuser = world.login();
    ok(&mut superuser, &format!("SET search_path = {}", own()));
    for sql in ["DELETE FROM epoch", "DELETE FROM admission", "NOTIFY fencegate, 'scheduler'"] {
        superuser.query(sql);
    }
    // A new proxy has no token in memory.
    let control = ProxyOptions::default().policies(POLICIES);
    let other = crate::support::Proxy::start_with(&world.postgres, &control);
    let mut stale = Wire::login(&other.address(), SUPERUSER, "postgres");
    ok(&mut stale, "SET lease.fence = 100");
    assert_eq!(code(&mut stale, "INSERT INTO jobs VALUES (100)"), "LF001");
    assert_eq!(world.postgres.value("SELECT string_agg(n::text, ' ') FROM jobs"), "200");
}

/// `{}` stands for the schema and its dot, or for nothing.
const STATEMENTS: [&str; 34] = [
    "DELETE FROM {}epoch",
    "DELETE FROM ONLY {}\"admission\" AS a WHERE a.pid = 1",
    "UPDATE {}epoch SET token = 1",
    "INSERT INTO {}admission DEFAULT VALUES",
    "INSERT INTO {}epoch VALUES ('scheduler') ON CONFLICT DO NOTHING",
    "MERGE INTO {}epoch e USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
    "WITH d AS (DELETE FROM {}epoch RETURNING 1) SELECT * FROM d",
    "COPY {}epoch FROM STDIN",
    "TRUNCATE {}epoch",
    "TRUNCATE free, {}admission",
    "LOCK TABLE {}epoch",
    "SELECT FROM {}epoch FOR UPDATE",
    "DECLARE c CURSOR FOR SELECT FROM {}epoch FOR UPDATE",
    "EXPLAIN ANALYZE DELETE FROM {}epoch",
    "ALTER TABLE {}epoch ADD COLUMN more int",
    "ALTER TABLE {}lease RENAME TO other",
    "ALTER TABLE {}epoch SET SCHEMA public",
    "ALTER TABLE {}epoch OWNER TO fencegate_state",
    "ALTER INDEX {}epoch_pkey RENAME TO other",
    "DROP TABLE {}epoch",
    "DROP INDEX {}admission_epoch",
    "DROP TYPE {}epoch",
    "DROP SEQUENCE {}lease_token",
    "ALTER SEQUENCE {}lease_token RESTART",
    "CREATE RULE r AS ON INSERT TO {}epoch DO INSTEAD NOTHING",
    "CREATE RULE r AS ON INSERT TO free DO ALSO DELETE FROM {}epoch",
    "CREATE TRIGGER t AFTER INSERT ON {}epoch EXECUTE FUNCTION nothing()",
    "DROP TRIGGER receive_epoch ON {}epoch",
    "CREATE TABLE child (resource text REFERENCES {}epoch)",
    "CREATE TABLE child () INHERITS ({}epoch)",
    "CREATE OR REPLACE FUNCTION {}token(resource text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "ALTER FUNCTION {}token(text) RENAME TO other",
    "ALTER FUNCTION {}token(text) VOLATILE",
    "DROP FUNCTION {}token",
];

#[test]
fn a_name_by_the_path_is_refused_as_with_its_schema() {
    let world = start(Release::Installed, POLICIES);
    for sql in STATEMENTS {
        for schema in OWN_SCHEMAS {
            let qualified = sql.replace("{}", &format!("{schema}."));
            let mut wire = world.login();
            assert_eq!(code(&mut wire, &format!("BEGIN; {qualified}")), "LF004", "{qualified}");

            let bare = sql.replace("{}", "");
            let mut wire = world.login();
            ok(&mut wire, &format!("SET search_path = public, {schema}"));
            assert_eq!(code(&mut wire, &format!("BEGIN; {bare}")), "LF004", "{bare} in {schema}");
        }
        let bare = sql.replace("{}", "");
        let mut wire = world.login();
        ok(&mut wire, &format!("SET search_path = public, {}", own()));
        ok(&mut wire, "BEGIN");
        assert_eq!(extended(&mut wire, &bare), "LF004", "{bare}");
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM pg_class WHERE relname = 'epoch'"), "1");
}

/// Messages. The proxy refuses the last one.
const ROUTES: [&[&str]; 19] = [
    &["SET search_path = fencegate_state, fencegate", DELETE],
    &["SET search_path = public, \"fencegate_state\"", DELETE],
    &["SET SCHEMA 'fencegate_state'", DELETE],
    &["BEGIN; SET LOCAL search_path = FenceGate_State", DELETE],
    &["BEGIN", "SET LOCAL search_path = fencegate_state", DELETE],
    &["SELECT set_config('search_' || 'path', 'fencegate_state', false)", DELETE],
    &["SET search_path = fencegate_state; DELETE FROM epoch"],
    &["SELECT set_config('search_' || 'path', 'fencegate_state', false); DELETE FROM epoch"],
    &[
        "BEGIN; SET search_path = fencegate_state",
        "SAVEPOINT s; SET search_path = public",
        "ROLLBACK TO s; DELETE FROM epoch",
    ],
    &["BEGIN; SET search_path = fencegate_state", "SAVEPOINT s; SET search_path = public", "ROLLBACK TO s", DELETE],
    &["PREPARE p AS DELETE FROM epoch", "SET search_path = fencegate_state", "EXECUTE p"],
    &["PREPARE p AS DELETE FROM epoch", "SET search_path = fencegate_state; EXECUTE p"],
    &["PREPARE p AS SELECT set_config('search_path', 'fencegate_state', false)", "EXECUTE p", DELETE],
    &["PREPARE p AS SELECT set_config('search_path', 'fencegate_state', false)", "EXECUTE p; DELETE FROM epoch"],
    &["SET search_path = public", "INSERT INTO watched VALUES (1)", DELETE],
    &["SET ROLE fencegate_state", DELETE],
    &["SELECT set_config('role', 'fencegate_state', false); DELETE FROM epoch"],
    &["SELECT set_config('search_path', 'fencegate_state', false); DELETE FROM epoch"],
    &["SET ROLE fencegate_state; DELETE FROM epoch"],
];

fn every_route(release: Release) {
    let world = start(release, POLICIES);
    world.postgres.sql("CREATE TABLE public.epoch (n int)");
    for route in ROUTES {
        for in_extended in [false, true] {
            let mut wire = world.login();
            let (last, before) = route.split_last().unwrap();
            for sql in before {
                ok(&mut wire, sql);
            }
            if in_extended && last.contains(';') {
                continue;
            }
            let run = if in_extended { extended } else { code };
            assert_eq!(run(&mut wire, last), "LF004", "{route:?}");
        }
    }
    // A statement prepared through the protocol is resolved when it is bound. A statement in progress may set the path.
    let mut wire = world.login();
    assert_eq!(code_in(&wire.exchange(&[parse("p", DELETE, &[]), sync()].concat())), "");
    let run = [bind_text("", "p", &[]), execute("", 0), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&run)), "", "the name means the application's table");
    let set = [parse("", "SET search_path = fencegate_state", &[]), bind_text("", "", &[]), execute("", 0)].concat();
    assert_eq!(code_in(&wire.exchange(&[set, run].concat())), "LF004");
    // The path is set at the start of the session.
    world.postgres.sql("CREATE ROLE lost SUPERUSER LOGIN; ALTER ROLE lost SET search_path = fencegate_state");
    assert_eq!(code(&mut world.login_as("lost"), DELETE), "LF004");
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let options = [("user", SUPERUSER), ("database", "postgres"), ("options", "-c search_path=fencegate_state")];
    assert_eq!(error_in(&wire.start(&options, "")), None);
    assert_eq!(extended(&mut wire, DELETE), "LF004");
    assert!(error_in(&wire.query(DELETE)).unwrap().hint().contains("search_path"));
}

#[test]
fn every_route_to_such_a_path_is_seen() {
    every_route(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn every_route_to_such_a_path_is_seen_on_18() {
    every_route(Release::Eighteen);
}

/// The application's tables and functions may have the names of fencegate's.
fn of_the_application(release: Release) {
    let policies = POLICIES.to_owned() + "  - {name: epochs, tables: [public.epoch]}\n";
    let world = start(release, &policies);
    world
        .postgres
        .sql("CREATE TABLE public.epoch (n int); CREATE TABLE public.lease (n int); CREATE ROLE own SUPERUSER LOGIN");
    let long = (0..20).map(|number| format!("s{number}, ")).collect::<String>() + "public";
    for path in ["public", "\"$user\", public", "\"Größe\", public", "fencegates, public", &long] {
        for user in [SUPERUSER, "own"] {
            let mut wire = world.login_as(user);
            ok(&mut wire, &format!("SET search_path = {path}"));
            assert_eq!(code(&mut wire, "INSERT INTO epoch VALUES (1)"), "LF002", "{path}");
            ok(&mut wire, "SET lease.fence = 5");
            for sql in [
                "INSERT INTO epoch VALUES (1)",
                "UPDATE lease SET n = 2",
                "DELETE FROM lease",
                "TRUNCATE lease",
                "ALTER TABLE lease ADD COLUMN IF NOT EXISTS more int",
                "CREATE OR REPLACE FUNCTION token(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
                "EXPLAIN ANALYZE DELETE FROM lease",
            ] {
                assert_eq!(code(&mut wire, sql), "", "{sql} by {path}");
                assert_eq!(extended(&mut wire, sql), "", "{sql} by {path}");
            }
            ok(&mut wire, "BEGIN; INSERT INTO epoch VALUES (2); UPDATE lease SET n = 2; COMMIT");
            ok(&mut wire, "PREPARE p AS DELETE FROM lease; EXECUTE p");
        }
    }
}

#[test]
fn tables_of_the_application_with_such_names_go_on() {
    of_the_application(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn tables_of_the_application_with_such_names_go_on_on_18() {
    of_the_application(Release::Eighteen);
}

/// As with qualified names: these roles are trusted to keep the fence.
#[test]
fn exempt_roles_and_unfenced_databases_may_use_such_names() {
    let exempt = POLICIES.to_owned() + &format!("exempt_roles: [{SUPERUSER}]\n");
    for policies in [exempt, POLICIES.to_owned() + "opaque: allow\n"] {
        let world = start(Release::Installed, &policies);
        let mut wire = world.login();
        ok(&mut wire, &format!("SET search_path = {}", own()));
        ok(&mut wire, "DELETE FROM epoch");
        ok(&mut wire, "DELETE FROM admission");
    }
}

#[test]
fn the_proxy_knows_the_names_of_all_objects_in_fencegates_schemas() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (n int)");
    init(&postgres, "postgres");
    let folder = policy_folder("the_proxy_knows_the_names", POLICIES);
    let output = guard("install", &format!("{}postgres", postgres.control_url()), Some(&folder));
    assert!(output.status.success(), "{output:?}");
    let names = |sql: &str| {
        let schemas = OWN_SCHEMAS.map(|schema| format!("'{schema}'")).join(", ");
        let all = postgres.value(&format!(
            "SELECT coalesce(string_agg(DISTINCT name, ' '), '') FROM ({sql} IN ({schemas})) AS found (name)"
        ));
        all.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let lexing = Lexing {
        standard_conforming_strings: true,
        encoding: Encoding::Utf8,
        server: ServerEncoding::Utf8,
        release: 18,
    };
    let is_seen = |sql: &str| analyze(sql.as_bytes(), lexing).unwrap().statements[0].own_by_path;
    let relations = names(
        "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind <> 'c' AND nspname",
    );
    let functions = names("SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname");
    assert!(relations.len() > 8 && functions.len() > 20, "{relations:?} {functions:?}");
    for name in relations {
        assert!(is_seen(&format!("ALTER TABLE {name} RENAME TO other")), "{name}");
    }
    for name in functions {
        assert!(is_seen(&format!("DROP FUNCTION {name}")), "{name}");
    }
    assert!(!is_seen("ALTER TABLE jobs RENAME TO other") && !is_seen("DELETE FROM public.epoch"));
}
