//! `fencegate.claim`, which a new leader calls before it reads.

use crate::support::fenced::{Fenced, code, last_value, ok, value};
use crate::support::postgres::SUPERUSER;
use crate::support::proxy::ProxyOptions;
use crate::support::wire::error_in;
use crate::support::{Options, Wire, message, ticks};

const SCHEMA: &str = "
CREATE TABLE ticks (note text);
CREATE TABLE bills (note text);
CREATE TABLE shards (shard int, note text);
";

const POLICIES: &str = "
version: 1
resources:
  - {name: scheduler, tables: [public.ticks]}
  - {name: billing, tables: [public.bills]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard}]}
";

const CLAIM: &str = "SELECT fencegate.claim('scheduler')";
const WRITE: &str = "INSERT INTO ticks VALUES ('tick')";
const COUNT: &str = "SELECT count(*) FROM ticks";

fn start() -> Fenced {
    Fenced::start(SCHEMA, POLICIES)
}

fn epochs(fenced: &Fenced) -> Vec<String> {
    let query = "SELECT format('%s=%s %s', resource, token, drained) FROM fencegate_state.epoch ORDER BY 1";
    fenced.postgres.sql(query).into_iter().filter_map(|mut row| row.remove(0)).collect()
}

#[test]
fn older_holders_are_gone_before_it_returns() {
    let fenced = start();
    let mut old = fenced.holder(5);
    ok(&mut old, "BEGIN");
    ok(&mut old, WRITE);

    let mut new = fenced.holder(6);
    assert_eq!(value(&mut new, CLAIM).as_deref(), Some("6"));
    assert_eq!(epochs(&fenced), ["scheduler=6 t"]);
    assert_eq!(value(&mut new, COUNT).as_deref(), Some("0"));
    old.send(&message::query("COMMIT"));
    let error = error_in(&old.read_until_ready()).unwrap();
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"));
    assert_eq!(value(&mut new, COUNT).as_deref(), Some("0"));
    assert_eq!(code(&mut fenced.holder(5), WRITE), "LF001");
    ok(&mut new, WRITE);
}

#[test]
fn as_a_prepared_statement_and_right_after_begin() {
    let fenced = start();
    for (token, begin) in [(6, "BEGIN"), (7, "BEGIN ISOLATION LEVEL REPEATABLE READ")] {
        let mut new = fenced.holder(token);
        ok(&mut new, begin);
        assert_eq!(value(&mut new, CLAIM), Some(token.to_string()), "{begin}");
        ok(&mut new, COUNT);
        ok(&mut new, "COMMIT");
    }
    let mut new = fenced.holder(8);
    new.send(&message::unnamed("SELECT fencegate.claim($1)", &[Some(b"scheduler")]));
    new.send(&message::sync());
    let frames = new.read_until_ready();
    assert_eq!(error_in(&frames), None);
    assert_eq!(last_value(&frames).as_deref(), Some("8"));
}

#[test]
fn tokens_that_cannot_claim() {
    let fenced = start();
    ok(&mut fenced.holder(6), WRITE);
    assert_eq!(code(&mut fenced.holder(5), CLAIM), "LF001");
    let mut session = fenced.login();
    assert_eq!(code(&mut session, CLAIM), "LF002");
    assert_eq!(code(&mut session, "SELECT fencegate.claim()"), "LF002");
    // One token counts for every resource, so it does not identify a resource.
    let frames = fenced.holder(7).query("SELECT fencegate.claim()");
    let error = error_in(&frames).unwrap();
    assert_eq!(error.code(), "22004", "{error:?}");
    assert_eq!(epochs(&fenced), ["scheduler=6 t"]);
}

#[test]
fn without_a_name_it_claims_every_resource_of_the_list() {
    let fenced = start();
    let mut new = fenced.login();
    ok(&mut new, "SET lease.fence = 'scheduler=7, shard/3=9 ,billing=8'");
    assert_eq!(value(&mut new, "SELECT fencegate.claim()").as_deref(), Some("9"));
    assert_eq!(epochs(&fenced), ["billing=8 t", "scheduler=7 t", "shard/3=9 t"]);
    assert_eq!(value(&mut new, "SELECT fencegate.claim('billing')").as_deref(), Some("8"));
    assert_eq!(code(&mut new, "SELECT fencegate.claim('shard/4')"), "LF002");
}

/// Such a snapshot may lack the older holder's last commits.
#[test]
fn a_snapshot_from_before_the_token_was_in_force_is_too_old() {
    let fenced = start();
    ok(&mut fenced.holder(5), WRITE);
    let mut new = fenced.holder(6);
    ok(&mut new, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    ok(&mut new, COUNT);
    ok(&mut fenced.holder(6), WRITE);
    assert_eq!(code(&mut new, CLAIM), "40001");
    ok(&mut new, "ROLLBACK");
    // Admitted by its own write, but with an earlier snapshot.
    let mut newer = fenced.holder(7);
    ok(&mut newer, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    ok(&mut newer, COUNT);
    ok(&mut newer, WRITE);
    assert_eq!(code(&mut newer, CLAIM), "40001");
}

#[test]
fn a_read_only_transaction_with_a_snapshot_cannot_claim() {
    let fenced = start();
    ok(&mut fenced.holder(6), WRITE);
    let mut new = fenced.holder(6);
    for (mode, expected) in [("READ COMMITTED", ""), ("REPEATABLE READ", "25006"), ("SERIALIZABLE", "25006")] {
        ok(&mut new, &format!("BEGIN ISOLATION LEVEL {mode} READ ONLY"));
        assert_eq!(code(&mut new, CLAIM), expected, "{mode}");
        ok(&mut new, "ROLLBACK");
    }
}

/// Without a proxy, an acquired lease puts the token in force.
#[test]
fn around_the_proxy_it_compares() {
    let fenced = Fenced::start_with(Options::default(), SCHEMA, &ProxyOptions::default().policies(POLICIES));
    let mut around = Wire::login(&fenced.postgres.address(), SUPERUSER, "postgres");
    ok(&mut around, "SET lease.fence = 6");
    assert_eq!(code(&mut around, CLAIM), "LF004");
    ok(&mut fenced.holder(6), WRITE);
    assert_eq!(value(&mut around, CLAIM).as_deref(), Some("6"));
    ok(&mut fenced.holder(7), WRITE);
    assert_eq!(code(&mut around, CLAIM), "LF001");
}

/// A Publish waits for the lock that a claim holds until its transaction ends.
#[test]
fn no_newer_token_comes_into_force_during_its_transaction() {
    let fenced = start();
    ok(&mut fenced.holder(6), WRITE);
    let mut around = Wire::login(&fenced.postgres.address(), SUPERUSER, "postgres");
    ok(&mut around, "SET lease.fence = 6; BEGIN");
    ok(&mut around, CLAIM);
    let process = ticks::process(&mut around);
    ok(&mut fenced.holder(7), WRITE);
    // The takeover has terminated the process.
    ticks::wait_until_harmless(&fenced.postgres, &process);
    around.send(&message::query("COMMIT"));
    assert_eq!(error_in(&around.read_until_ready()).map(|error| error.code().to_owned()).as_deref(), Some("57P01"));
}
