//! Each key has its own election in a real etcd.

use super::{SCHEMA, epochs, holder, refused};
use crate::support::fenced::{Fenced, code, ok};
use crate::support::proxy::ProxyOptions;
use crate::support::{DEADLINE, Etcd, Options, wait_until};

const POLICIES: &str = "version: 1\nresources:\n  - name: shard/{shard}\n    election: /cron/shard/{shard}\n    \
    tables: [{name: public.shard_ticks, key: shard}]\n";

#[test]
fn only_the_leader_of_a_key_raises_its_fence() {
    let etcd = Etcd::start();
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--etcd", &etcd.url()]);
    let world = Fenced::start_with(Options::default(), SCHEMA, &options);
    let three = etcd.put_new("/cron/shard/3/one");
    let insert = |key: i32, id: i64| format!("INSERT INTO shard_ticks (shard, id) VALUES ({key}, {id})");
    let mut wire = holder(&world, &format!("shard/3={three}, shard/4={three}"));
    ok(&mut wire, &insert(3, 1));
    let error = refused(&mut wire, &insert(4, 2));
    assert_eq!((error.code(), error.message().contains("/cron/shard/4 has no leader")), ("LF005", true));
    let mut forged = holder(&world, "shard/3=9223372036854775807");
    assert_eq!(code(&mut forged, &insert(3, 2)), "LF005");
    // The next leader of this key.
    etcd.delete("/cron/shard/3/one");
    let next = etcd.put_new("/cron/shard/3/two");
    ok(&mut holder(&world, &format!("shard/3={next}")), &insert(3, 2));
    assert_eq!(code(&mut wire, &insert(3, 3)), "LF001");
    assert_eq!(epochs(&world), format!("shard/3={next}"));
}

/// The proxy follows the elections of the keys to which a session is admitted: it shuts out the old leader before the
/// new one writes.
#[test]
fn a_holder_of_a_key_is_shut_out_by_its_next_leader() {
    let etcd = Etcd::start();
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--etcd", &etcd.url()]);
    let world = Fenced::start_with(Options::default(), SCHEMA, &options);
    let (three, four) = (etcd.put_new("/cron/shard/3/one"), etcd.put_new("/cron/shard/4/one"));
    let insert = |key: i32| format!("INSERT INTO shard_ticks (shard, id) VALUES ({key}, {key})");
    let mut wire = holder(&world, &format!("shard/3={three}, shard/4={four}"));
    ok(&mut wire, &insert(3));
    ok(&mut wire, &insert(4));
    etcd.delete("/cron/shard/3/one");
    let next = etcd.put_new("/cron/shard/3/two");
    let drained =
        format!("SELECT count(*) FROM fencegate_state.epoch WHERE resource = 'shard/3' AND token = {next} AND drained");
    wait_until("the fence of the key is raised and drained", DEADLINE, || world.postgres.value(&drained) == "1");
    assert_eq!(epochs(&world), format!("shard/3={next} shard/4={four}"));
    assert_eq!(code(&mut wire, &insert(3)), "LF001");
    assert_eq!(code(&mut wire, "UPDATE shard_ticks SET id = 5 WHERE shard = 4"), "");
}
