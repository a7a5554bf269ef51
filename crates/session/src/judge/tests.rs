//! The judge's decisions for a text, a token and the known facts: which writes are forwarded, with which needs, and
//! which are rejected.

mod facts;
mod resolve;
mod strings;
mod world;

use super::*;
use crate::parameter::ParameterValue;
use fencegate_policy::{QualifiedName, join};
use fencegate_statement::{Lexing, analyze};
use fencegate_wire::client_error::ErrorKind;
use world::*;

const POLICIES: &str = "version: 1
resources:
  - {name: scheduler, tables: [public.jobs]}
  - {name: billing, tables: [public.bills], on_missing: allow}
  - {name: trial, tables: [public.trials], mode: observe}
";

fn read_policies(text: &str) -> PolicySet {
    join([("a.yaml".into(), Ok(text.to_owned().into()))]).unwrap()
}

fn policies() -> PolicySet {
    read_policies(POLICIES)
}

/// Policies for the table `shards` by its key `k`, and that table.
fn keyed() -> (PolicySet, QualifiedName) {
    let policies = "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";
    let policies = read_policies(policies);
    let table = policies.resources[0].tables[0].name.clone();
    (policies, table)
}

/// Judges each text under its token, and compares the outcomes.
#[track_caller]
fn check<const N: usize>(cases: [(World, &str, ParameterValue, Outcome); N]) {
    for (number, (world, text, token, expected)) in cases.into_iter().enumerate() {
        let found = world.judge(&policies(), text, token.clone());
        assert_eq!(found, expected, "case {number}: {text} under {token:?}");
    }
}

const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const BILL: &str = "INSERT INTO bills VALUES (1)";
const TRIAL: &str = "INSERT INTO trials VALUES (1)";
const FREE: &str = "INSERT INTO free VALUES (1)";
const LOCK: &str = "SELECT * FROM jobs FOR UPDATE";
const OPAQUE: &str = "DO 'BEGIN END'";
const PREPARE: &str = "PREPARE TRANSACTION 'a'";

#[test]
fn a_write_needs_the_sessions_token() {
    let admitted = || forward().needs("scheduler", 47);
    check([
        (world(), WRITE, token(47), admitted()),
        (world().admitted(47), WRITE, token(47), admitted()),
        (world().admitted(47).knows(100), WRITE, token(47), admitted()),
        (world().knows(47), WRITE, token(47), admitted()),
        (world().knows(100), WRITE, token(47), reject(0, "LF001")),
        (world().admitted(46).knows(100), WRITE, token(47), reject(0, "LF001")),
        (world(), WRITE, no_token(), reject(0, "LF002")),
        (world(), WRITE, value("other=5"), reject(0, "LF002")),
        (world(), WRITE, value("none of it"), reject(0, "LF003")),
        (world().has_written(46), WRITE, token(47), reject(0, "LF003")),
        (world().has_written(47), WRITE, token(47), admitted()),
        (world().refused(), WRITE, token(47), reject(0, "LF006")),
        (world().exempt(), WRITE, no_token(), forward().passes(Passes::Exempt)),
        (world(), "SELECT * FROM jobs", no_token(), forward()),
        // Locks are fenced only for sessions with a token.
        (world(), LOCK, no_token(), forward()),
        (world(), LOCK, token(47), admitted()),
        (world(), BILL, no_token(), forward()),
        (world(), BILL, value("billing=3"), forward().needs("billing", 3)),
        (world(), TRIAL, no_token(), forward().passes(Passes::Observed(ErrorKind::Missing))),
        (world(), TRIAL, token(47), forward().needs("trial", 47)),
        (world(), FREE, no_token(), forward()),
    ]);
}

#[test]
fn a_write_waits_for_replies_that_may_change_the_token() {
    let unknown = || ParameterValue::Unknown;
    check([
        (world().owes(), WRITE, token(47), forward().needs("scheduler", 47)),
        (world().owes_token(), WRITE, token(47), Outcome::Settle),
        (world().owes().admitted(46), WRITE, token(47), Outcome::Settle),
        (world().admitted(46), WRITE, token(47), forward().needs("scheduler", 47)),
        (world(), WRITE, unknown(), Outcome::ReadValue),
        (world().owes_token(), WRITE, unknown(), Outcome::Settle),
        (world().owes_token(), "SELECT 1", unknown(), forward()),
        (world(), "SET lease.fence = 'x'", no_token(), reject(0, "LF003")),
        (world().admitted(47), "SET lease.fence = 48", token(47), forward()),
    ]);
}

