//! A standby that lacks the last epochs is promoted. The election in etcd still has them.

use super::world::{ELECTION, POLICIES, detail_is};
use crate::support::cluster::{Cluster, Replication};
use crate::support::postgres::SUPERUSER;
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::wire::{Fields, Wire, error_in};
use crate::support::{DEADLINE, Etcd, Proxy, ProxyOptions, wait_until};

/// A proxy that uses the moving address.
fn proxy(cluster: &Cluster, etcd: &Etcd) -> Proxy {
    let address = format!("127.0.0.1:{}", cluster.moving_port());
    let options = ProxyOptions::default()
        .policies(POLICIES)
        .upstream(&format!("postgres://{address}"))
        .control(&format!("postgres://{SUPERUSER}@{address}/"))
        .arguments(&["--etcd", &etcd.url()]);
    Proxy::start_with(&cluster[0], &options)
}

/// The result of a write with this token, in a new session. None while the server cannot be reached.
fn answer(proxy: &Proxy, token: i64) -> Option<Result<(), Fields>> {
    let mut wire = Wire::connect(&proxy.address()).ok()?;
    let options = format!("-c lease.fence={token}");
    let greeting = wire.start(&[("user", SUPERUSER), ("database", "postgres"), ("options", &options)], "");
    if error_in(&greeting).is_some() {
        return None;
    }
    Some(error_in(&wire.query(WRITE)).map_or(Ok(()), Err))
}

#[test]
fn a_leader_deposed_just_before_the_failover_stays_out() {
    let mut etcd = Etcd::start();
    let mut cluster = Cluster::start(1, Replication::Asynchronous, |primary| ticks::init(primary, SUPERUSER));
    let proxy = proxy(&cluster, &etcd);
    let first = etcd.put_new(&format!("{ELECTION}/a"));
    ok(&mut session(&proxy.address(), first), WRITE);
    cluster.stop_replication(1);
    let second = etcd.put_new(&format!("{ELECTION}/b"));
    etcd.delete(&format!("{ELECTION}/a"));
    ok(&mut session(&proxy.address(), second), WRITE);
    let epoch = |cluster: &Cluster, node: usize| cluster[node].value("SELECT token FROM fencegate_state.epoch");
    assert_eq!(epoch(&cluster, 0), second.to_string());
    cluster[0].crash();
    // While etcd is silent, only the doubt about its epoch can shut the first leader out.
    etcd.pause();
    cluster.promote(1);
    cluster.move_to(1);
    assert_eq!(epoch(&cluster, 1), first.to_string(), "the second leader's epoch is lost");

    wait_until("the epoch is in doubt", DEADLINE, || {
        answer(&proxy, first).is_some_and(|answer| {
            let error = answer.expect_err("the deposed leader writes");
            assert_eq!(error.code(), "LF006", "{error:?}");
            error.message().contains("cannot query etcd for the leader of /cron/scheduler/leader")
        })
    });
    etcd.signal("CONT");
    wait_until("the first leader is shut out", DEADLINE, || {
        let error = answer(&proxy, first).expect("the server is there").expect_err("the deposed leader writes");
        if error.code() == "LF001" {
            detail_is(&error, first, Some(second));
        }
        error.code() == "LF001"
    });
    let written = "SELECT string_agg(token::text, ' ') FROM ticks";
    assert_eq!(cluster[1].value(written), first.to_string(), "before the failover");
    ok(&mut session(&proxy.address(), second), WRITE);
    assert_eq!((epoch(&cluster, 1), cluster[1].value(written)), (second.to_string(), format!("{first} {second}")));
    refused(&mut session(&proxy.address(), first), WRITE, "LF001");
}

/// The leader's epoch is on the standby, and etcd agrees.
#[test]
fn the_leader_continues_after_a_failover() {
    let etcd = Etcd::start();
    let mut cluster = Cluster::start(1, Replication::Synchronous, |primary| ticks::init(primary, SUPERUSER));
    let proxy = proxy(&cluster, &etcd);
    let token = etcd.put_new(&format!("{ELECTION}/a"));
    ok(&mut session(&proxy.address(), token), WRITE);
    cluster[0].crash();
    cluster.promote(1);
    cluster.move_to(1);
    wait_until("the leader writes", DEADLINE, || matches!(answer(&proxy, token), Some(Ok(()))));
    assert_eq!(cluster[1].value("SELECT count(*) FROM ticks"), "2", "the first write was acknowledged");
}
