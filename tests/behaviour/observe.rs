//! A fence in observe mode reports every statement that it would reject when enforced.

use crate::logs::line::{assert_fields, event, events};
use crate::metrics::page::{get, samples, sum};
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{function_call, query};
use crate::support::programs;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); CREATE TABLE bills (n int); \
    CREATE SCHEMA side; CREATE TABLE side.t (n int); CREATE VIEW work AS TABLE jobs; \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'; \
    CREATE PROCEDURE p() LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'";
const OBSERVED: &str = "version: 1\nresources:\n  - {name: scheduler, mode: observe, tables: [public.jobs], functions: [public.run_tick]}\n";

/// Statements to prepare a session, statements that an enforcing fence then rejects, and the SQLSTATE. All run in a
/// transaction that is rolled back.
const REJECTED: [(&str, &str, &str); 12] = [
    ("", "INSERT INTO jobs VALUES (1)", "LF002"),
    ("", "INSERT INTO work VALUES (1)", "LF002"),
    ("", "SELECT run_tick()", "LF002"),
    ("", "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$", "LF004"),
    ("", "CALL p()", "LF004"),
    ("", "DROP SCHEMA side CASCADE", "LF004"),
    ("", "CREATE SCHEMA more; DROP SCHEMA more CASCADE", "LF004"),
    ("CREATE VIEW fresh AS TABLE jobs", "INSERT INTO free VALUES (1)", "LF004"),
    ("SET lease.fence = 5", "INSERT INTO jobs VALUES (1)", "LF001"),
    ("SET lease.fence = 7", "INSERT INTO jobs VALUES (1); SET lease.fence = 8; DELETE FROM jobs", "LF003"),
    ("SET lease.fence = 7; INSERT INTO jobs VALUES (1)", "SET lease.fence = 8; DELETE FROM jobs", "LF003"),
    ("SET lease.fence = 7; INSERT INTO jobs VALUES (1)", "PREPARE TRANSACTION 'a'", "LF004"),
];

fn start(policies: &str) -> Fenced {
    let arguments = ["--http", "127.0.0.1:0", "--log-format", "json"];
    let options = ProxyOptions::default().policies(policies).arguments(&arguments);
    let server = Options::default().setting("max_prepared_transactions", "5");
    let world = Fenced::start_with(server, SCHEMA, &options);
    // An observing fence waits only briefly for its tables to become known, and then statements pass unobserved.
    let _first = world.login();
    world.proxy.wait_for_log("fence_observed", DEADLINE);
    world
}

fn observed(world: &Fenced) -> f64 {
    let address = http_address_in_json(world);
    let samples = samples(&get(address, "/metrics").body);
    let all = sum(&samples, "fencegate_writes_total", &[("mode", "observe")]);
    all - sum(&samples, "fencegate_writes_total", &[("mode", "observe"), ("verdict", "admitted")])
}

fn http_address_in_json(world: &Fenced) -> std::net::SocketAddr {
    event(|| world.proxy.log(), "metrics_served")["address"].parse().unwrap()
}

fn told(world: &Fenced) -> usize {
    let log = world.proxy.log();
    ["write_would_be_rejected", "stale_write_observed"].iter().map(|event| events(&log, event).len()).sum()
}

/// The code of the first error in the reply.
fn run(world: &Fenced, before: &str, statements: &str) -> String {
    let mut wire = world.login();
    ok(&mut wire, "BEGIN");
    if !before.is_empty() {
        ok(&mut wire, before);
    }
    let found = code(&mut wire, statements);
    wire.query("ROLLBACK");
    if statements.starts_with("PREPARE") && found.is_empty() {
        ok(&mut wire, "ROLLBACK PREPARED 'a'");
    }
    found
}

#[test]
fn observe_reports_everything_that_enforce_rejects() {
    let mut world = start(OBSERVED);
    ok(&mut world.holder(7), "INSERT INTO jobs VALUES (1)");
    wait_until("the token is recorded", DEADLINE, || {
        world.postgres.value("SELECT token FROM fencegate_state.epoch") == "7"
    });
    for (before, statements, _) in REJECTED {
        let (counted, lines) = (observed(&world), told(&world));
        assert_eq!(run(&world, before, statements), "", "{statements}");
        wait_until(format!("it is counted and logged: {statements}"), DEADLINE, || {
            observed(&world) > counted && told(&world) > lines
        });
    }
    // Statements on unfenced tables are not counted, once the catalog has been read again.
    wait_until("nothing is counted", DEADLINE, || {
        let before = observed(&world);
        for statement in ["SELECT 1", "INSERT INTO free VALUES (1)", "TABLE jobs", "CREATE TABLE more (n int)"] {
            assert_eq!(run(&world, "", statement), "", "{statement}");
        }
        observed(&world) == before
    });

    world.proxy.write_policies(&OBSERVED.replace("mode: observe", "mode: enforce"));
    world.proxy.sighup();
    wait_until("the fence is enforced", DEADLINE, || code(&mut world.login(), "DELETE FROM jobs") == "LF002");
    for (before, statements, expected) in REJECTED {
        assert_eq!(run(&world, before, statements), expected, "{statements}");
    }
}

