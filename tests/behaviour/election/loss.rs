//! Leadership ends in time, for each reason.

use super::{LONG, NAME, election, is_silence, keys, lease, queue_up, soon, wait_for_keys, win};
use crate::support::Stalls;
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use fencegate_leader::clock::BootInstant;
use fencegate_leader::{LeaderError, Loss};
use std::time::Duration;

/// How late may be noticed what was due, on a machine that has the time.
const SLACK: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_leadership_at_the_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 3)).await;
    let stalls = Stalls::watch();
    server.pause();
    let stopped = BootInstant::now();
    let loss = soon(leadership.lost()).await;
    let now = BootInstant::now();
    let stalled = stalls.total();
    let slack = SLACK + stalled;
    assert!(is_silence(&loss, stalled), "{loss}, stalled for {stalled:?}");
    let deadline = leadership.deadline();
    assert!(deadline <= stopped + Duration::from_secs(3), "no renewal was sent after etcd stopped and answered");
    assert!(deadline <= now && now < deadline + slack, "{now:?} is not {deadline:?}");
    assert!(matches!(leadership.proclaim("x").await, Err(LeaderError::Lost(lost)) if lost == loss));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_etcd_ends_leadership_at_the_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 2)).await;
    let stalls = Stalls::watch();
    server.kill9();
    let loss = soon(leadership.lost()).await;
    let (now, deadline) = (BootInstant::now(), leadership.deadline());
    let stalled = stalls.total();
    let slack = SLACK + stalled;
    assert!(is_silence(&loss, stalled), "{loss}, stalled for {stalled:?}");
    if let Loss::Unreachable { reason } = &loss {
        assert!(reason.contains("connect"), "{reason}");
    }
    assert!(deadline <= now && now < deadline + slack, "{now:?} is not {deadline:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_ends_leadership_at_once() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    assert_eq!(soon(leadership.lost()).await, Loss::Revoked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_key_ends_leadership_at_once() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let key = keys(&server).remove(0);
    run(&mut server.etcdctl(&["del", &key]));
    assert_eq!(soon(leadership.lost()).await, Loss::KeyGone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_key_is_not_ours() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let key = keys(&server).remove(0);
    let mut client = etcd_client::Client::connect([server.url()], None).await.unwrap();
    client.delete(key.as_str(), None).await.unwrap();
    client.put(key.as_str(), "theirs", None).await.unwrap();
    assert_eq!(soon(leadership.lost()).await, Loss::KeyGone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_etcd_has_another_leader() {
    let mut server = Etcd::start();
    let past = format!("{NAME}/1");
    server.put_new(&past);
    server.save_snapshot("past");
    server.delete(&past);
    let leadership = win(&election(&server, "ours", LONG)).await;
    server.restore_snapshot("past");
    assert_eq!(soon(leadership.lost()).await, Loss::Superseded { token: 2 });
}

#[tokio::test(flavor = "multi_thread")]
async fn resigning_lets_the_next_candidate_lead_at_once() {
    let server = Etcd::start();
    let first = win(&election(&server, "first", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "second", LONG));
    first.resign().await.unwrap();
    assert_eq!(soon(first.lost()).await, Loss::Resigned);
    let second = soon(campaign).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert!(matches!(first.resign().await, Err(LeaderError::Lost(Loss::Resigned))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_clone_that_is_dropped_gives_leadership_up() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let clone = leadership.clone();
    drop(leadership);
    clone.proclaim("still ours").await.unwrap();
    drop(clone);
    wait_for_keys(&server, 0);
}

/// It is nobody's then: the next in the queue leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_cut_loose_from_its_lease_leads_no_longer() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "a", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "b", LONG));
    run(&mut server.etcdctl(&["put", &keys(&server)[0], "somebody's"]));
    assert_eq!(soon(leadership.lost()).await, Loss::KeyGone);
    let next = soon(campaign).await.unwrap().unwrap();
    assert_eq!(next.holder(), "b");
    wait_for_keys(&server, 1);
}
