//! Elections whose keys are within another election are refused.

use super::{LONG, candidate, soon, win};
use crate::support::etcd::Etcd;
use crate::support::programs::run;
use crate::support::{DEADLINE, wait_until};
use fencegate_leader::{Election, Error};

fn election(server: &Etcd, name: &str) -> Election {
    candidate(&[&server.url()], "holder", LONG).name(name).build().unwrap()
}

async fn refused(server: &Etcd, name: &str) -> String {
    match soon(election(server, name).campaign()).await {
        Err(Error::Nested { key, .. }) => key,
        other => panic!("{name}: {other:?}"),
    }
}

fn count(server: &Etcd) -> usize {
    let keys = run(&mut server.etcdctl(&["get", "--prefix", "/", "--keys-only"])).stdout;
    String::from_utf8(keys).unwrap().lines().filter(|line| !line.is_empty()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_around_another_is_refused() {
    let server = Etcd::start();
    let _inner = win(&election(&server, "/p/q/sub")).await;
    assert!(refused(&server, "/p").await.starts_with("/p/q/sub/"));
    assert!(refused(&server, "/p/q").await.starts_with("/p/q/sub/"));
    assert_eq!(count(&server), 1, "a refused candidate leaves no key");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_within_another_is_refused() {
    let server = Etcd::start();
    let outer = win(&election(&server, "/p")).await;
    assert!(refused(&server, "/p/sub").await.starts_with("/p/"));
    assert!(refused(&server, "/p/q/sub").await.starts_with("/p/"));
    assert_eq!(count(&server), 1, "a refused candidate leaves no key");
    outer.resign().await.unwrap();
    win(&election(&server, "/p/sub")).await;
}

/// Keys that no campaign has made, put before a candidate's key and again after it.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_other_programs_block_no_candidate() {
    let server = Etcd::start();
    let others = ["/p", "/p/config", "/p/5", "/p/q/config"];
    let put = |key: &&str| drop(run(&mut server.etcdctl(&["put", key, "x"])));
    others.iter().for_each(put);
    server.lease_and_put("/p/named-otherwise");
    let first = win(&election(&server, "/p")).await;
    others.iter().for_each(put);
    let next = election(&server, "/p");
    let campaign = tokio::spawn(async move { next.campaign().await });
    wait_until("the next candidate is in the queue", DEADLINE, || count(&server) == others.len() + 3);
    first.resign().await.unwrap();
    assert!(soon(campaign).await.unwrap().unwrap().token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn neighboring_elections_are_not_nested() {
    let server = Etcd::start();
    run(&mut server.etcdctl(&["put", "/p/1", "without a lease, so nobody's"]));
    let _one = win(&election(&server, "/p/a")).await;
    let _other = win(&election(&server, "/p/ab")).await;
    let _another = win(&election(&server, "/p/b")).await;
}
