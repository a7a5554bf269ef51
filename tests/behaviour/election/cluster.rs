//! A cluster of three members. Some of them hang.

use super::loss::is_announced_in_time;
use super::{candidate, is_silence, renewed, soon, win};
use crate::support::{EtcdCluster, Stalls};
use fencegate_leader::Leadership;
use std::slice;

async fn lead(cluster: &EtcdCluster, ttl: u64) -> Leadership {
    let urls = cluster.urls();
    let members: Vec<&str> = urls.iter().map(String::as_str).collect();
    win(&candidate(&members, "ours", ttl).build().unwrap()).await
}

/// One of the members is etcd's own leader, and one is the member that the client contacts first.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_survives_a_hanging_member() {
    let mut cluster = EtcdCluster::start();
    let leadership = lead(&cluster, 10).await;
    for index in 0..EtcdCluster::MEMBERS {
        cluster.pause(index);
        for _ in 0..2 {
            renewed(slice::from_ref(&leadership)).await;
        }
        cluster.resume(index);
        cluster.wait_for(index);
    }
    assert_eq!(leadership.check(), Ok(()));
}

/// The member that still answers cannot know the decisions of the others.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_leadership_is_lost_by_the_deadline() {
    let mut cluster = EtcdCluster::start();
    let leadership = lead(&cluster, 3).await;
    let stalls = Stalls::watch();
    cluster.pause(0);
    cluster.pause(1);
    let loss = soon(leadership.lost()).await;
    let (left, stalled) = (leadership.remaining(), stalls.total());
    assert!(is_silence(&loss, stalled), "{loss:?}, stalled for {stalled:?}");
    assert!(is_announced_in_time(left, stalled), "{left:?} left, stalled for {stalled:?}");
}
