//! Which tokens raise a fence.

use super::world::{POLICIES, World, detail_is};
use crate::support::programs::run;
use crate::support::ticks::{WRITE, ok, refused, session};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, message};

#[test]
fn only_the_leaders_token_raises_the_fence() {
    let world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    let second = world.stand("b");
    assert!(second > token);
    // Before there is an epoch, and after.
    for epoch in ["", &format!("1/{token}")] {
        assert_eq!(world.epoch(), epoch);
        for unissued in [second, token + 1000, i64::MAX] {
            let error = refused(&mut session(&proxy.address(), unissued), WRITE, "LF005");
            detail_is(&error, unissued, Some(token));
            assert!(error.message().contains("was not issued") && error.hint().contains("create_revision"));
        }
        let error = refused(&mut session(&proxy.address(), token - 1), WRITE, "LF001");
        detail_is(&error, token - 1, Some(token));
        assert_eq!(world.epoch(), epoch, "the fence is not raised");
        ok(&mut session(&proxy.address(), token), WRITE);
    }
    assert_eq!((world.epoch(), world.ticks()), (format!("1/{token}"), "2".into()));
}

#[test]
fn without_a_leader_no_token_raises_the_fence() {
    let world = World::start();
    let proxy = world.proxy();
    let mut early = session(&proxy.address(), 7);
    detail_is(&refused(&mut early, WRITE, "LF005"), 7, None);
    assert_eq!(world.epoch(), "");
    let token = world.stand("a");
    let mut leader = session(&proxy.address(), token);
    ok(&mut leader, WRITE);
    world.depose("a");
    // Without a new leader, admitted sessions continue, and their token is accepted.
    ok(&mut leader, WRITE);
    ok(&mut session(&proxy.address(), token), WRITE);
    detail_is(&refused(&mut session(&proxy.address(), token + 1), WRITE, "LF005"), token + 1, None);
}

/// An ERROR like any other: it aborts the transaction, and skips a pipeline up to its Sync.
#[test]
fn an_unissued_token_is_rejected_like_other_errors() {
    let world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    let mut session = session(&proxy.address(), token + 1);
    ok(&mut session, "BEGIN");
    refused(&mut session, WRITE, "LF005");
    refused(&mut session, "SELECT 1", "25P02");
    ok(&mut session, "ROLLBACK");
    let pipeline = [message::unnamed(WRITE, &[]), message::unnamed("SELECT 1", &[]), message::sync()].concat();
    let frames = session.exchange(&pipeline);
    assert_eq!(error_in(&frames).unwrap().code(), "LF005");
    assert!(frames.iter().all(|frame| frame.tag != b'D'), "{frames:?}");
    ok(&mut session, &format!("SET lease.fence = {token}"));
    ok(&mut session, WRITE);
}

#[test]
fn an_observing_fence_ignores_unissued_tokens() {
    let world = World::start();
    let proxy = world.proxy_with(&(POLICIES.to_owned() + "    mode: observe\n"));
    let token = world.stand("a");
    ok(&mut session(&proxy.address(), i64::MAX), WRITE);
    proxy.wait_for_log("write_would_be_rejected", DEADLINE);
    assert_eq!(world.epoch(), "");
    ok(&mut session(&proxy.address(), token), WRITE);
    world.wait_for_epoch(&format!("1/{token}!"));
    ok(&mut session(&proxy.address(), token - 1), WRITE);
    proxy.wait_for_log("stale_write_observed", DEADLINE);
    assert_eq!(world.ticks(), "3");
}

/// Keys that no campaign made: without a lease, not named after their lease, nested deeper, and the election's own
/// name.
#[test]
fn only_a_candidates_key_leads() {
    let world = World::start();
    let proxy = world.proxy();
    for key in ["/cron/scheduler/leader", "/cron/scheduler/leader/config", "/cron/scheduler/leader/5"] {
        run(&mut world.etcd.etcdctl(&["put", key, "nobody's"]));
    }
    let nested = world.etcd.put_new("/cron/scheduler/leader/nested/a");
    assert_eq!(world.etcd.lease_and_put("/cron/scheduler/leader/named-otherwise"), nested + 1);
    detail_is(&refused(&mut session(&proxy.address(), nested), WRITE, "LF005"), nested, None);
    let token = world.stand("a");
    let mut leader = session(&proxy.address(), token);
    ok(&mut leader, WRITE);
    world.wait_for_epoch(&format!("1/{token}"));
    detail_is(&refused(&mut session(&proxy.address(), nested), WRITE, "LF001"), nested, Some(token));
}
