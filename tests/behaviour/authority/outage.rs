//! While etcd is silent, admitted sessions continue and no fence is raised. Service resumes when etcd answers again.

use super::world::{POLICIES, WITHOUT_ELECTION, World};
use crate::metrics::page::get;
use crate::metrics::world::http_address;
use crate::support::ticks::{WRITE, ok, refused, session};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, Stalls, Wire, wait_until};
use fencegate_leader::Patience;
use std::time::{Duration, Instant};

#[test]
fn admitted_sessions_continue_and_no_fence_is_raised() {
    let mut world = World::start();
    let proxy = world.proxy();
    let first = world.stand("a");
    let mut admitted = session(&proxy.address(), first);
    ok(&mut admitted, WRITE);
    let second = world.stand("b");
    world.etcd.pause();

    ok(&mut admitted, WRITE);
    // A token that etcd has confirmed is recorded. This holds even if the drain is incomplete.
    ok(&mut session(&proxy.address(), first), WRITE);
    world.postgres.sql("UPDATE fencegate_state.epoch SET drained = false");
    ok(&mut session(&proxy.address(), first), WRITE);

    let (stalls, start) = (Stalls::watch(), Instant::now());
    let mut next = session(&proxy.address(), second);
    let error = refused(&mut next, WRITE, "LF006");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8) + stalls.total(), "{took:?}");
    assert!(error.message().contains("cannot query etcd for the leader of /cron/scheduler/leader"), "{error:?}");
    assert_eq!(world.epoch(), format!("1/{first}"));
    ok(&mut admitted, WRITE);

    world.etcd.signal("CONT");
    world.depose("a");
    wait_until("the next leader writes", DEADLINE, || error_in(&next.query(WRITE)).is_none());
    refused(&mut admitted, WRITE, "LF001");
}

#[test]
fn an_etcd_outage_is_shown() {
    let mut world = World::start();
    let options = ["--etcd", &world.etcd.url(), "--http", "127.0.0.1:0"];
    let proxy = Proxy::start(&world.postgres, POLICIES, &options);
    let address = http_address(|| proxy.log());
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    let _session = Wire::login(&proxy.address(), "postgres", "postgres");
    let mut shown = |state: &str, is_up, token: Option<i64>| {
        wait_until(state, DEADLINE, || {
            let metrics = get(address, "/metrics").body;
            let of_token = |line: &&str| line.starts_with("fencegate_election_token{");
            let leads = token.map(|it| format!("fencegate_election_token{{election=\"/cron/scheduler/leader\"}} {it}"));
            metrics.lines().any(|line| line == format!("fencegate_etcd_up {is_up}"))
                && metrics.lines().find(of_token) == leads.as_deref()
                // SHOW FENCES has no row while it cannot read the fence in time.
                && console.rows("SHOW FENCES").unwrap().iter().any(|row| row.last() == Some(&Some(state.to_owned())))
        });
    };
    shown("nobody", 1, Some(0));
    let token = world.stand("a");
    shown("leads", 1, Some(token));
    world.etcd.pause();
    shown("unknown", 0, None);
    world.etcd.signal("CONT");
    shown("leads", 1, Some(token));
}

#[test]
fn a_leader_below_the_fence_is_counted() {
    let world = World::start();
    ok(&mut session(&world.proxy_with(WITHOUT_ELECTION).address(), 1_000_000), WRITE);
    let options = ["--etcd", &world.etcd.url(), "--http", "127.0.0.1:0"];
    let proxy = Proxy::start(&world.postgres, POLICIES, &options);
    let address = http_address(|| proxy.log());
    let token = world.stand("a");
    let mut leader = session(&proxy.address(), token);
    wait_until("the error reports it", DEADLINE, || {
        refused(&mut leader, WRITE, "LF001").message().starts_with("tokens have gone back")
    });
    let has = |is_so| {
        let line = format!("fencegate_tokens_gone_back{{database=\"postgres\",resource=\"scheduler\"}} {is_so}");
        get(address, "/metrics").body.lines().any(|it| it == line)
    };
    wait_until("it is counted", DEADLINE, || has(1));
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    console.rows(&format!("FENCE RESET scheduler TO {token} FORCE")).unwrap();
    ok(&mut leader, WRITE);
    wait_until("no leader is below the fence", DEADLINE, || has(0));
}

/// Sessions start as fast as usual, because they do not wait for etcd.
#[test]
fn sessions_start_without_etcd() {
    let mut world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    ok(&mut session(&proxy.address(), token), WRITE);
    world.etcd.pause();
    let (stalls, start) = (Stalls::watch(), Instant::now());
    for _ in 0..10 {
        ok(&mut session(&proxy.address(), token), WRITE);
    }
    let took = start.elapsed();
    // The time that the first session alone would have waited.
    assert!(took < Patience::USUAL.limit + stalls.total(), "{took:?}");
}
