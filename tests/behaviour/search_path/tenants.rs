//! An application with one schema per tenant: every way to set the path, from installation to an enforced fence.

use super::extended;
use crate::logs::line::events;
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{copy_data, copy_done, query};
use crate::support::{DEADLINE, Options, ProxyOptions, Release, Wire, wait_until};

const SCHEMA: &str = "
    CREATE SCHEMA tenant_a; CREATE SCHEMA tenant_b; CREATE SCHEMA tenant_c;
    CREATE TABLE tenant_a.jobs (n int); CREATE TABLE tenant_b.jobs (n int); CREATE TABLE tenant_c.jobs (n int);
    CREATE TABLE public.jobs (n int); CREATE VIEW tenant_b.work AS TABLE tenant_b.jobs; CREATE TABLE tenant_a.work (n int);
    CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA tenant_a, tenant_b, tenant_c, public TO app;
    GRANT ALL ON ALL TABLES IN SCHEMA tenant_a, tenant_b, tenant_c, public TO app";
/// Tenant c is not fenced.
const POLICY: &str =
    "version: 1\nresources:\n  - {name: a, tables: [tenant_a.jobs]}\n  - {name: b, tables: [tenant_b.jobs]}\n";

const WRITES: [&str; 8] = [
    "INSERT INTO jobs VALUES (1)",
    "UPDATE jobs SET n = n + 1",
    "WITH w AS (UPDATE jobs SET n = 2 RETURNING n) SELECT * FROM w",
    "MERGE INTO jobs USING (SELECT 7 AS n) s ON jobs.n = s.n WHEN NOT MATCHED THEN INSERT VALUES (s.n)",
    "SELECT * FROM jobs FOR UPDATE",
    "INSERT INTO work VALUES (1)",
    "DELETE FROM jobs",
    "TRUNCATE jobs",
];

fn start(release: Release) -> Fenced {
    Fenced::start_with(Options::default().release(release), SCHEMA, &ProxyOptions::default().policies(POLICY))
}

fn login(world: &Fenced, parameters: &[(&str, &str)]) -> Wire {
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    wire.start(&[&[("user", "app"), ("database", "postgres")], parameters].concat(), "");
    ok(&mut wire, "SET lease.fence = 'a=5'");
    wire
}

/// The session has only the token of tenant a, whose schema comes first in its path.
#[track_caller]
fn writes_as_a(way: &str, wire: &mut Wire) {
    for write in WRITES {
        assert_eq!(code(wire, write), "", "{way}: {write}");
        assert_eq!(extended(wire, write), "", "{way}, extended: {write}");
    }
    let copied = wire.exchange(&[query("COPY jobs FROM STDIN"), copy_data(b"3\n"), copy_done()].concat());
    assert_eq!(code_in(&copied), "", "{way}: COPY");
    assert_eq!(code(wire, "INSERT INTO tenant_b.jobs VALUES (1)"), "LF002", "{way}");
}

/// The same for tenant b, to whose schema it may not write. The server rolls back any open transaction.
#[track_caller]
fn is_refused_as_b(way: &str, wire: &mut Wire) {
    for write in WRITES.iter().filter(|write| !write.starts_with("SELECT")) {
        assert_eq!(code(wire, write), "LF002", "{way}: {write}");
        assert_eq!(extended(wire, write), "LF002", "{way}, extended: {write}");
    }
    assert_eq!(code(wire, "COPY jobs FROM STDIN"), "LF002", "{way}");
}

