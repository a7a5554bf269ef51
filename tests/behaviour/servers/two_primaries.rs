//! Two primaries of one cluster: the one on the lower timeline is not used.

use super::{World, cluster, control};
use crate::metrics::page::get;
use crate::support::proxy::ProxyOptions;
use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::{DEADLINE, Proxy, wait_until};

/// The state of the server's fences: its highest token, and the number of admissions.
fn fences(world: &World, node: usize) -> String {
    let fences =
        "SELECT (SELECT max(token) FROM fencegate_state.epoch) || ' ' || count(*) FROM fencegate_state.admission";
    world.cluster[node].value(fences)
}

#[test]
fn an_old_primary_that_returns_is_not_used() {
    let mut world = World::start(&[]);
    ok(&mut session(&world.proxy.address(), 1), WRITE);
    world.cluster.catch_up(1);
    world.cluster.cut_off(0);
    world.cluster.promote(1);
    world.wait_for_primary(1);
    ok(&mut session(&world.proxy.address(), 2), WRITE);
    let (before, rows) = (fences(&world, 0), "SELECT count(*) FROM ticks");
    let written = world.cluster[0].value(rows);

    world.cluster.reconnect(0);
    world.wait_for_event("upstream_superseded", 0);
    for token in 3..8 {
        let mut wire = session(&world.proxy.address(), token);
        assert_eq!(world.server_of(&mut wire), 1);
        ok(&mut wire, WRITE);
    }
    assert_eq!((fences(&world, 0), world.cluster[0].value(rows)), (before, written), "no admission there");
    assert!(fences(&world, 1).starts_with("7 "));

    // The old primary is not used either while the current one is unreachable.
    world.cluster.cut_off(1);
    let unknown = format!("fencegate_upstream_role{{host=\"127.0.0.1:{}\"}} 0\n", world.cluster.port(1));
    wait_until("the primary is unknown", DEADLINE, || get(world.http(), "/metrics").body.contains(&unknown));
    let error = world.refusal().expect("no server is the primary");
    let host = format!("127.0.0.1:{} is superseded: cluster ", world.cluster.port(0));
    let is_named = [&*host, ", timeline 1, highest 2"].iter().all(|text| error.detail().contains(text));
    assert!(error.code() == "57P03" && is_named, "{error:?}");
    world.cluster.reconnect(1);
    wait_until("sessions are admitted again", DEADLINE, || world.refusal().is_none());
    assert_eq!(world.server_of_a_session(), 1);
}

/// The address of the control connection is not in the list and still leads to the old primary.
#[test]
fn a_control_connection_to_the_old_primary_is_refused() {
    let mut cluster = cluster();
    let options = ProxyOptions::default()
        .policies(ticks::POLICIES)
        .upstream(&format!("postgres://{}?target_session_attrs=primary", cluster.hosts()))
        .control(&control(&format!("127.0.0.1:{}", cluster.moving_port())));
    let proxy = Proxy::start_with(&cluster[0], &options);
    ok(&mut session(&proxy.address(), 1), WRITE);
    cluster.catch_up(1);
    cluster.promote(1);
    proxy.wait_for_log("upstream_superseded", DEADLINE);
    let mut wire = session(&proxy.address(), 2);
    // The servers are behind links, so a control connection must prove that there is no pooler in between.
    let error = refused(&mut wire, WRITE, "LF006");
    assert!(error.message().contains("a notification did not reach the idle session"), "{error:?}");
    cluster.move_to(1);
    wait_until("the control connection has followed", DEADLINE, || {
        crate::support::wire::error_in(&session(&proxy.address(), 2).query(WRITE)).is_none()
    });
}
