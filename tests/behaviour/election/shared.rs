//! Many elections that share one lease.

use super::{LONG, NAME, candidate, keys, lease, queue_up, renewed, silence_ends, soon, win};
use crate::metrics::page::get;
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use crate::support::{DEADLINE, Stalls, wait_until};
use fencegate_leader::{Election, Error, Leadership, LeaseSession, Lost};
use std::slice;

fn session(server: &Etcd, ttl: u64) -> LeaseSession {
    candidate(&[&server.url()], "ours", ttl).session().unwrap()
}

fn shard(session: &LeaseSession, number: usize) -> Election {
    session.election(format!("{NAME}/{number}")).unwrap()
}

async fn win_shards(session: &LeaseSession, count: usize) -> Vec<Leadership> {
    let mut won = Vec::new();
    for number in 0..count {
        won.push(win(&shard(session, number)).await);
    }
    won
}

fn leases(server: &Etcd) -> usize {
    let listed = String::from_utf8(run(&mut server.etcdctl(&["lease", "list"])).stdout).unwrap();
    listed.lines().count() - 1
}

/// Number of keep-alives that etcd has answered.
fn renewals(server: &Etcd) -> f64 {
    metric(server, "etcd_debugging_lease_renewed_total")
}

fn metric(server: &Etcd, name: &str) -> f64 {
    let page = get(([127, 0, 0, 1], server.port()).into(), "/metrics").body;
    let count = page.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_elections_have_one_lease_and_one_keep_alive() {
    const SHARDS: usize = 300;
    let server = Etcd::start();
    let won = win_shards(&session(&server, 6), SHARDS).await;
    assert_eq!((leases(&server), keys(&server).len()), (1, SHARDS));
    renewed(&won).await;
    let before = renewals(&server);
    for _ in 0..2 {
        renewed(&won).await;
    }
    let renewals = renewals(&server) - before;
    assert!((2.0..10.0).contains(&renewals), "{renewals} renewals");
    assert!(won.iter().all(|leadership| leadership.check().is_ok()));
    assert_eq!(leases(&server), 1);
}

/// etcd closes a connection that is pinged too often, which ends the watches of all elections.
#[tokio::test(flavor = "multi_thread")]
async fn watches_survive_between_renewals() {
    const WATCHES: &str =
        r#"grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}"#;
    let server = Etcd::start();
    let won = win_shards(&session(&server, 21), 3).await;
    wait_until("each is watched", DEADLINE, || metric(&server, WATCHES) == 3.0);
    for _ in 0..2 {
        renewed(slice::from_ref(&won[0])).await;
    }
    assert_eq!(metric(&server, WATCHES), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_the_lease_ends_all_leaderships() {
    let server = Etcd::start();
    let session = session(&server, LONG);
    let won = win_shards(&session, 20).await;
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    for leadership in &won {
        assert_eq!(soon(leadership.lost()).await, Lost::Revoked);
    }
    // The next campaign gets another lease.
    let again = win(&shard(&session, 0)).await;
    assert!(won.iter().all(|leadership| leadership.token() < again.token()));
    assert_eq!(leases(&server), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_all_leaderships_with_a_reason() {
    let mut server = Etcd::start();
    let won = win_shards(&session(&server, 9), 20).await;
    let stalls = Stalls::watch();
    server.pause();
    silence_ends(&won, stalls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resigning_from_one_election_keeps_the_others() {
    let server = Etcd::start();
    let session = session(&server, LONG);
    let won = win_shards(&session, 3).await;
    won[1].resign().await.unwrap();
    assert_eq!(keys(&server).len(), 2);
    assert!(won[0].check().is_ok() && won[2].check().is_ok());
    let again = win(&shard(&session, 1)).await;
    assert!(again.token() > won[1].token());
    assert_eq!(leases(&server), 1);
    for leadership in [&won[0], &won[2], &again] {
        leadership.resign().await.unwrap();
    }
    assert_eq!(leases(&server), 0, "the last leadership revokes the lease");
}

/// Both campaigns would have the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_campaign_waits_for_the_end_of_the_first() {
    let server = Etcd::start();
    let session = session(&server, LONG);
    let first = win(&shard(&session, 0)).await;
    let (again, election) = (self::session(&server, 2), shard(&session, 0));
    let second = tokio::spawn(async move { election.campaign().await });
    first.resign().await.unwrap();
    assert!(soon(second).await.unwrap().unwrap().token() > first.token());
    let _other = win(&shard(&again, 1)).await;
    let refused = soon(shard(&again, 1).try_campaign()).await;
    assert!(matches!(&refused, Err(Error::Refused { reason }) if reason.contains("already")), "{refused:?}");
}

/// The election's place in the session is free only after the retry.
#[tokio::test(flavor = "multi_thread")]
async fn giving_up_a_place_is_retried() {
    let mut server = Etcd::start();
    let session = session(&server, 6);
    let won = win_shards(&session, 2).await;
    server.pause();
    let resigned = won[0].clone();
    let resigning = tokio::spawn(async move { resigned.resign().await });
    assert_eq!(soon(won[0].lost()).await, Lost::Resigned);
    assert!(soon(resigning).await.unwrap().is_err());
    server.signal("CONT");
    assert!(win(&shard(&session, 0)).await.token() > won[0].token());
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_of_a_shared_lease_lead_in_turn() {
    let server = Etcd::start();
    let holder = win(&shard(&session(&server, LONG), 0)).await;
    let waiting = session(&server, 6);
    let campaign = queue_up(&server, &shard(&waiting, 0));
    holder.resign().await.unwrap();
    assert_eq!(soon(campaign).await.unwrap().unwrap().holder(), "ours");
}
