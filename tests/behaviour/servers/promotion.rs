//! The primary fails or is replaced.

use super::World;
use crate::support::cluster::Replication;
use crate::support::postgres::SUPERUSER;
use crate::support::ticks::{WRITE, ok, session};
use crate::support::wire::{error_in, message};
use crate::support::{DEADLINE, Stalls, Wire, wait_until};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn sessions_move_to_the_promoted_server() {
    let mut world = World::start(&[]);
    let mut old = session(&world.proxy.address(), 1);
    ok(&mut old, WRITE);
    assert_eq!(world.server_of(&mut old), 0);
    world.cluster.catch_up(1);
    world.cluster[0].stop();
    world.wait_for_event("upstream_without_primary", 1);
    let error = world.refusal().expect("no server is the primary");
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P03"), "{error:?}");
    for (node, state) in [(0, "unknown"), (1, "standby")] {
        let expected = format!("127.0.0.1:{} is {state}", world.cluster.port(node));
        assert!(error.detail().contains(&expected), "{error:?}");
    }

    world.cluster.promote(1);
    world.wait_for_primary(1);
    let mut new = session(&world.proxy.address(), 2);
    assert_eq!(world.server_of(&mut new), 1);
    ok(&mut new, WRITE);
}

#[test]
fn a_session_on_the_old_primary_ends() {
    let mut world = World::start(&[]);
    let mut idle = session(&world.proxy.address(), 1);
    ok(&mut idle, WRITE);
    let mut busy = session(&world.proxy.address(), 1);
    ok(&mut busy, "BEGIN");
    world.cluster.promote(1);
    for mut wire in [idle, busy] {
        let error = error_in(&wire.read_to_end()).expect("the reason");
        assert_eq!((error.severity(), error.code()), ("FATAL", "57P01"), "{error:?}");
        assert!(error.hint().contains("Another server is the primary now"), "{error:?}");
    }
    world.wait_for_primary(1);
    assert_eq!(world.server_of_a_session(), 1);
}

/// The old primary's COMMIT waits for a standby that no longer follows, and the new leader needs the same lock.
#[test]
fn a_token_that_the_old_primary_cannot_publish_delays_no_leader_on_the_new_one() {
    let mut world = World::start(&[]);
    ok(&mut session(&world.proxy.address(), 1), WRITE);
    world.cluster.set_replication(Replication::Synchronous);
    world.cluster.stop_replication(1);
    let mut deposed = session(&world.proxy.address(), 2);
    deposed.send(&message::query(WRITE));
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencegate%' AND wait_event = 'SyncRep'";
    wait_until("the token is being published", DEADLINE, || world.cluster[0].value(waits) == "1");

    world.cluster.promote(1);
    world.wait_for_primary(1);
    let (begun, stalls) = (Instant::now(), Stalls::watch());
    ok(&mut session(&world.proxy.address(), 3), WRITE);
    // The query on the old primary has a time limit of 5 s.
    let (took, stalled) = (begun.elapsed(), stalls.total());
    assert!(took < Duration::from_secs(4) + stalled, "the write waited for the old primary: {took:?}");
    // No other test can use this server, because its commits wait.
    world.cluster[0].crash();
}

#[test]
fn a_new_session_waits_for_a_primary() {
    let mut world = World::start(&["--connect-wait", "60s"]);
    world.wait_for_primary(0);
    world.cluster.catch_up(1);
    world.cluster[0].stop();
    world.wait_for_event("upstream_without_primary", 1);
    let address = world.proxy.address();
    let (logged_in, waiting) = std::sync::mpsc::channel();
    let client = thread::spawn(move || {
        let mut wire = Wire::login(&address, SUPERUSER, "postgres");
        logged_in.send(()).unwrap();
        wire.rows("SELECT inet_server_port()").unwrap()[0][0].clone().unwrap()
    });
    assert!(waiting.try_recv().is_err(), "no server is the primary");
    world.cluster.promote(1);
    assert_eq!(client.join().unwrap(), world.cluster[1].port().to_string());
}

#[test]
fn sessions_return_to_a_primary_that_was_restarted() {
    let mut world = World::start(&["--connect-wait", "60s"]);
    for token in 1..4 {
        ok(&mut session(&world.proxy.address(), token), WRITE);
        world.cluster[0].stop();
        world.cluster[0].start_again();
    }
    assert_eq!(world.server_of_a_session(), 0);
    assert!(!world.proxy.log().contains("upstream_superseded"));
}
