//! etcd fails and returns.

use super::{LONG, NAME, client, election, keys, queue_up, soon, timings, win};
use crate::support::etcd::Etcd;
use crate::support::{DEADLINE, wait_until};
use fencegate_leader::{CoordinatorError, Election, LeaderError, Leadership};

fn wait_for_renewal(leadership: &Leadership) {
    let before = leadership.deadline();
    wait_until("the lease is renewed", DEADLINE, || leadership.deadline() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_and_candidate_survive_a_restart_within_the_ttl() {
    let mut server = Etcd::start();
    let leadership = win(&election(&server, "leader", 20)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", 20));
    let queue = keys(&server);
    server.kill9();
    server.start_again();
    wait_for_renewal(&leadership);
    assert_eq!(keys(&server), queue);
    assert!(!campaign.is_finished());
    leadership.resign().await.unwrap();
    assert_eq!(soon(campaign).await.unwrap().unwrap().holder(), "candidate");
}

/// The candidate's watch dies with etcd, and what it waits for happens while it cannot see it.
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
    let unreachable = |outcome: Result<Leadership, LeaderError>| match outcome {
        Err(LeaderError::Coordinator(CoordinatorError::Unreachable { .. })) => {}
        other => panic!("{other:?}"),
    };
    unreachable(soon(waiting).await.unwrap());
    unreachable(soon(election(&server, "new", 2).campaign()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_does_not_keep_another_from_serving() {
    let mut silent = Etcd::start();
    let living = Etcd::start();
    let members = client(&[&silent.url(), &living.url()]);
    silent.pause();
    let leadership = win(&Election::new(members, NAME.parse().unwrap(), "ours", timings(9))).await;
    wait_for_renewal(&leadership);
    wait_for_renewal(&leadership);
    assert_eq!(keys(&living).len(), 1);
}
