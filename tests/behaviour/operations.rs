//! Backup and restore of fences, and cancel requests, work as documented.

use crate::support::fenced::{self, Fenced, code, code_in, ok};
use crate::support::guardian::Folder;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, programs, wait_until};
use std::fs;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

#[test]
fn a_dump_carries_the_fences() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", POLICIES);
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
    let dump = programs::run(&mut programs::pg_dump(&world.postgres.address(), "postgres"));

    let other = Postgres::start(Options::default());
    let file = Folder::new("dump");
    fs::write(file.join("dump.sql"), dump.stdout).unwrap();
    programs::run(programs::psql(&other.address(), "postgres").arg("-qf").arg(file.join("dump.sql")));
    fenced::init(&other, "postgres");
    let restored = Fenced { proxy: Proxy::start(&other, POLICIES, &[]), postgres: other };
    assert_eq!(code(&mut restored.holder(46), "INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut restored.holder(47), "INSERT INTO jobs VALUES (47)");
}

/// A dump only reads, including fencegate's tables. A restore writes and defines fenced tables, so only an exempt role
/// may run it.
#[test]
fn dumped_and_restored_through_the_proxy() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", &(POLICIES.to_owned() + "exempt_roles: [migrator]\n"));
    world.postgres.sql("CREATE ROLE migrator SUPERUSER LOGIN");
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
    let folder = Folder::new("dump");
    let dump = folder.join("dump");
    programs::run(programs::pg_dump(&world.proxy.address(), "postgres").args(["-Fc", "-f"]).arg(&dump));

    let restore = |role: &str| {
        // The proxy's connections to the database close a moment after the last session.
        wait_until("it can be dropped", DEADLINE, || {
            world.postgres.try_sql("postgres", "DROP DATABASE IF EXISTS restored").is_ok()
        });
        world.postgres.sql("CREATE DATABASE restored");
        let mut restore = programs::pg_restore(&world.proxy.address(), "restored");
        restore.env("PGUSER", role).arg(&dump).output().unwrap()
    };
    let refused = restore("postgres");
    // The first write is rejected at the latest. An earlier statement is rejected if the proxy sees the schema
    // `fencegate` half restored.
    let reasons = ["this session has no token", "it affects fencegate's own objects"];
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reasons.iter().any(|reason| stderr.contains(reason)), "{refused:?}");
    let restored = restore("migrator");
    assert!(restored.status.success(), "{restored:?}");

    let mut wire = Wire::login(&world.proxy.address(), "postgres", "restored");
    ok(&mut wire, "SET lease.fence = 46");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut wire, "SET lease.fence = 47; INSERT INTO jobs VALUES (47)");
    assert_eq!(world.postgres.sql_in("restored", "SELECT n FROM jobs").len(), 2);
}

/// A proxy forwards cancel requests only for its own sessions. A load balancer must send the request to the session's
/// proxy.
#[test]
fn a_cancel_request_uses_the_proxy_of_its_session() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", POLICIES);
    let other = Proxy::start(&world.postgres, POLICIES, &[]);
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let greeting = wire.start(&[("user", "postgres"), ("database", "postgres")], "");
    let key = greeting.iter().find(|frame| frame.tag == b'K').expect("BackendKeyData");
    wire.send(&message::query("SELECT pg_sleep(600)"));
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    wait_until("the statement runs", DEADLINE, || world.postgres.value(sleeps) == "1");
    for (proxy, sleeping) in [(&other, "1"), (&world.proxy, "0")] {
        let mut cancel = Wire::connect(&proxy.address()).unwrap();
        cancel.send(&message::cancel_request(&key.body));
        assert_eq!(cancel.bytes_to_end(), b"", "the proxy sends no answer");
        wait_until("the request was dropped or forwarded", DEADLINE, || world.postgres.value(sleeps) == sleeping);
    }
    assert_eq!(code_in(&wire.read_until_ready()), "57014");
}
