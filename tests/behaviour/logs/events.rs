//! The fields of each event.

use crate::logs::line::{POLICIES, SCHEMA, assert_fields, event, events, start};
use crate::support::fenced::{code, init, ok};
use crate::support::guardian::{Folder, Program};
use crate::support::link::{Fault as LinkFault, Link};
use crate::support::postgres::SUPERUSER;
use crate::support::proxy::BINARY;
use crate::support::{DEADLINE, Etcd, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::fs;

#[test]
fn fence_events_have_their_fields() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let log = || fenced.proxy.log();
    let mut old = fenced.holder(46);
    ok(&mut old, "INSERT INTO jobs VALUES (1)");
    assert_fields(&event(log, "fence_advanced"), &[("database", "postgres"), ("resource", "jobs"), ("token", "46")]);
    let mut new = fenced.holder(47);
    ok(&mut new, "INSERT INTO jobs VALUES (2)");
    let drained = [("resource", "jobs"), ("presented", "46"), ("highest", "47"), ("how", "idle")];
    assert_fields(&event(log, "session_drained"), &drained);
    assert_eq!(code(&mut old, "UPDATE public.jobs SET note = 'x' WHERE n = 1"), "LF001");
    let blocked = event(log, "stale_write_blocked");
    assert_fields(&blocked, &[("resource", "jobs"), ("presented", "46"), ("highest", "47")]);
    assert_fields(&blocked, &[("statement", "UPDATE"), ("table", "public.jobs"), ("level", "WARN")]);
    assert_fields(&blocked, &[("user", "postgres"), ("database", "postgres")]);
    assert!(blocked.contains_key("session") && blocked.contains_key("address"), "{blocked:?}");
}

#[test]
fn every_other_rejection_has_a_reason() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = fenced.login();
    assert_eq!(code(&mut wire, "DELETE FROM jobs"), "LF002");
    assert_eq!(code(&mut wire, "DO $$BEGIN END$$"), "LF004");
    ok(&mut wire, "SET lease.fence = 7");
    ok(&mut wire, "BEGIN; INSERT INTO jobs VALUES (1); SET lease.fence = 8");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (2)"), "LF003");
    let rejected = || events(&fenced.proxy.log(), "write_rejected");
    wait_until("three rejections are logged", DEADLINE, || rejected().len() == 3);
    let [missing, opaque, two_tokens] = rejected().try_into().unwrap();
    assert_fields(&missing, &[("verdict", "missing"), ("code", "LF002"), ("resource", "jobs"), ("table", "jobs")]);
    assert_fields(&missing, &[("statement", "DELETE"), ("user", "postgres")]);
    assert_fields(&opaque, &[("verdict", "unverifiable"), ("code", "LF004"), ("statement", "DO")]);
    assert!(!opaque.contains_key("table"), "{opaque:?}");
    assert_fields(&two_tokens, &[("verdict", "invalid"), ("presented", "8"), ("highest", "7")]);
}

#[test]
fn an_observing_fence_logs_a_rejection_once() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = fenced.login();
    ok(&mut wire, "INSERT INTO watched VALUES (1)");
    let seen = event(|| fenced.proxy.log(), "write_would_be_rejected");
    assert_fields(&seen, &[("resource", "watched"), ("verdict", "missing"), ("database", "postgres")]);
    ok(&mut wire, "SET lease.fence = 7");
    // The write waits until the session is admitted to the other fence.
    ok(&mut wire, "INSERT INTO jobs VALUES (1); INSERT INTO watched VALUES (1)");
    assert_eq!(events(&fenced.proxy.log(), "write_would_be_rejected").len(), 1);
}

