//! Elections with a single key, which each candidate puts under a lease if it is absent. The key is the election's
//! name, and its create_revision is the token.

use super::world::{ELECTION, World, detail_is};
use crate::support::programs::run;
use crate::support::ticks::{WRITE, ok, refused, session};
use crate::support::{Etcd, ticks};

#[test]
fn the_holder_of_the_key_leads_until_its_lease_ends() {
    let world = World { postgres: ticks::server(), etcd: Etcd::start_with_lasting_watches() };
    let proxy = world.proxy();
    let (lease, first) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    assert_eq!(world.etcd.put_if_absent(ELECTION), None, "it is held");
    for forged in [first + 1, i64::MAX] {
        detail_is(&refused(&mut session(&proxy.address(), forged), WRITE, "LF005"), forged, Some(first));
    }
    let mut old = session(&proxy.address(), first);
    ok(&mut old, WRITE);

    world.etcd.revoke(&lease);
    detail_is(&refused(&mut session(&proxy.address(), first + 1), WRITE, "LF005"), first + 1, None);
    let (_, second) = world.etcd.put_if_absent(ELECTION).expect("the key is free again");
    assert!(second > first);
    // The proxy has seen the second holder, which has not written yet.
    world.wait_for_epoch(&format!("1/{second}"));
    detail_is(&refused(&mut old, WRITE, "LF001"), first, Some(second));
    ok(&mut session(&proxy.address(), second), WRITE);
    assert_eq!(world.ticks(), "2");
}

/// A put on an existing key, even under another lease, does not change the create_revision: one token, and therefore
/// one writer.
#[test]
fn a_key_that_is_overwritten_keeps_its_token() {
    let world = World::start();
    let proxy = world.proxy();
    let (_, first) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    let overwritten = world.etcd.lease_and_put(ELECTION);
    refused(&mut session(&proxy.address(), overwritten), WRITE, "LF005");
    ok(&mut session(&proxy.address(), first), WRITE);
}

/// If there are also candidates, the lowest create_revision still leads.
#[test]
fn the_first_of_both_kinds_leads() {
    let world = World::start();
    let proxy = world.proxy();
    let first = world.stand("a");
    let (lease, second) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    let third = world.stand("b");
    let mut leader = session(&proxy.address(), first);
    ok(&mut leader, WRITE);
    refused(&mut session(&proxy.address(), second), WRITE, "LF005");
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    refused(&mut session(&proxy.address(), third), WRITE, "LF005");
    world.etcd.revoke(&lease);
    world.wait_for_epoch(&format!("1/{third}"));
    detail_is(&refused(&mut leader, WRITE, "LF001"), first, Some(third));
}

/// The election also has keys that no campaign made.
#[test]
fn a_candidate_behind_others_keys_comes_before_a_later_key() {
    let world = World::start();
    let proxy = world.proxy();
    run(&mut world.etcd.etcdctl(&["put", &format!("{ELECTION}/config"), "nobody's"]));
    let first = world.stand("a");
    let (_, second) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    refused(&mut session(&proxy.address(), second), WRITE, "LF005");
    ok(&mut session(&proxy.address(), first), WRITE);
}

/// A user of etcd that may read only the prefix sees only the candidates. The watch still works.
#[test]
fn without_permission_to_read_the_key_the_candidates_decide() {
    let mut world = World { postgres: ticks::server(), etcd: Etcd::start() };
    world.etcd.enable_users(&format!("{ELECTION}/"));
    let start = || {
        let user = ["--etcd-user", "gate", "--etcd-password", "pass word"];
        let url = world.etcd.url();
        crate::support::Proxy::start(&world.postgres, super::world::POLICIES, &[&["--etcd", &url], &user[..]].concat())
    };
    let proxy = start();
    let (lease, alone) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    refused(&mut session(&proxy.address(), alone), WRITE, "LF005");
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut leader = session(&proxy.address(), first);
    ok(&mut leader, WRITE);
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    refused(&mut leader, WRITE, "LF001");
    assert!(!proxy.log().contains("election_not_observed"), "{}", proxy.log());

    world.depose("b");
    world.etcd.revoke(&lease);
    run(&mut world.etcd.etcdctl(&["role", "grant-permission", "observer", "read", ELECTION]));
    let (_, third) = world.etcd.put_if_absent(ELECTION).expect("the key is free");
    ok(&mut session(&start().address(), third), WRITE);
}
