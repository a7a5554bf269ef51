//! etcd fails and returns.

use super::{LONG, NAME, candidate, election, keys, queue_up, renewed, soon, win};
use crate::support::etcd::Etcd;
use fencegate_leader::{Error, Leadership};
use std::slice;

#[tokio::test(flavor = "multi_thread")]
async fn leader_and_candidate_survive_a_restart_within_the_ttl() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "leader", 20)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", 20));
    let queue = keys(&server);
    server.kill9();
    server.start_again();
    renewed(slice::from_ref(&leadership)).await;
    assert_eq!(keys(&server), queue);
    assert!(!campaign.is_finished());
    leadership.resign().await.unwrap();
    assert_eq!(soon(campaign).await.unwrap().unwrap().holder(), "candidate");
}

/// The candidate's watch ends with etcd, and misses the event that the candidate waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_during_a_broken_watch_is_noticed() {
    let mut server = Etcd::start();
    let holder = format!("{NAME}/1");
    server.put_new(&holder);
    let campaign = queue_up(&server, &election(&server, "candidate", LONG));
    server.kill9();
    server.start_again();
    server.delete(&holder);
    soon(campaign).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_ends_when_etcd_is_away_for_a_ttl() {
    let mut server = Etcd::start();
    let _holder = win(&election(&server, "holder", LONG)).await;
    let waiting = queue_up(&server, &election(&server, "waiting", 2));
    server.kill9();
    let unreachable = |outcome: Result<Leadership, Error>| match outcome {
        Err(error @ Error::Unreachable { .. }) => assert!(error.is_retryable()),
        other => panic!("{other:?}"),
    };
    unreachable(soon(waiting).await.unwrap());
    unreachable(soon(election(&server, "new", 2).campaign()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_does_not_keep_another_from_serving() {
    let mut silent = Etcd::start();
    let living = Etcd::start();
    let election = candidate(&[&silent.url(), &living.url()], "ours", 9).build().unwrap();
    silent.pause();
    let leadership = win(&election).await;
    renewed(slice::from_ref(&leadership)).await;
    renewed(slice::from_ref(&leadership)).await;
    assert_eq!(keys(&living).len(), 1);
}
