//! Poolers between a proxy and the server.

use crate::support::fenced::{Fenced, code, init, ok, value};
use crate::support::link::{Fault, Link};
use crate::support::transaction_pooler::TransactionPooler;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::thread;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";

fn behind_a_pooler() -> Fenced {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (n int); CREATE TABLE free (n int)");
    init(&postgres, "postgres");
    let pooler = TransactionPooler::before(postgres.port());
    let options = ProxyOptions::default().policies(POLICIES).upstream(&pooler.url());
    Fenced { proxy: Proxy::start_with(&postgres, &options), postgres }
}

/// A world whose sessions and control connections each use a link. One session has been admitted.
fn behind_a_forwarder() -> (Fenced, Link, Link) {
    let mut world = Fenced::start("CREATE TABLE jobs (n int)", POLICIES);
    let (forwarder, control) = (Link::to(world.postgres.port()), Link::to(world.postgres.port()));
    let options = ProxyOptions::default()
        .policies(POLICIES)
        .upstream(&format!("postgres://127.0.0.1:{}", forwarder.port()))
        .control(&format!("postgres://postgres@127.0.0.1:{}/postgres", control.port()));
    world.proxy = Proxy::start_with(&world.postgres, &options);
    ok(&mut world.holder(47), WRITE);
    (world, forwarder, control)
}

/// The process ID that the pooler shows belongs to the process that answers first. Later transactions run in other
/// processes.
#[test]
fn a_session_that_shares_its_process_is_not_admitted() {
    let world = behind_a_pooler();
    let mut old = world.login();
    let mut other = world.login();
    // `other` now holds the process whose ID both sessions received.
    ok(&mut other, "BEGIN");
    let shared = value(&mut other, "SELECT pg_backend_pid()");
    ok(&mut old, "BEGIN");
    assert_ne!(value(&mut old, "SELECT pg_backend_pid()"), shared);
    ok(&mut old, "SET LOCAL lease.fence = 47");
    let refused = old.rows(WRITE).err();
    ok(&mut other, "COMMIT");
    let direct = Proxy::start(&world.postgres, POLICIES, &[]);
    let mut new = Wire::login(&direct.address(), "postgres", "postgres");
    ok(&mut new, "SET lease.fence = 48");
    ok(&mut new, WRITE);
    // This would commit a write with token 47 after one with token 48.
    old.query("COMMIT");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "1", "the write of the older token was committed");
    let refused = refused.expect("an error");
    assert_eq!(refused.code(), "LF006");
    assert!(refused.message().contains("a notification did not reach the idle session"), "{refused:?}");
    assert_eq!(world.proxy.log().matches("pooler_found").count(), 1, "{}", world.proxy.log());
}

/// A forwarder, such as HAProxy with `mode tcp`, is not a pooler.
#[test]
fn a_session_through_a_forwarder_is_admitted() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (n int)");
    init(&postgres, "postgres");
    let forwarder = Link::to(postgres.port());
    let upstream = format!("postgres://127.0.0.1:{}", forwarder.port());
    let options = ProxyOptions::default().policies(POLICIES).upstream(&upstream);
    let world = Fenced { proxy: Proxy::start_with(&postgres, &options), postgres };
    let mut wire = world.holder(47);
    ok(&mut wire, WRITE);
    assert!(ok(&mut wire, "SELECT pg_listening_channels()").is_empty());
    assert!(!world.proxy.log().contains("pooler_found"), "{}", world.proxy.log());
}

/// The server reports parameters that change during the check, and the proxy must parse the session's texts
/// accordingly.
#[test]
fn a_parameter_that_changes_during_the_login_counts() {
    let (world, _forwarder, control) = behind_a_forwarder();
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN fencegate' AND state = 'idle'";
    let before = world.postgres.value(listening);
    control.suffer(Fault::Silent);
    let mut wire = thread::scope(|scope| {
        let login = scope.spawn(|| world.login());
        wait_until("the session listens", DEADLINE, || world.postgres.value(listening) != before);
        world.postgres.sql("ALTER SYSTEM SET standard_conforming_strings = off");
        world.postgres.sql("SELECT pg_reload_conf()");
        wait_until("the server has reloaded", DEADLINE, || {
            world.postgres.value("SHOW standard_conforming_strings") == "off"
        });
        control.mend();
        login.join().unwrap()
    });
    assert_eq!(code(&mut wire, r"SELECT 'a\', ' ; INSERT INTO jobs VALUES (99); --'"), "LF002");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs WHERE n = 99"), "0");
}

/// Nothing can be proved without a control connection, so no session is admitted.
#[test]
fn a_session_that_nothing_can_notify_is_not_admitted() {
    let (world, _forwarder, control) = behind_a_forwarder();
    control.cut();
    let mut wire = world.holder(47);
    control.mend();
    let error = wire.rows(WRITE).unwrap_err();
    assert_eq!(error.code(), "LF006", "{error:?}");
    assert!(error.hint().contains("Connect again"), "{error:?}");
    wait_until("a new session is admitted", DEADLINE, || code(&mut world.holder(47), WRITE).is_empty());
}