#[test]
fn statements_of_a_string_are_judged_in_order() {
    let two_tokens = "INSERT INTO jobs VALUES (1); SET lease.fence = 48; DELETE FROM jobs";
    let set_config = "SELECT set_config(n, '1', false) FROM t; INSERT INTO jobs VALUES (1)";
    let prepares = "INSERT INTO jobs VALUES (1); PREPARE TRANSACTION 'a'";
    let sets = "SET lease.fence = 48; INSERT INTO jobs VALUES (1)";
    let resets = "RESET lease.fence; INSERT INTO jobs VALUES (1)";
    check([
        (world(), sets, no_token(), forward().needs("scheduler", 48)),
        (world(), resets, token(47), forward().needs("scheduler", 47)),
        (world(), "SELECT 1; INSERT INTO jobs VALUES (1)", no_token(), reject(1, "LF002")),
        (world(), "INSERT INTO jobs VALUES (1); DO ''", token(47), reject(1, "LF004").needs("scheduler", 47)),
        (world(), two_tokens, token(47), reject(2, "LF003").needs("scheduler", 47)),
        (world(), set_config, token(47), reject(1, "LF004")),
        (world(), PREPARE, token(47), forward()),
        (world().admitted(47), PREPARE, token(47), reject(0, "LF004")),
        (world(), prepares, token(47), reject(1, "LF004").needs("scheduler", 47)),
    ]);
}

#[test]
fn a_statement_that_does_not_show_its_writes_is_rejected() {
    check([
        (world(), OPAQUE, token(47), reject(0, "LF004")),
        (world().exempt(), OPAQUE, token(47), forward().passes(Passes::Exempt)),
        (world().without_tables(), OPAQUE, no_token(), forward()),
        (world(), "CALL p()", no_token(), reject(0, "LF004")),
        (world().defines(), FREE, token(47), reject(0, "LF004")),
        (world().others_define(), FREE, token(47), reject(0, "LF004")),
        (world().defines().others_define(), "SELECT 1", token(47), forward()),
        // Until the catalog is read, any relation may be a way to a fenced table.
        (world().unread(), FREE, no_token(), reject(0, "LF006")),
        (world().without_listener(), FREE, no_token(), reject(0, "LF006")),
        (world().unread(), WRITE, token(47), reject(0, "LF006")),
        (world().without_listener(), WRITE, token(47), forward().needs("scheduler", 47)),
        (world().others_define().unread(), WRITE, token(47), reject(0, "LF006")),
        (world().unread(), "SELECT 1", no_token(), forward()),
    ]);
}

/// A session therefore does not judge read-only statements.
#[test]
fn a_read_only_statement_is_always_forwarded() {
    let writing = || world().admitted(46).knows(100).has_written(46).was_observed(46).refused();
    let worlds = [
        world(),
        writing().owes_token().defines().others_define().unread().exempt(),
        writing(),
        world().owes_token(),
        world().defines(),
        world().others_define(),
        world().unread(),
        world().exempt(),
        world().without_listener(),
        world().without_tables(),
        world().with_trial_only(),
    ];
    let is_read = |text: &str| analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].only_reads();
    for text in ["SELECT 1", "SELECT count(*), lower(x) FROM jobs", "SELECT * FROM free, trials WHERE x = 'y'"] {
        assert!(is_read(text), "{text}");
        for (number, world) in worlds.iter().enumerate() {
            for token in [no_token(), token(47), ParameterValue::Unknown] {
                assert_eq!(world.judge(&policies(), text, token.clone()), forward(), "{text} | {token:?} | {number}");
            }
        }
    }
    for text in [
        "SELECT 1 FROM jobs FOR UPDATE",
        "SELECT f()",
        "SELECT set_config('lease.fence', '1', false)",
        "SELECT 1 INTO t",
        "WITH w AS (DELETE FROM jobs RETURNING 1) SELECT * FROM w",
        "INSERT INTO jobs VALUES (1)",
        "EXPLAIN ANALYZE DELETE FROM jobs",
        "FETCH 1 FROM c",
        "EXECUTE p",
        "SHOW lease.fence",
        "DO 'BEGIN END'",
    ] {
        assert!(!is_read(text), "{text}");
    }
}

/// The catalog shows which column is the key. Until it is read, the statement is not at fault.
#[test]
fn a_key_whose_column_is_unread_is_reported_as_unavailable() {
    let (policies, _) = keyed();
    let world = || world().reads_rows().without_tables();
    for text in ["UPDATE shards SET v = 2", "INSERT INTO shards VALUES (1) ON CONFLICT (v) DO UPDATE SET v = 2"] {
        assert_eq!(world().without_listener().judge(&policies, text, token(47)), reject(0, "LF004"), "{text}");
    }
    for text in ["SELECT * FROM shards WHERE k = 1 FOR UPDATE", "UPDATE shards SET v = 2 WHERE k = 1"] {
        assert_eq!(world().unread().judge(&policies, text, token(47)), reject(0, "LF006"), "{text}");
        assert_eq!(world().judge(&policies, text, token(47)), reject(0, "LF004"), "{text}");
    }
}