fn every_way(release: Release) {
    let world = start(release);
    let both = [("tenant_a, public", "tenant_b, public"), ("tenant_a", "\"tenant_b\"")];
    for (a, b) in both {
        let set = |way: &str, path: &str| way.replace('?', path);
        for way in
            ["SET search_path = ?", "SET SESSION search_path TO ?", "SELECT set_config('search_path', '?', false)"]
        {
            let mut wire = login(&world, &[]);
            for _ in 0..2 {
                ok(&mut wire, &set(way, a));
                writes_as_a(way, &mut wire);
                ok(&mut wire, &set(way, b));
                is_refused_as_b(way, &mut wire);
            }
        }
        for (name, value) in
            [("search_path", a.to_owned()), ("options", format!("-csearch_path={}", a.replace(' ', "")))]
        {
            let mut wire = login(&world, &[(name, &value)]);
            writes_as_a(name, &mut wire);
            ok(&mut wire, &format!("SET search_path = {b}"));
            is_refused_as_b(name, &mut wire);
            for back in ["RESET search_path", "DISCARD ALL", "SET search_path TO DEFAULT", "RESET ALL"] {
                ok(&mut wire, &format!("SET search_path = {b}"));
                ok(&mut wire, back);
                ok(&mut wire, "SET lease.fence = 'a=5'");
                writes_as_a(back, &mut wire);
            }
        }
        for of in ["ROLE app", "DATABASE postgres"] {
            world.postgres.sql(&format!("ALTER {of} SET search_path = {a}"));
            let mut wire = login(&world, &[]);
            writes_as_a(of, &mut wire);
            // An existing session keeps the path that it began with.
            world.postgres.sql(&format!("ALTER {of} SET search_path = {b}"));
            writes_as_a(of, &mut wire);
            is_refused_as_b(of, &mut login(&world, &[]));
            world.postgres.sql(&format!("ALTER {of} RESET search_path"));
        }
        let mut wire = login(&world, &[]);
        ok(&mut wire, &format!("SET search_path = {b}"));
        ok(&mut wire, "BEGIN");
        ok(&mut wire, &format!("SET LOCAL search_path = {a}"));
        ok(&mut wire, "SAVEPOINT s");
        ok(&mut wire, "INSERT INTO jobs VALUES (1)");
        ok(&mut wire, &format!("SET search_path = {b}"));
        ok(&mut wire, "ROLLBACK TO s");
        ok(&mut wire, "INSERT INTO jobs VALUES (1)");
        ok(&mut wire, "COMMIT");
        is_refused_as_b("SET LOCAL", &mut wire);
        ok(&mut wire, "BEGIN");
        ok(&mut wire, &format!("SET search_path = {a}"));
        ok(&mut wire, "ROLLBACK");
        is_refused_as_b("ROLLBACK", &mut wire);
    }
    let mut wire = login(&world, &[]);
    ok(&mut wire, "SET SCHEMA 'tenant_a'");
    writes_as_a("SET SCHEMA", &mut wire);
    // A session that leads no tenant can write only unfenced tables.
    ok(&mut wire, "SET lease.fence = ''");
    ok(&mut wire, "SET search_path = tenant_c, pg_catalog");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    for path in ["tenant_a", "tenant_c, tenant_b", "tenant_b", "\"$user\", tenant_c"] {
        ok(&mut wire, &format!("SET search_path = {path}"));
        assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002", "{path}");
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM tenant_b.jobs"), "0");
}

#[test]
fn each_tenant_by_every_way_to_set_the_path() {
    every_way(Release::Installed);
}

/// PostgreSQL 18 reports the path.
#[test]
#[ignore = "needs what comes from the network: make soak"]
fn each_tenant_by_every_way_to_set_the_path_on_18() {
    every_way(Release::Eighteen);
}

/// If one path has two tables of the name, both count.
#[test]
fn every_schema_of_the_path_counts() {
    let world = start(Release::Installed);
    let mut wire = login(&world, &[]);
    ok(&mut wire, "SET search_path = tenant_a, tenant_b");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
    ok(&mut wire, "SET lease.fence = 'a=5, b=5'");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    // An earlier table in the path may be created and dropped by other roles.
    ok(&mut wire, "SET search_path = tenant_c, tenant_b; SET lease.fence = ''");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
    world.postgres.sql("DROP TABLE tenant_c.jobs");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
    assert_eq!(world.postgres.value("SELECT count(*) FROM tenant_b.jobs"), "0");
}

/// With this path, only one tenant's token is raised.
#[test]
fn a_token_is_raised_for_the_tenant_alone() {
    let world = start(Release::Installed);
    let mut wire = login(&world, &[("options", "-csearch_path=tenant_a")]);
    ok(&mut wire, "SET lease.fence = 47");
    for write in WRITES {
        ok(&mut wire, write);
    }
    assert_eq!(world.postgres.value("SELECT string_agg(resource, ' ') FROM fencegate_state.epoch"), "a");
}

#[test]
fn from_installation_to_enforcement() {
    let options = ProxyOptions::default().policies(&POLICY.replace("tables", "mode: observe, tables"));
    let options = options.arguments(&["--log-format", "json"]);
    let mut world = Fenced::start_with(Options::default(), SCHEMA, &options);
    let mut leaders: Vec<Wire> = ["a", "b"]
        .map(|tenant| {
            let mut wire = login(&world, &[]);
            ok(&mut wire, &format!("SET lease.fence = '{tenant}=5'"));
            wire
        })
        .into();
    // An observing fence waits only briefly for its tables to become known, and then statements pass unobserved.
    world.proxy.wait_for_log("fence_observed", DEADLINE);
    let write = |wire: &mut Wire, tenant: &str| {
        ok(wire, &format!("SET search_path = {tenant}, public"));
        ok(wire, "BEGIN");
        ok(wire, "INSERT INTO jobs VALUES (1)");
        ok(wire, "UPDATE jobs SET n = 2");
        ok(wire, "COMMIT");
    };
    let told = |world: &Fenced| events(&world.proxy.log(), "write_would_be_rejected").len();
    write(&mut leaders[0], "tenant_a");
    write(&mut leaders[1], "tenant_b");
    assert_eq!(told(&world), 0, "{}", world.proxy.log());
    write(&mut leaders[0], "tenant_b");
    wait_until("the wrong tenant is logged", DEADLINE, || told(&world) > 0);
    world.proxy.write_policies(POLICY);
    world.proxy.sighup();
    wait_until("the fences are enforced", DEADLINE, || {
        code(&mut leaders[0], "INSERT INTO tenant_b.jobs VALUES (1)") == "LF002"
    });
    for (leader, tenant) in leaders.iter_mut().zip(["tenant_a", "tenant_b"]) {
        wait_until("the policies are recorded", DEADLINE, || {
            code(leader, &format!("DELETE FROM {tenant}.jobs")).is_empty()
        });
        write(leader, tenant);
    }
    ok(&mut leaders[0], "SET search_path = tenant_b");
    assert_eq!(code(&mut leaders[0], "INSERT INTO jobs VALUES (1)"), "LF002");
    // Only tenant a has a new leader.
    let mut next = login(&world, &[("search_path", "tenant_a")]);
    ok(&mut next, "SET lease.fence = 'a=6'");
    ok(&mut next, "INSERT INTO jobs VALUES (1)");
    ok(&mut leaders[0], "SET search_path = tenant_a");
    assert_eq!(code(&mut leaders[0], "INSERT INTO jobs VALUES (1)"), "LF001");
    write(&mut leaders[1], "tenant_b");
}