/// If fences have different modes, the enforcing ones with tables in this database decide on opaque statements.
#[test]
fn fences_of_several_modes() {
    let policies = format!("{OBSERVED}  - {{name: billing, tables: [public.bills]}}\n");
    let world = start(&policies);
    assert_eq!(run(&world, "", "CALL p()"), "LF004");
    assert_eq!(observed(&world), 0.0);
    ok(&mut world.holder(7), "DROP TABLE bills");
    wait_until("the enforcing fence has no table left", DEADLINE, || run(&world, "", "CALL p()").is_empty());
    assert!(observed(&world) >= 1.0);

    let world = start(&(policies + "opaque: require_token\n"));
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 'billing=3'; DELETE FROM bills");
    ok(&mut wire, "CALL p()");
    let missing = event(|| world.proxy.log(), "write_would_be_rejected");
    assert_fields(&missing, &[("resource", "scheduler"), ("verdict", "missing"), ("statement", "CALL")]);
    // An opaque statement raises no token. Enforced, a token that is not yet in force would cause LF004.
    ok(&mut wire, "SET lease.fence = 'billing=3, scheduler=4'");
    ok(&mut wire, "CALL p()");
    wait_until("it is logged", DEADLINE, || {
        events(&world.proxy.log(), "write_would_be_rejected").iter().any(|line| line["verdict"] == "unverifiable")
    });
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch WHERE resource = 'scheduler'"), "0");
}

#[test]
fn calls_of_the_fast_path_and_unknown_names() {
    let world = start(OBSERVED);
    let mut wire = world.login();
    let oid = world.postgres.value("SELECT 'run_tick'::regproc::oid").parse().unwrap();
    assert_eq!(code_in(&wire.exchange(&function_call(oid, &[]))), "");
    assert_eq!(code_in(&wire.exchange(&query("EXECUTE nobody_made_it"))), "26000");
    assert_eq!(observed(&world), 2.0);
}

#[test]
fn logical_replication_passes_a_fence_that_observes() {
    let world = start(OBSERVED);
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let frames = wire.start(&[("user", "postgres"), ("database", "postgres"), ("replication", "database")], "");
    assert_eq!(code_in(&frames), "");
    ok(&mut wire, "IDENTIFY_SYSTEM");
    assert_eq!(observed(&world), 1.0);
}

/// The control role may not terminate a superuser's session. An enforcing fence would return LF006 for every token.
#[test]
fn sessions_that_could_not_be_admitted() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE warden LOGIN; CREATE TABLE jobs (n int)");
    let control = postgres.control_url();
    let database = format!("{control}postgres");
    programs::run(fencegate().args(["init", "--control", &database, "--role", "warden"]));
    let options = ProxyOptions::default()
        .policies("version: 1\nresources:\n  - {name: scheduler, mode: observe, tables: [public.jobs]}\n")
        .control(&control.replace("postgres@", "warden@"))
        .arguments(&["--log-format", "json"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut wire, "SET lease.fence = 7; INSERT INTO jobs VALUES (1)");
    let told = event(|| proxy.log(), "write_not_observed");
    assert_fields(&told, &[("verdict", "unavailable"), ("code", "LF006"), ("user", "postgres"), ("presented", "7")]);
    assert!(told["reason"].contains("needs a superuser as control role"), "{told:?}");
}

#[test]
fn the_writer_is_reported() {
    let world = start(OBSERVED);
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let names = [("user", "postgres"), ("database", "postgres"), ("application_name", "billing run")];
    wire.start(&names, "");
    ok(&mut wire, "INSERT INTO public.work VALUES (1)");
    let told = event(|| world.proxy.log(), "write_would_be_rejected");
    let who = [("user", "postgres"), ("database", "postgres"), ("application_name", "billing run")];
    assert_fields(&told, &who);
    let what = [("resource", "scheduler"), ("verdict", "missing"), ("code", "LF002"), ("statement", "INSERT")];
    assert_fields(&told, &what);
    assert_fields(&told, &[("table", "public.work"), ("reaches", "public.jobs")]);
    assert!(told["address"].starts_with("127.0.0.1:") && told.contains_key("session"), "{told:?}");
    ok(&mut wire, "SELECT run_tick()");
    let of_call =
        || events(&world.proxy.log(), "write_would_be_rejected").into_iter().find(|it| it["statement"] == "SELECT");
    wait_until("the call is logged", DEADLINE, || of_call().is_some());
    assert_fields(&of_call().unwrap(), &[("reaches", "run_tick()")]);
    // A direct write has no `reaches`.
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    let direct = events(&world.proxy.log(), "write_would_be_rejected").pop().unwrap();
    assert!(!direct.contains_key("reaches") && direct["table"] == "jobs", "{direct:?}");

    let mut console = Wire::login(&world.proxy.address(), "postgres", "fencegate");
    let shown = ok(&mut console, "SHOW REJECTIONS");
    assert_eq!(shown.len(), 3);
    let last = shown[0].iter().map(|value| value.as_deref().unwrap_or("-")).collect::<Vec<_>>();
    assert_eq!(last[2..].join(" "), "postgres postgres scheduler missing LF002 - - INSERT jobs observe");
}
