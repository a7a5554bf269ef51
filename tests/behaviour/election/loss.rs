//! Leadership ends in time, for each reason.

use super::{LONG, NAME, election, is_silence, keys, lease, queue_up, soon, wait_for_keys, win};
use crate::support::Stalls;
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use fencegate_leader::{Error, Lost};
use std::time::{Duration, Instant};

/// True if the loss was announced shortly before the lease's deadline. If the machine has stalled, the deadline may
/// have passed.
pub fn is_announced_in_time(left: Duration, stalled: Duration) -> bool {
    left <= Duration::from_millis(100) && (!left.is_zero() || stalled >= Duration::from_millis(50))
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_leadership_at_the_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 3)).await;
    let stalls = Stalls::watch();
    server.pause();
    let stopped = Instant::now();
    let loss = soon(leadership.lost()).await;
    let (left, stalled) = (leadership.remaining(), stalls.total());
    assert!(
        stopped.elapsed() < Duration::from_secs(3) + stalled,
        "no renewal was sent after etcd stopped and answered"
    );
    assert!(is_silence(&loss, stalled), "{loss}, stalled for {stalled:?}");
    assert!(is_announced_in_time(left, stalled), "{left:?} left, stalled for {stalled:?}");
    assert_eq!(leadership.check(), Err(loss.clone()));
    assert_eq!(leadership.proclaim("x").await, Err(Error::Lost(loss)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_etcd_ends_leadership_at_the_deadline() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "ours", 2)).await;
    let stalls = Stalls::watch();
    server.kill9();
    let loss = soon(leadership.lost()).await;
    let (left, stalled) = (leadership.remaining(), stalls.total());
    assert!(is_silence(&loss, stalled), "{loss}, stalled for {stalled:?}");
    if let Lost::Unreachable { reason } = &loss {
        assert!(reason.contains("connect"), "{reason}");
    }
    assert!(is_announced_in_time(left, stalled), "{left:?} left, stalled for {stalled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_ends_leadership_at_once() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    assert_eq!(soon(leadership.lost()).await, Lost::Revoked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_key_ends_leadership_at_once() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let key = keys(&server).remove(0);
    run(&mut server.etcdctl(&["del", &key]));
    assert_eq!(soon(leadership.lost()).await, Lost::KeyGone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_key_is_not_ours() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let key = keys(&server).remove(0);
    let mut client = etcd_client::Client::connect([server.url()], None).await.unwrap();
    client.delete(key.as_str(), None).await.unwrap();
    client.put(key.as_str(), "theirs", None).await.unwrap();
    assert_eq!(soon(leadership.lost()).await, Lost::KeyGone);
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
    let lost = soon(leadership.lost()).await;
    assert!(matches!(lost, Lost::Superseded { token } if token.get() == 2), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn resigning_lets_the_next_candidate_lead_at_once() {
    let server = Etcd::start();
    let first = win(&election(&server, "first", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "second", LONG));
    first.resign().await.unwrap();
    assert_eq!(soon(first.lost()).await, Lost::Resigned);
    let second = soon(campaign).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert_eq!(first.resign().await, Err(Error::Lost(Lost::Resigned)));
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

/// The key then belongs to no candidate, and the next in the queue leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_cut_loose_from_its_lease_leads_no_longer() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "a", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "b", LONG));
    run(&mut server.etcdctl(&["put", &keys(&server)[0], "somebody's"]));
    assert_eq!(soon(leadership.lost()).await, Lost::KeyGone);
    let next = soon(campaign).await.unwrap().unwrap();
    assert_eq!(next.holder(), "b");
    wait_for_keys(&server, 1);
}
