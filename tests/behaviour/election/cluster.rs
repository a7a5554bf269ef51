//! A cluster of three members. Some of them hang.

use super::{NAME, client, is_silence, soon, timings, win};
use crate::support::{DEADLINE, EtcdCluster, Stalls, wait_until};
use fencegate_leader::clock::BootInstant;
use fencegate_leader::{Election, Leadership};
use std::time::Duration;

async fn lead(cluster: &EtcdCluster, ttl: u64) -> Leadership {
    let urls = cluster.urls();
    let members: Vec<&str> = urls.iter().map(String::as_str).collect();
    win(&Election::new(client(&members), NAME.parse().unwrap(), "ours", timings(ttl))).await
}

/// One of the three is etcd's own leader, and one is the member that is asked first.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_survives_a_hanging_member() {
    let mut cluster = EtcdCluster::start();
    let leadership = lead(&cluster, 10).await;
    for index in 0..EtcdCluster::MEMBERS {
        cluster.pause(index);
        for _ in 0..2 {
            let before = leadership.deadline();
            wait_until("the lease is renewed", DEADLINE, || leadership.deadline() > before);
        }
        cluster.resume(index);
        cluster.wait_for(index);
    }
    assert_eq!(leadership.why_lost(), None);
}

/// The member that still answers cannot know what the others have decided.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_leadership_is_lost_by_the_deadline() {
    const SLACK: Duration = Duration::from_millis(500);
    let mut cluster = EtcdCluster::start();
    let leadership = lead(&cluster, 3).await;
    let stalls = Stalls::watch();
    cluster.pause(0);
    cluster.pause(1);
    let loss = soon(leadership.lost()).await;
    let (now, deadline) = (BootInstant::now(), leadership.deadline());
    let stalled = stalls.total();
    let slack = SLACK + stalled;
    assert!(is_silence(&loss, stalled), "{loss:?}, stalled for {stalled:?}");
    assert!(deadline <= now && now < deadline + slack, "{now:?} is not {deadline:?}");
}
