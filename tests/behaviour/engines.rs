//! Engines other than PostgreSQL, and writes from another PostgreSQL server.

use crate::support::fenced::{Fenced, code, ok};
use crate::support::guardian::Folder;
use crate::support::proxy::fencegate;
use crate::support::stub_engine::{Answer, StubEngine};
use crate::support::{DEADLINE, Options, Postgres, Wire, wait_until};
use std::process::Command;

/// Answers like CockroachDB: no processes, locks without effect, and missing functions and system columns.
fn cockroach(query: &str) -> Answer {
    let works = |works: bool| Answer::Value("works", if works { "t" } else { "f" }.to_owned());
    match query {
        _ if query.contains("version()") => {
            Answer::Value("version", "CockroachDB CCL v23.2.4 (x86_64-pc-linux-gnu, built 2024/04/08)".to_owned())
        }
        _ if query.contains("pg_stat_activity") || query.contains("pg_advisory") => works(false),
        _ if query.contains("pg_terminate_backend") => {
            Answer::Error("42883", "unknown function: pg_terminate_backend()")
        }
        _ if query.contains("pg_control_system") => Answer::Error("42883", "unknown function: pg_control_system()"),
        _ if query.contains("ctid") => Answer::Error("42703", "column \"ctid\" does not exist"),
        _ if query.contains("works") => works(true),
        _ if query.starts_with("SET ") => Answer::Error("42704", "unrecognized configuration parameter \"jit\""),
        _ => Answer::Nothing,
    }
}

const COCKROACH_LACKS: &str = "CockroachDB cannot be fenced: it lacks pg_stat_activity with backend_start, \
    pg_terminate_backend, advisory locks, the system column ctid, pg_control_system";

/// The exit code and all output of the program.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn init_refuses_an_engine_by_name_and_says_what_it_lacks() {
    let engine = StubEngine::start(cockroach);
    for arguments in [&["init"][..], &["init", "--print-sql"]] {
        let (exit, said) = run(fencegate().args(arguments).args(["--control", &engine.control_url()]));
        assert!(exit == Some(1) && said.contains(COCKROACH_LACKS), "{arguments:?}: {exit:?} {said}");
    }
}

#[test]
fn the_check_refuses_an_engine_by_name() {
    let engine = StubEngine::start(cockroach);
    let policies = policy_folder();
    let mut check = fencegate();
    check.args(["proxy", "--check", "--upstream", &engine.url(), "--control", &engine.control_url(), "--policies"]);
    let (exit, said) = run(check.arg(policies.path()));
    assert!(exit == Some(1) && said.contains(COCKROACH_LACKS), "{exit:?} {said}");
}

/// The text of the version does not matter.
#[test]
fn features_decide_and_not_the_name() {
    let engine = StubEngine::start(|query| match query {
        _ if query.contains("version()") => Answer::Value("version", "PostgreSQL 15.2 on x86_64".to_owned()),
        _ if query.contains("pg_advisory") => Answer::Error("0A000", "advisory locks are not yet implemented"),
        _ if query.contains("works") => Answer::Value("works", "t".to_owned()),
        _ => Answer::Nothing,
    });
    let (exit, said) = run(fencegate().args(["init", "--control", &engine.control_url()]));
    let lacks = "this server (PostgreSQL 15.2 on x86_64) cannot be fenced: it lacks advisory locks";
    assert!(exit == Some(1) && said.contains(lacks), "{exit:?} {said}");

    let engine = StubEngine::start(|query| match query {
        _ if query.contains("version()") => Answer::Value("version", "CockroachDB CCL v99".to_owned()),
        _ if query.contains("works") => Answer::Value("works", "t".to_owned()),
        _ => Answer::Error("XX000", "something else"),
    });
    let (exit, said) = run(fencegate().args(["init", "--control", &engine.control_url()]));
    assert!(exit == Some(1) && said.contains("something else") && !said.contains("CockroachDB"), "{exit:?} {said}");
}

/// A role without privileges cannot lock rows of the catalog, but its server is still recognized as PostgreSQL.
#[test]
fn a_plain_role_of_postgresql_is_not_refused_for_its_engine() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE plain LOGIN");
    let control = format!("postgres://plain@127.0.0.1:{}/postgres", postgres.port());
    let (_, said) = run(fencegate().args(["init", "--control", &control]));
    assert!(!said.contains("cannot be fenced"), "{said}");
}

