//! The connection to etcd: a silent or failed member does not block the others.

use crate::support::etcd::Etcd;
use crate::support::guardian::Port;
use crate::support::programs::run;
use fencegate_leader::coordinator::Coordinator;
use fencegate_leader::etcd::{Etcd as Client, EtcdError, EtcdSettings, leader};
use fencegate_leader::{ElectionName, Patience};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

fn client(members: &[&str]) -> Arc<Client> {
    let members = members.iter().map(|&url| url.to_owned()).collect();
    Client::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap()
}

fn election() -> ElectionName {
    "/test/leader".parse().unwrap()
}

#[tokio::test]
async fn the_lowest_create_revision_leads() {
    let server = Etcd::start();
    let client = client(&[&server.url()]);
    assert_eq!(leader(&client, &election(), Patience::USUAL).await.unwrap().0, None);
    let first = server.put_candidate("/test/leader/b", "b");
    for name in ["/test/leader/a", "/test/leaders/0"] {
        server.put_new(name);
    }
    let (found, revision) = leader(&client, &election(), Patience::USUAL).await.unwrap();
    let found = found.unwrap();
    assert_eq!(found.key, election().key(found.lease).into_bytes());
    assert_eq!((found.value.as_slice(), found.token.get(), revision), (&b"b"[..], first, first + 2));
}

/// Keys of other programs never lead, even if they precede the candidates' keys.
#[tokio::test]
async fn keys_of_other_programs_do_not_lead() {
    let server = Etcd::start();
    let client = client(&[&server.url()]);
    for key in ["/test/leader/1", "/test/leader/config", "/test/leader/"] {
        run(&mut server.etcdctl(&["put", key, "nobody's"]));
    }
    server.put_new("/test/leader/nested/a");
    server.lease_and_put("/test/leader/named-otherwise");
    assert_eq!(leader(&client, &election(), Patience::USUAL).await.unwrap().0, None);
    let first = server.put_candidate("/test/leader/a", "a");
    server.put_new("/test/leader/b");
    let found = leader(&client, &election(), Patience::USUAL).await.unwrap().0.unwrap();
    assert_eq!((found.value.as_slice(), found.token.get()), (&b"a"[..], first));
    let candidates = fencegate_leader::etcd::candidates(&client, &election(), Patience::USUAL).await.unwrap();
    assert_eq!(candidates.len(), 2);
}

#[tokio::test]
async fn silent_and_dead_members_do_not_block_a_working_one() {
    let mut silent = Etcd::start();
    let living = Etcd::start();
    let nobody = Port::claim();
    let client = client(&[&silent.url(), &format!("http://127.0.0.1:{}", nobody.number()), &living.url()]);
    silent.pause();
    let patience = Patience { limit: Duration::from_secs(20), member: Duration::from_millis(100) };
    leader(&client, &election(), patience).await.unwrap();
}

#[tokio::test]
async fn a_silent_etcd_causes_a_timely_error() {
    let mut server = Etcd::start();
    let client = client(&[&server.url()]);
    leader(&client, &election(), Patience::USUAL).await.unwrap();
    server.pause();
    let patience = Patience { limit: Duration::from_millis(500), member: Duration::from_millis(100) };
    let error = leader(&client, &election(), patience).await.unwrap_err();
    assert!(matches!(error, EtcdError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn an_observer_sees_every_leader_across_an_outage() {
    let mut server = Etcd::start();
    let mut observer = client(&[&server.url()]).observe(&election());
    assert_eq!(observer.next().await, Some(Ok(None)));
    server.put_candidate("/test/leader/1", "a");
    assert_eq!(observer.next().await.unwrap().unwrap().unwrap().value, b"a");
    server.kill9();
    server.start_again();
    server.put_candidate("/test/leader/2", "b");
    server.delete("/test/leader/1");
    let next = async {
        loop {
            // During the outage, the observer may return errors.
            match observer.next().await {
                Some(Ok(Some(leader))) if leader.value == b"b" => break,
                Some(Ok(Some(leader))) => assert_eq!(leader.value, b"a"),
                other => assert!(matches!(other, Some(Err(_))), "{other:?}"),
            }
        }
    };
    tokio::time::timeout(crate::support::DEADLINE, next).await.unwrap();
}
