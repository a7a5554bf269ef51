//! Sessions that start and end quickly, and names of databases and roles that do not exist.

use super::flood::beside;
use crate::support::fenced::{Fenced, ok, value};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, message, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE ROLE ada LOGIN; CREATE ROLE eve LOGIN; \
    GRANT INSERT, SELECT ON jobs TO ada";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

fn start(options: Options) -> Fenced {
    Fenced::start_with(options, SCHEMA, &ProxyOptions::default().policies(POLICIES))
}

#[test]
fn sessions_that_come_and_go() {
    let world = start(Options::default());
    let mut leader = world.holder(5);
    let fleeting = |_: &_| drop(world.login_as("eve"));
    beside("sessions that come and go", (50, 0), fleeting, 30, || {
        ok(&mut leader, "INSERT INTO jobs VALUES (1)");
    });
    let count = |what: &str| world.postgres.value(&format!("SELECT count(*) FROM {what}"));
    wait_until("they have gone", DEADLINE, || count("pg_stat_activity WHERE usename = 'eve'") == "0");
    assert_eq!(count("fencegate_state.admission"), "1");
    assert_eq!(count("jobs"), "30");
    let mut console = Wire::login(&world.proxy.address(), "postgres", "fencegate");
    // The proxy notices the end of a session after the server.
    wait_until("the proxy has no others", DEADLINE, || ok(&mut console, "SHOW SESSIONS").len() == 1);
}

/// The clients disconnect in the middle of a reply.
#[test]
fn sessions_that_are_broken_off() {
    let world = start(Options::default());
    let mut leader = world.holder(5);
    let broken = |_: &_| {
        let mut wire = world.login_as("eve");
        wire.send(&message::query("SELECT repeat('x', 1000000)"));
    };
    beside("sessions that are broken off", (50, 0), broken, 30, || {
        ok(&mut leader, "INSERT INTO jobs VALUES (1)");
    });
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'eve'";
    wait_until("they have gone", DEADLINE, || world.postgres.value(left) == "0");
}

/// Such a login opens no control connection, and leaves nothing behind.
#[test]
fn databases_that_do_not_exist() {
    let postgres = Postgres::start(Options::default());
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--http", "127.0.0.1:0"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let names = std::sync::atomic::AtomicUsize::new(0);
    let stranger = |_: &_| {
        let number = names.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let database = format!("nowhere{number}");
        let frames = wire.start(&[("user", "postgres"), ("database", &database)], "");
        assert_eq!(error_in(&frames).expect("an error").code(), "3D000");
    };
    beside("databases that nobody has", (50, 0), stranger, 20, || {
        assert_eq!(value(&mut Wire::login(&proxy.address(), "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    });
    assert!(!super::http::page(&proxy, "/metrics").contains("nowhere"));
}

/// The proxy needs its connections only once per database, and closes them when the sessions end.
#[test]
fn many_databases() {
    const DATABASES: usize = 12;
    let world = start(Options::default());
    for number in 0..DATABASES {
        world.postgres.sql(&format!("CREATE DATABASE stranger{number}"));
    }
    let mut leader = world.holder(5);
    let sessions: Vec<Wire> = (0..3 * DATABASES)
        .map(|number| Wire::login(&world.proxy.address(), "eve", &format!("stranger{}", number % DATABASES)))
        .collect();
    ok(&mut leader, "INSERT INTO jobs VALUES (1)");
    let own = "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'stranger%' AND usename <> 'eve'";
    println!("{} control connections in {DATABASES} databases", world.postgres.value(own));
    drop(sessions);
    wait_until("the proxy closes them", DEADLINE, || world.postgres.value(own) == "0");
}