#[test]
fn a_missing_fenced_table_is_logged_when_it_disappears_and_reappears() {
    let policies = format!("{POLICIES}  - {{name: ghost, tables: [public.ghost]}}\n");
    let fenced = start(SCHEMA, &policies, &[]);
    let log = || fenced.proxy.log();
    let mut wire = fenced.holder(7);
    let ghost = [("database", "postgres"), ("resource", "ghost"), ("table", "public.ghost")];
    let missing = event(log, "fenced_table_missing");
    assert_fields(&missing, &ghost);
    assert_fields(&missing, &[("level", "WARN")]);
    assert_fields(&event(log, "fence_enforced"), &[("resource", "jobs")]);
    assert_fields(&event(log, "fence_observed"), &[("resource", "watched")]);
    // Logged neither for each session nor for each read of the catalog.
    ok(&mut fenced.login(), "CREATE VIEW seen AS TABLE jobs");
    ok(&mut fenced.login(), "SELECT 1");
    ok(&mut wire, "CREATE TABLE ghost (n int)");
    assert_fields(&event(log, "fenced_table_found"), &ghost);
    assert_eq!(events(&log(), "fenced_table_missing").len(), 1);
    ok(&mut wire, "DROP TABLE ghost");
    wait_until("it is logged again", DEADLINE, || events(&log(), "fenced_table_missing").len() == 2);
    assert_eq!(events(&log(), "fence_enforced").len(), 1);
}

#[test]
fn a_failure_to_record_policies_is_logged_once() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    for database in ["plain", "unprepared"] {
        fenced.postgres.sql(&format!("CREATE DATABASE {database}"));
    }
    fenced.postgres.sql_in("unprepared", "CREATE TABLE jobs (n int)");
    for database in ["plain", "unprepared"].repeat(3) {
        ok(&mut Wire::login(&fenced.proxy.address(), "postgres", database), "SELECT 1");
    }
    let log = || fenced.proxy.log();
    let nothing = [("database", "plain"), ("level", "INFO")];
    assert_fields(&event(log, "nothing_fenced"), &nothing);
    let unrecorded = event(log, "policies_not_recorded");
    assert_fields(&unrecorded, &[("database", "unprepared"), ("level", "WARN")]);
    assert_eq!(unrecorded["reason"], "database unprepared has no fencegate schema: run `fencegate init`");
    let of_both = || ["nothing_fenced", "policies_not_recorded"].map(|it| events(&log(), it).len());
    assert_eq!(of_both(), [1, 1], "{}", log());
}

#[test]
fn a_leader_logs_its_lease() {
    let (etcd, folder) = (Etcd::start(), Folder::new("logs"));
    let url = etcd.url();
    let lead = [
        "env",
        "RUST_LOG=fencegate=debug",
        BINARY,
        "lead",
        "--log-format",
        "json",
        "--etcd",
        &url,
        "--election",
        "/logs",
    ];
    let lead = [&lead[..], &["--ttl", "9", "--id", "me", "--", "sleep", "1000"]].concat();
    let _lead = Program::start(&lead, &folder.join("log"), "KILL");
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    let acquired = event(log, "lease_acquired");
    assert_fields(&acquired, &[("election", "/logs"), ("holder", "me")]);
    let token = acquired["token"].clone();
    assert_fields(&event(log, "lease_renewed"), &[("election", "/logs"), ("token", &token)]);
    etcd.delete(&key(&etcd));
    assert_fields(&event(log, "lease_lost"), &[("election", "/logs"), ("token", &token), ("level", "WARN")]);
}

fn key(etcd: &Etcd) -> String {
    let keys = crate::support::programs::run(&mut etcd.etcdctl(&["get", "--prefix", "--keys-only", "/logs"]));
    String::from_utf8(keys.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_control_process_that_may_remain_is_named() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    let link = Link::to(postgres.port());
    let options = ProxyOptions::default()
        .policies(POLICIES)
        .arguments(&["--log-format", "json"])
        .control(&format!("postgres://{SUPERUSER}@127.0.0.1:{}/", link.port()));
    let proxy = Proxy::start_with(&postgres, &options);
    let mut wire = Wire::login(&proxy.address(), SUPERUSER, "postgres");
    ok(&mut wire, "SET lease.fence = 46; INSERT INTO jobs VALUES (1)");
    let control = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control'";
    let processes: Vec<String> = postgres.sql(control).into_iter().flatten().flatten().collect();
    link.suffer(LinkFault::Silent);
    assert_eq!(code(&mut wire, "SET lease.fence = 47; INSERT INTO jobs VALUES (2)"), "LF006");
    let remains = event(|| proxy.log(), "control_process_not_ended");
    let error = "the control connection did not answer within 5 s";
    assert_fields(&remains, &[("level", "WARN"), ("database", "postgres"), ("error", error)]);
    assert!(processes.contains(&remains["pid"]), "{remains:?}, {processes:?}");
}
