//! Full file systems: for the tables, for the WAL, and for the proxy's log.

use crate::metrics::page::{get, samples, sum};
use crate::support::fenced::code;
use crate::support::guardian::Port;
use crate::support::small_disk::SmallDisk;
use crate::support::ticks::{self, POLICIES, WRITE, ok, out_of_order, refused, session};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

/// More than the rest of a page or segment that [`SmallDisk::fill`] leaves.
const LARGE_WRITE: &str = "INSERT INTO ticks (note) SELECT repeat('x', 1000) FROM generate_series(1, 2000)";

fn tokens(postgres: &Postgres) -> Vec<i64> {
    let rows = postgres.sql("SELECT token FROM ticks ORDER BY id");
    rows.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect()
}

#[test]
fn without_space_for_tables_nothing_is_admitted_and_nothing_stale_passes() {
    let Some(disk) = SmallDisk::mount(32) else { return };
    let postgres = Postgres::start(Options::default().sees(&disk));
    let tables = disk.outside().join("tables");
    fs::create_dir(&tables).unwrap();
    crate::support::postgres::give_to_server(&tables);
    postgres.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.inside().join("tables").display()));
    postgres.sql_in("template1", "ALTER DATABASE postgres SET TABLESPACE small");
    ticks::init(&postgres, "postgres");
    let proxy = Proxy::start(&postgres, POLICIES, &[]);
    let [mut first, mut second] = [5, 6].map(|token| session(&proxy.address(), token));

    // The first epoch of the resource needs a new page.
    disk.fill();
    let error = refused(&mut first, WRITE, "LF006");
    assert!(error.message().contains("no space"), "{error:?}");
    disk.make_space();
    ok(&mut first, WRITE);

    disk.fill();
    refused(&mut first, LARGE_WRITE, "53100");
    ok(&mut first, "SELECT count(*) FROM ticks");
    let without_space = code(&mut second, LARGE_WRITE);
    assert!(["53100", "LF006"].contains(&without_space.as_str()), "{without_space}");
    let stale = code(&mut first, LARGE_WRITE);
    assert!(["53100", "LF001", "LF006"].contains(&stale.as_str()), "{stale}");
    disk.make_space();
    ok(&mut second, WRITE);
    refused(&mut first, WRITE, "LF001");
    assert_eq!(tokens(&postgres), [5, 6]);
}

#[test]
fn a_server_without_space_for_wal_keeps_its_fences() {
    let Some(disk) = SmallDisk::mount(40) else { return };
    let segments = Options::default().setting("min_wal_size", "32MB").setting("max_wal_size", "32MB");
    let mut postgres = Postgres::start(segments.wal_on(&disk));
    ticks::init(&postgres, "postgres");
    let proxy = Proxy::start(&postgres, POLICIES, &[]);
    let [mut first, mut second] = [5, 6].map(|token| session(&proxy.address(), token));
    ok(&mut first, WRITE);

    disk.fill();
    let mut written = 1;
    let last = loop {
        let frames = first.query(LARGE_WRITE);
        match error_in(&frames) {
            None => written += 2000,
            Some(error) => break error,
        }
    };
    // A server process that cannot extend the WAL panics. All sessions end, and recovery needs space too.
    assert_eq!((last.severity(), last.code()), ("PANIC", "53100"), "{last:?}");
    let error = error_in(&second.query(WRITE)).unwrap();
    assert!(error.severity() == "FATAL" && ["08006", "57P02"].contains(&error.code()), "{error:?}");
    let login = || {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        error_in(&wire.start(&[("user", "postgres"), ("database", "postgres")], ""))
            .map(|error| error.code().to_owned())
    };
    wait_until("logins are refused", DEADLINE, || login().as_deref() == Some("57P03"));
    disk.make_space();
    postgres.crash();
    postgres.start_again();
    ok(&mut session(&proxy.address(), 6), WRITE);
    refused(&mut session(&proxy.address(), 5), WRITE, "LF001");
    let tokens = tokens(&postgres);
    assert_eq!((tokens.len(), out_of_order(&tokens)), (written + 1, 0));
}

#[test]
fn log_lines_without_space_are_counted_and_the_others_are_whole() {
    let Some(disk) = SmallDisk::mount(1) else { return };
    let http = Port::claim();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, http.number()));
    let log = disk.outside().join("log");
    let options = ProxyOptions::default().policies(POLICIES).log_to(&log);
    let options = options.arguments(&["--log-format", "json", "--http", &address.to_string()]);
    let postgres = ticks::server();
    let mut proxy = Proxy::start_with(&postgres, &options);
    let dropped = || sum(&samples(&get(address, "/metrics").body), "fencegate_log_lines_dropped_total", &[]);
    assert_eq!(dropped(), 0.0);
    disk.fill();
    // Each session logs lines. Some still fit into the file's last page, and the last of these only in part.
    wait_until("lines are lost", DEADLINE, || {
        ok(&mut session(&proxy.address(), 5), WRITE);
        dropped() >= 2.0
    });
    disk.make_space();
    ok(&mut session(&proxy.address(), 5), WRITE);
    assert_eq!(proxy.terminate(), 0);
    let text = fs::read_to_string(&log).unwrap();
    let (whole, broken): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
    // Only the last line that was written may be incomplete, and the next line does not continue it.
    let is_merged = |line: &&str| line.matches("\"timestamp\"").count() > 1;
    assert!(broken.len() <= 1 && !broken.iter().any(is_merged), "{broken:#?}");
    let has = |event: &str| whole.iter().any(|line| line.contains(&format!("\"event\":\"{event}\"")));
    assert!(has("log_lines_dropped") && has("stopped"), "{text}");
}
