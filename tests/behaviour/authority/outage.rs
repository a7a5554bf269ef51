//! etcd is silent: who was admitted goes on, nobody raises a fence, and it is over when etcd answers again.

use super::world::World;
use crate::support::ticks::{WRITE, ok, refused, session};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, wait_until};
use fencegate::etcd::Patience;
use std::time::{Duration, Instant};

#[test]
fn what_is_admitted_goes_on_and_nothing_is_raised() {
    let mut world = World::start();
    let proxy = world.proxy();
    let first = world.stand("a");
    let mut admitted = session(&proxy.address(), first);
    ok(&mut admitted, WRITE);
    let second = world.stand("b");
    world.etcd.pause();

    ok(&mut admitted, WRITE);
    // The same token again: what etcd said once is recorded. Also where the drain was left half done.
    ok(&mut session(&proxy.address(), first), WRITE);
    world.postgres.sql("UPDATE fencegate.epoch SET drained = false");
    ok(&mut session(&proxy.address(), first), WRITE);

    let start = Instant::now();
    let mut next = session(&proxy.address(), second);
    let error = refused(&mut next, WRITE, "LF006");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(error.message().contains("etcd cannot be asked who leads /cron/scheduler/leader"), "{error:?}");
    assert_eq!(world.epoch(), format!("1/{first}"));
    ok(&mut admitted, WRITE);

    world.etcd.signal("CONT");
    world.depose("a");
    wait_until("the next leader writes", DEADLINE, || error_in(&next.query(WRITE)).is_none());
    refused(&mut admitted, WRITE, "LF001");
}

/// Sessions start as fast as ever: they wait for no etcd.
#[test]
fn sessions_start_without_etcd() {
    let mut world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    ok(&mut session(&proxy.address(), token), WRITE);
    world.etcd.pause();
    let start = Instant::now();
    for _ in 0..10 {
        ok(&mut session(&proxy.address(), token), WRITE);
    }
    // As long as the first of them would have waited.
    assert!(start.elapsed() < Patience::USUAL.limit, "{:?}", start.elapsed());
}
