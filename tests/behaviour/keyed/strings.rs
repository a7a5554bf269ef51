//! Many keys in one string: the cost is linear in its length.

use super::{holder, ok, world};
use crate::support::wire::{Wire, error_in};

const KEYS: usize = 500;

/// In hundredths of a second. Judging the string again for every key took half a minute or more.
const PROCESSOR_TIME: u64 = 750;

fn string(from: usize) -> String {
    let insert = |key| format!("INSERT INTO shard_ticks (shard, id) VALUES ({key}, {key});");
    (from..from + KEYS).map(insert).collect()
}

#[test]
fn a_string_for_many_keys_is_judged_once() {
    let world = world();
    let mut wire = holder(&world, "47");
    ok(&mut wire, "INSERT INTO shard_ticks (shard, id) VALUES (0, 0)");
    let before = world.proxy.processor_time();
    assert_eq!(error_in(&wire.query(&string(1))), None);
    let first = world.proxy.processor_time() - before;
    println!("{} bytes: {first} ticks", string(1).len());
    assert!(first < PROCESSOR_TIME, "{first} ticks");
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.admission"), (KEYS + 1).to_string());
}

/// No session is admitted for the remaining keys of an ended session.
#[test]
fn no_query_is_sent_for_an_ended_session() {
    let world = world();
    let mut wire = holder(&world, "47");
    ok(&mut wire, "INSERT INTO shard_ticks (shard, id) VALUES (0, 0)");
    let process = crate::support::ticks::process(&mut wire);
    // No session can be admitted until the table is writable again.
    let mut blocker = Wire::login(&world.postgres.address(), "postgres", "postgres");
    ok(&mut blocker, "BEGIN; LOCK TABLE fencegate_state.admission IN EXCLUSIVE MODE");
    wire.send(&crate::support::message::query(&string(1)));
    let waits = "SELECT count(*) FROM pg_locks WHERE relation = 'fencegate_state.admission'::regclass AND NOT granted";
    crate::support::wait_until("an admission waits", crate::support::DEADLINE, || world.postgres.value(waits) == "1");
    ok(&mut blocker, &format!("SELECT pg_terminate_backend({process})"));
    wire.read_to_end();
    ok(&mut blocker, "COMMIT");
    let mut other = holder(&world, "47");
    ok(&mut other, "INSERT INTO shard_ticks (shard, id) VALUES (0, 1)");
    let epochs = world.postgres.value("SELECT count(*) FROM fencegate_state.epoch").parse::<usize>().unwrap();
    assert!(epochs < KEYS / 2, "{epochs} epochs");
}
