//! The queue of candidates keeps its order.

use super::{LONG, election, keys, lease, queue_up, soon, wait_for_keys, win};
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use crate::support::{DEADLINE, wait_until};
use futures_util::StreamExt;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn candidates_lead_in_order_of_arrival() {
    let server = Etcd::start();
    let mut leadership = win(&election(&server, "0", LONG)).await;
    let campaigns: Vec<_> =
        (1..4).map(|number| queue_up(&server, &election(&server, &number.to_string(), LONG))).collect();
    for (number, campaign) in (1..4).zip(campaigns) {
        let before = leadership.token();
        leadership.resign().await.unwrap();
        leadership = soon(campaign).await.unwrap().unwrap();
        assert_eq!(leadership.holder(), number.to_string());
        assert!(leadership.token() > before);
    }
}

/// The middle candidate leaves. The one behind it must not mistake this for its own turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_in_the_queue_does_not_make_a_leader() {
    let server = Etcd::start();
    let first = win(&election(&server, "first", LONG)).await;
    let second = queue_up(&server, &election(&server, "second", LONG));
    let third = queue_up(&server, &election(&server, "third", LONG));
    second.abort();
    wait_for_keys(&server, 2);
    first.proclaim("first, still").await.unwrap();
    assert!(!third.is_finished());
    first.resign().await.unwrap();
    assert_eq!(soon(third).await.unwrap().unwrap().holder(), "third");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_dropped_leaves_no_key() {
    let server = Etcd::start();
    let _holder = win(&election(&server, "holder", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", LONG));
    campaign.abort();
    wait_for_keys(&server, 1);
}

/// Dropped before any reply can arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_dropped_early_leaves_no_key() {
    let server = Etcd::start();
    let holder = win(&election(&server, "holder", LONG)).await;
    let election = election(&server, "candidate", LONG);
    let campaign = tokio::time::timeout(Duration::ZERO, election.campaign());
    assert!(campaign.await.is_err());
    holder.resign().await.unwrap();
    let _last = win(&super::election(&server, "last", LONG)).await;
    wait_for_keys(&server, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_kept_alive_in_the_queue() {
    let server = Etcd::start();
    let holder = win(&election(&server, "holder", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", 6));
    let queue = keys(&server);
    // Longer than the lease lasts without renewals, even if etcd ends it late.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(keys(&server), queue);
    holder.resign().await.unwrap();
    soon(campaign).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_place_is_replaced_by_a_new_one() {
    let server = Etcd::start();
    let holder = win(&election(&server, "holder", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", LONG));
    for how in ["lease", "key"] {
        let lost = keys(&server).pop().unwrap();
        match how {
            "lease" => run(&mut server.etcdctl(&["lease", "revoke", lease(&lost)])),
            _ => run(&mut server.etcdctl(&["del", &lost])),
        };
        wait_until("the candidate has another place", DEADLINE, || {
            let keys = keys(&server);
            keys.len() == 2 && !keys.contains(&lost)
        });
    }
    assert!(!campaign.is_finished());
    holder.resign().await.unwrap();
    soon(campaign).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_see_proclaimed_values() {
    let server = Etcd::start();
    let mut observer = election(&server, "other", LONG).observe();
    assert_eq!(soon(observer.next()).await, Some(Ok(None)));
    let leadership = win(&election(&server, "ours", LONG)).await;
    assert_eq!(soon(observer.next()).await.unwrap().unwrap().unwrap().value, b"ours");
    leadership.proclaim("http://here").await.unwrap();
    let leader = soon(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((leader.value.as_slice(), leader.token), (&b"http://here"[..], leadership.token()));
    assert_ne!(leader.lease, 0, "a proclaimed value ends with the lease");
}
