//! The deadline of a lease is never later than its end at the coordinator.

use super::{NAME, client, keys, lease, soon};
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use fencegate_leader::coordinator::{BootInstant, Candidate, Coordinator};
use fencegate_leader::etcd::Etcd as Client;
use fencegate_leader::{Error, Patience};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);
const PATIENCE: Patience = Patience { limit: TTL, member: Duration::from_millis(500) };
/// Too short for the connection to give up the member.
const SILENCE: Duration = Duration::from_millis(800);

async fn enrol(server: &Etcd) -> (Arc<Client>, Candidate) {
    let client = client(&[&server.url()]);
    let (candidate, _) = client.enrol(&NAME.parse().unwrap(), "ours", TTL, PATIENCE).await.unwrap();
    (client, candidate)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_counts_from_the_sending_of_the_renewal() {
    let mut server = Etcd::start();
    let (client, candidate) = enrol(&server).await;
    server.pause();
    let mut renewal = pin!(client.renew(&candidate, PATIENCE));
    tokio::select! {
        // Poll the renewal first, so that it is sent before the silence.
        biased;
        answer = &mut renewal => panic!("{answer:?} of a suspended process"),
        () = tokio::time::sleep(SILENCE) => {}
    }
    let silent_until = BootInstant::now();
    server.signal("CONT");
    let deadline = soon(renewal).await.unwrap();
    assert!(deadline < silent_until + TTL, "the delay of the reply extends the lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_counts_from_the_answered_attempt() {
    let mut silent = Etcd::start();
    let server = Etcd::start();
    let (_, candidate) = enrol(&server).await;
    let members = client(&[&silent.url(), &server.url()]);
    silent.pause();
    let started = BootInstant::now();
    let deadline = soon(members.renew(&candidate, PATIENCE)).await.unwrap();
    assert!(deadline >= started + PATIENCE.member + TTL, "the second member was queried later than the first");
    assert!(deadline <= BootInstant::now() + TTL);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_distinguished_from_an_outage() {
    let mut server = Etcd::start();
    let (client, candidate) = enrol(&server).await;
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    assert_eq!(client.renew(&candidate, PATIENCE).await, Err(Error::Gone));
    assert_eq!(client.proclaim(&candidate, b"x".to_vec(), PATIENCE).await, Err(Error::Gone));
    assert_eq!(client.await_turn(&candidate, PATIENCE).await, Err(Error::Gone));
    assert_eq!(client.withdraw(&candidate, PATIENCE).await, Ok(()));
    server.kill9();
    let patience = Patience { limit: Duration::from_millis(200), ..PATIENCE };
    let error = client.renew(&candidate, patience).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