#[test]
fn rows_are_read_only_for_keyed_tables() {
    let policies = read_policies(
        "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n  - {name: other, tables: [public.other]}\n",
    );
    for (text, expected) in [
        ("UPDATE shards SET v = 2 WHERE k = 1", Outcome::ReadRows),
        ("UPDATE other SET v = 2 WHERE k = 1", forward().needs("other", 47)),
        ("UPDATE free SET v = 2 WHERE k = 1", forward()),
    ] {
        assert_eq!(world().judge(&policies, text, token(47)), expected, "{text}");
    }
}

const OBSERVED: &str = "version: 1
resources:
  - {name: trial, tables: [public.trials], mode: observe}
";

#[test]
fn an_observing_fence_reports_the_writes_that_an_enforcing_one_rejects() {
    let two_tokens = "INSERT INTO trials VALUES (1); SET lease.fence = 48; DELETE FROM trials";
    let set_config = "SELECT set_config(n, '1', false) FROM t; INSERT INTO trials VALUES (1)";
    let (observing, enforcing) = (read_policies(OBSERVED), read_policies(&OBSERVED.replace("observe", "enforce")));
    let passes = |world: &World, text: &str, token: &ParameterValue| {
        let outcome = world.judge(&observing, text, token.clone());
        matches!(outcome, Outcome::Forward { passes, .. } if !passes.is_empty())
    };
    for (world, text, token) in [
        (world(), TRIAL, no_token()),
        (world(), TRIAL, value("none of it")),
        (world(), OPAQUE, token(47)),
        (world(), "CALL p()", token(47)),
        (world(), "DROP SCHEMA s CASCADE", token(47)),
        (world().defines(), FREE, token(47)),
        (world().others_define(), FREE, token(47)),
        (world().unread(), FREE, token(47)),
        (world().without_listener(), FREE, token(47)),
        (world(), "INSERT INTO trials VALUES (1); PREPARE TRANSACTION 'a'", token(47)),
        (world(), two_tokens, token(47)),
        (world(), set_config, token(47)),
        (world().defines(), PREPARE, token(47)),
    ] {
        assert!(passes(&world, text, &token), "{text}");
        let enforced = world.judge(&enforcing, text, token);
        assert!(matches!(enforced, Outcome::Reject { .. }), "{text}: {enforced:?}");
    }
    // Only an observing fence considers writes that it has observed before.
    for (text, presented) in [(PREPARE, token(47)), (TRIAL, token(48))] {
        assert!(passes(&world().was_observed(47), text, &presented), "{text}");
    }
}

#[test]
fn an_enforcing_fence_decides_if_a_statement_may_affect_both() {
    const MIXED: &str = "version: 1
resources:
  - {name: scheduler, tables: [public.jobs]}
  - {name: trial, tables: [public.trials], mode: observe}
";
    let mixed = read_policies(MIXED);
    let both = read_policies(&format!("{MIXED}opaque: require_token\n"));
    let observed = |kind| forward().passes(Passes::Observed(kind));
    for (policies, world, text, token, expected) in [
        (&mixed, world(), OPAQUE, token(47), reject(0, "LF004")),
        (&mixed, world(), TRIAL, no_token(), observed(ErrorKind::Missing)),
        (&mixed, world().unread(), WRITE, token(47), observed(ErrorKind::Unavailable).needs("scheduler", 47)),
        (&mixed, world().unread(), TRIAL, token(47), reject(0, "LF006")),
        // A fence whose tables do not exist rejects nothing.
        (&mixed, world().with_trial_only(), OPAQUE, token(47), observed(ErrorKind::Unverifiable)),
        (&both, world(), OPAQUE, value("scheduler=47"), observed(ErrorKind::Missing).needs("scheduler", 47)),
        (&both, world(), OPAQUE, token(47), forward().needs("scheduler", 47).needs("trial", 47)),
    ] {
        assert_eq!(world.judge(policies, text, token), expected, "{text}");
    }
    for (role, expected) in [("postgres", forward()), ("app", reject(0, "LF004"))] {
        let policies = read_policies(&format!("{MIXED}opaque_roles: {{{role}: allow}}\n"));
        assert_eq!(world().judge(&policies, OPAQUE, no_token()), expected, "{role}");
    }
}
