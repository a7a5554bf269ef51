//! The phantom win: a candidate loses its key while it waits, and then the leader leaves.

use super::{LONG, NAME, current, election, keys, lease, queue_up, soon, wait_for_keys, win};
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use etcd_client::{Client, ResignOptions};

#[tokio::test(flavor = "multi_thread")]
async fn etcds_own_campaign_is_fooled() {
    let server = Etcd::start();
    let mut client = Client::connect([server.url()], None).await.unwrap();
    let first = client.lease_grant(300, None).await.unwrap().id();
    let holder = client.campaign(NAME, "holder", first).await.unwrap();
    let second = client.lease_grant(300, None).await.unwrap().id();
    let mut waiting = client.clone();
    let candidate = tokio::spawn(async move { waiting.campaign(NAME, "candidate", second).await });
    wait_for_keys(&server, 2);
    client.lease_revoke(second).await.unwrap();
    let key = holder.leader().unwrap().clone();
    client.resign(Some(ResignOptions::new().with_leader(key))).await.unwrap();
    assert!(soon(candidate).await.unwrap().is_ok(), "the candidate believes that it leads");
    assert!(keys(&server).is_empty(), "no candidate leads");
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_leads_only_with_a_key() {
    let server = Etcd::start();
    let holder = win(&election(&server, "holder", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", LONG));
    let lost = keys(&server).pop().unwrap();
    run(&mut server.etcdctl(&["lease", "revoke", lease(&lost)]));
    holder.resign().await.unwrap();
    let leadership = soon(campaign).await.unwrap().unwrap();
    assert_eq!(current(&server).await.unwrap().token, leadership.token());
}

/// One event for both keys: the candidate cannot see its own loss first.
#[tokio::test(flavor = "multi_thread")]
async fn ours_leads_only_with_a_key_if_both_keys_vanish_at_once() {
    let server = Etcd::start();
    let _holder = win(&election(&server, "holder", LONG)).await;
    let campaign = queue_up(&server, &election(&server, "candidate", LONG));
    run(&mut server.etcdctl(&["del", "--prefix", &format!("{NAME}/")]));
    let leadership = soon(campaign).await.unwrap().unwrap();
    assert_eq!(current(&server).await.unwrap().token, leadership.token());
}
