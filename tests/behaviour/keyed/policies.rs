//! Policy settings of keyed resources.

use super::{POLICIES, SCHEMA, holder, refused};
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::{DEADLINE, wait_until};

fn world(more: &str) -> Fenced {
    Fenced::start(SCHEMA, &(POLICIES.to_owned() + more))
}

#[test]
fn on_missing_allow_needs_no_key_without_a_token() {
    let world = world("    on_missing: allow\n");
    ok(&mut world.login(), "INSERT INTO shard_ticks (shard, id) SELECT 3, 1");
    ok(&mut holder(&world, "shard/3=2"), "INSERT INTO shard_ticks (shard, id) VALUES (3, 2)");
    assert_eq!(code(&mut holder(&world, "shard/3=1"), "DELETE FROM shard_ticks WHERE shard = 3"), "LF001");
    assert_eq!(code(&mut holder(&world, "shard/3=2"), "DELETE FROM shard_ticks"), "LF004");
}

#[test]
fn mode_observe_passes_everything_and_logs_it() {
    let world = world("    mode: observe\n");
    ok(&mut holder(&world, "shard/3=2"), "INSERT INTO shard_ticks (shard, id) VALUES (3, 2)");
    wait_until("the token is recorded", DEADLINE, || super::epochs(&world) == "shard/3=2");
    ok(&mut holder(&world, "shard/3=1"), "UPDATE shard_ticks SET v = 'x' WHERE shard = 3");
    world.proxy.wait_for_log("stale_write_observed", DEADLINE);
    ok(&mut holder(&world, "shard/3=1"), "UPDATE shard_ticks SET v = 'x'");
    world.proxy.wait_for_log("unverifiable", DEADLINE);
}

#[test]
fn operations_that_are_left_free_have_no_key() {
    let policies = POLICIES.replace("key: shard", "key: shard, operations: [insert, update, delete]");
    let world = Fenced::start(SCHEMA, &policies);
    ok(&mut world.login(), "TRUNCATE shard_ticks; ALTER TABLE shard_ticks ADD COLUMN more int");
    assert_eq!(code(&mut world.login(), "INSERT INTO shard_ticks (shard, id) VALUES (3, 1)"), "LF002");
}

/// The catalog is not read again, because nothing was changed.
#[test]
fn a_definition_that_failed_does_not_count_for_other_sessions() {
    let policies = POLICIES.replace("key: shard", "key: shard, operations: [insert, update, delete]");
    let world = Fenced::start(SCHEMA, &policies);
    let mut holder = holder(&world, "shard/3=1");
    ok(&mut holder, "INSERT INTO shard_ticks (shard, id) VALUES (3, 1)");
    assert_eq!(code(&mut world.login(), "ALTER TABLE shard_ticks ADD COLUMN id int"), "42701");
    ok(&mut holder, "INSERT INTO shard_ticks (shard, id) VALUES (3, 2)");
}

#[test]
fn an_opaque_statement_may_write_any_key() {
    let insert = "DO $$ BEGIN INSERT INTO shard_ticks VALUES (3, 1); END $$";
    for (opaque, expected) in [("reject", "LF004"), ("require_token", "LF004"), ("allow", "")] {
        let world = world(&format!("opaque: {opaque}\n"));
        ok(&mut holder(&world, "1"), "INSERT INTO shard_ticks (shard, id) VALUES (3, 9)");
        assert_eq!(code(&mut holder(&world, "1"), insert), expected, "{opaque}");
    }
}

#[test]
fn statements_that_were_prepared_before_the_table_was_keyed_go_on() {
    let mut world = Fenced::start(SCHEMA, "version: 1\nresources:\n  - {name: other, tables: [public.other]}\n");
    let mut wire = holder(&world, "shard/3=1");
    let prepare = [parse("s", "INSERT INTO shard_ticks (shard, id) VALUES ($1, $2)", &[]), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&prepare)), "");
    world.proxy.write_policies(POLICIES);
    world.proxy.sighup();
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    let mut run = |key: &[u8], id: &[u8]| {
        let values = [Some(key), Some(id)];
        code_in(&wire.exchange(&[bind_text("", "s", &values), execute("", 0), sync()].concat()))
    };
    assert_eq!((run(b"3", b"1"), run(b"4", b"2")), (String::new(), "LF002".to_owned()));
}

#[test]
fn two_tokens_for_a_key_in_one_transaction() {
    let world = world("");
    let mut wire = holder(&world, "shard/3=1, shard/4=1");
    ok(&mut wire, "BEGIN; INSERT INTO shard_ticks (shard, id) VALUES (3, 1); SET lease.fence = 'shard/3=2, shard/4=2'");
    ok(&mut wire, "INSERT INTO shard_ticks (shard, id) VALUES (4, 2)");
    let error = refused(&mut wire, "INSERT INTO shard_ticks (shard, id) VALUES (3, 3)");
    assert_eq!((error.code(), error.detail()), ("LF003", "resource=shard/3 presented=2 highest=1"));
}