fn policy_folder() -> Folder {
    let folder = Folder::new("policies");
    std::fs::write(folder.join("policies.yaml"), POLICIES).unwrap();
    folder
}

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const SCHEMA: &str = "CREATE TABLE jobs (n int)";

/// A second server with a foreign table for `jobs` of the first, through this port and with these libpq options.
fn foreign(port: &str, options: &str) -> Postgres {
    let other = Postgres::start(Options::default());
    other.sql(&format!(
        "CREATE EXTENSION postgres_fdw; \
         CREATE SERVER first FOREIGN DATA WRAPPER postgres_fdw \
         OPTIONS (host '127.0.0.1', port '{port}', dbname 'postgres', options '{options}'); \
         CREATE USER MAPPING FOR postgres SERVER first OPTIONS (user 'postgres'); \
         CREATE FOREIGN TABLE jobs (n int) SERVER first"
    ));
    other
}

const FOREIGN_WRITE: &str = "INSERT INTO jobs VALUES (1)";

fn foreign_write(from: &Postgres) -> String {
    from.try_sql("postgres", FOREIGN_WRITE).map_or_else(|error| error.code().to_owned(), |_| "written".to_owned())
}

#[test]
fn a_foreign_server_that_leads_past_the_proxy_is_stopped_by_the_guard_only() {
    let world = Fenced::start(SCHEMA, POLICIES);
    ok(&mut world.holder(48), "DELETE FROM jobs");
    let port = world.postgres.port().to_string();
    let without_token = foreign(&port, "");
    assert_eq!(foreign_write(&without_token), "written");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "1");

    let mut install = fencegate();
    install.args(["guard", "install", "--control", &format!("{}postgres", world.postgres.control_url())]);
    let (exit, said) = run(install.arg("--policies").arg(world.proxy.policies()));
    assert_eq!(exit, Some(0), "{said}");
    assert_eq!(foreign_write(&without_token), "LF002");
    assert_eq!(foreign_write(&foreign(&port, "-c lease.fence=47")), "LF001");
    assert_eq!(foreign_write(&foreign(&port, "-c lease.fence=48")), "written");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "2");
}

#[test]
fn a_foreign_server_that_leads_to_the_proxy_is_fenced_by_its_token() {
    let world = Fenced::start(SCHEMA, POLICIES);
    ok(&mut world.holder(48), "DELETE FROM jobs");
    let (_, port) = world.proxy.address().host_and_port();
    assert_eq!(foreign_write(&foreign(&port, "")), "LF002");
    assert_eq!(foreign_write(&foreign(&port, "-c lease.fence=47")), "LF001");
    assert_eq!(foreign_write(&foreign(&port, "-c lease.fence=48")), "written");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "1");
}

/// A subscription's worker does not connect through a proxy. `guard::replication` tests the guard's part.
#[test]
fn a_subscription_writes_past_the_proxy() {
    let publisher = Postgres::start(Options::default());
    publisher.sql("CREATE TABLE jobs (n int); CREATE PUBLICATION jobs FOR TABLE jobs");
    let world = Fenced::start(SCHEMA, POLICIES);
    ok(&mut world.holder(48), "DELETE FROM jobs");
    world.postgres.sql(&format!(
        "CREATE SUBSCRIPTION jobs CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres' PUBLICATION jobs",
        publisher.port()
    ));
    publisher.sql("INSERT INTO jobs VALUES (1)");
    wait_until("the row is applied", DEADLINE, || world.postgres.value("SELECT count(*) FROM jobs") == "1");
    world.postgres.sql("DROP SUBSCRIPTION jobs");
}

/// Two clusters behind two proxies: each cluster has its own tokens for the resource.
#[test]
fn each_cluster_has_tokens_of_its_own() {
    let worlds = [Fenced::start(SCHEMA, POLICIES), Fenced::start(SCHEMA, POLICIES)];
    ok(&mut worlds[0].holder(48), FOREIGN_WRITE);
    let mut old: Vec<Wire> = worlds.iter().map(|world| world.holder(47)).collect();
    assert_eq!(code(&mut old[0], FOREIGN_WRITE), "LF001");
    assert_eq!(code(&mut old[1], FOREIGN_WRITE), "");
}
