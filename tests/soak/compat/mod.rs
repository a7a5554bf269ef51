//! PostgreSQL's own tests have the same output with and without the proxy, byte for byte. Run by `make compat`.

mod outcome;
mod suite;

use crate::support::{Options, Postgres, Proxy, fenced};
use outcome::Outcome;
use std::time::Instant;
use suite::Suite;

/// The tests create their own database, which has no fence.
const NO_SUCH_TABLE: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.fencegate_ticks]}\n";

/// The database of the tests has a fenced table.
const BESIDE: &str =
    "version: 1\nopaque: allow\nresources:\n  - {name: scheduler, tables: [scheduled.fencegate_ticks]}\n";
const FENCED_TABLE: &str =
    "CREATE SCHEMA scheduled CREATE TABLE fencegate_ticks (token bigint DEFAULT fencegate.token('scheduler'))";

#[test]
#[ignore = "takes minutes: make compat"]
fn regression_tests_where_nothing_is_fenced() {
    let suite = Suite::regression();
    assert_same(&suite, NO_SUCH_TABLE, |_| {});
}

#[test]
#[ignore = "takes minutes: make compat"]
fn regression_tests_beside_a_fenced_table() {
    let suite = Suite::regression().in_existing_database();
    assert_same(&suite, BESIDE, |postgres| make_database(postgres, suite.database()));
}

#[test]
#[ignore = "takes minutes: make compat"]
fn isolation_tests_beside_a_fenced_table() {
    let suite = Suite::isolation().in_existing_database();
    assert_same(&suite, BESIDE, |postgres| make_database(postgres, suite.database()));
}

/// Creates the database like pg_regress, but with a fence.
fn make_database(postgres: &Postgres, name: &str) {
    postgres.sql(&format!("CREATE DATABASE {name} TEMPLATE template0"));
    for setting in ["lc_messages", "lc_monetary", "lc_numeric", "lc_time"] {
        postgres.sql(&format!("ALTER DATABASE {name} SET {setting} TO 'C'"));
    }
    postgres.sql(&format!("ALTER DATABASE {name} SET timezone_abbreviations TO 'Default'"));
    fenced::init(postgres, name);
    postgres.sql_in(name, FENCED_TABLE);
}

/// Runs the suite directly on one server, then through the proxy on another.
fn assert_same(suite: &Suite, policies: &str, prepare: impl Fn(&Postgres)) {
    let start = || {
        let postgres = Postgres::start(Options::default().unused().setting("autovacuum", "off"));
        prepare(&postgres);
        postgres
    };
    let direct = {
        let postgres = start();
        timed(suite, "direct", || suite.run(&postgres.address()))
    };
    let postgres = start();
    let proxy = Proxy::start(&postgres, policies, &[]);
    let proxied = timed(suite, "proxied", || suite.run(&proxy.address()));

    assert!(direct.passed() * 10 > direct.count() * 9, "the tests themselves do not work:\n{}", direct.said());
    let differences = direct.differences(&proxied);
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

fn timed(suite: &Suite, way: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    let start = Instant::now();
    let outcome = run();
    let (passed, count, seconds) = (outcome.passed(), outcome.count(), start.elapsed().as_secs());
    println!("{} {way}: {passed} of {count} tests pass, in {seconds} s", suite.name());
    outcome
}
