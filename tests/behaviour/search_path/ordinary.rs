//! The cost: the proxy does not query a session's path if the path does not matter, nor before each statement.

use crate::support::fenced::{Fenced, ok};
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::{Options, ProxyOptions, Release, Wire};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE SCHEMA tenant; CREATE TABLE tenant.jobs (n int); \
    CREATE FUNCTION f() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1'";
const POLICY: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

fn start(release: Release) -> Fenced {
    let options = Options::default().release(release).setting("log_statement", "all");
    Fenced::start_with(options, SCHEMA, &ProxyOptions::default().policies(POLICY))
}

/// Number of queries for the path so far.
fn asked(world: &Fenced) -> usize {
    world.postgres.log().matches("SHOW search_path").count()
}

fn write(wire: &mut Wire) {
    ok(wire, "INSERT INTO jobs VALUES (1)");
    wire.exchange(&[parse("", "UPDATE jobs SET n = 2", &[]), sync()].concat());
    // The unnamed statement still exists.
    let frames = wire.exchange(&[bind_text("", "", &[]), execute("", 0), sync()].concat());
    assert!(frames.iter().all(|frame| frame.tag != b'E'), "{frames:?}");
}

#[test]
fn a_session_with_the_fenced_table_in_its_path_is_not_queried() {
    let world = start(Release::Installed);
    for path in
        ["", "SET search_path = public", "SET search_path = tenant, public", "SET search_path = '$user', public"]
    {
        let mut wire = world.holder(5);
        wire.query(path);
        for _ in 0..3 {
            write(&mut wire);
            ok(&mut wire, "SELECT f()");
            ok(&mut wire, "SET work_mem = '1MB'");
            ok(&mut wire, "BEGIN; SELECT 1; COMMIT");
        }
        ok(&mut wire, "DISCARD ALL");
        ok(&mut wire, "SET lease.fence = 5");
        write(&mut wire);
    }
    assert_eq!(asked(&world), 0);
}

#[test]
fn a_session_that_writes_elsewhere_is_queried_after_its_statement() {
    let world = start(Release::Installed);
    let mut wire = world.login();
    ok(&mut wire, "SET search_path = tenant");
    (0..4).for_each(|_| write(&mut wire));
    let asked = asked(&world);
    // One query before the first statement, and one after each string and each Sync.
    assert!((8..=13).contains(&asked), "{asked}");
}

/// The query does not start a snapshot.
#[test]
fn a_query_within_a_transaction_does_not_affect_it() {
    let world = start(Release::Installed);
    let mut wire = world.login();
    ok(&mut wire, "SET search_path = tenant");
    write(&mut wire);
    ok(&mut wire, "BEGIN");
    ok(&mut wire, "SET LOCAL search_path = tenant");
    ok(&mut wire, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
    ok(&mut wire, "SET LOCAL search_path = tenant");
    world.postgres.sql("INSERT INTO tenant.jobs VALUES (77)");
    assert_eq!(ok(&mut wire, "DELETE FROM jobs WHERE n = 77 RETURNING n").len(), 1);
    ok(&mut wire, "COMMIT");
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_server_that_reports_its_path_is_not_queried() {
    let world = start(Release::Eighteen);
    let mut wire = world.login();
    ok(&mut wire, "SET search_path = tenant");
    (0..4).for_each(|_| write(&mut wire));
    assert_eq!(asked(&world), 0);
}
