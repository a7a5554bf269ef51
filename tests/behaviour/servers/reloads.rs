//! Reloads that replace the servers.

use super::{PRIMARY, World, cluster, control};
use crate::support::guardian::Port;
use crate::support::proxy::ProxyOptions;
use crate::support::ticks::{self, WRITE, ok, session};
use crate::support::wire::error_in;
use crate::support::{Options, Postgres, Proxy, Wire};

/// Settings with these hosts, and this target for sessions.
fn settings(hosts: &str, target: &str) -> String {
    let http = "http: 127.0.0.1:0\n";
    format!("upstream: postgres://{hosts}?{target}\ncontrol: {}\n{http}", control(hosts))
}

fn host(world: &World, node: usize) -> String {
    format!("127.0.0.1:{}", world.cluster.port(node))
}

/// A proxy whose settings file names these servers of the cluster.
fn start(nodes: &[usize], target: &str) -> World {
    let cluster = cluster();
    let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", cluster.port(*node))).collect::<Vec<_>>().join(",");
    let options = ProxyOptions::default().policies(ticks::POLICIES).settings(&settings(&hosts, target));
    World { proxy: Proxy::start_with(&cluster[0], &options), cluster }
}

/// The session was terminated because the proxy no longer uses its server.
fn assert_replaced(mut wire: Wire) {
    let error = error_in(&wire.read_to_end()).expect("the reason");
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P01"), "{error:?}");
}

#[test]
fn one_server_becomes_a_list_and_the_list_one_server() {
    let mut world = start(&[0], "");
    let mut old = session(&world.proxy.address(), 1);
    ok(&mut old, WRITE);
    let hosts = world.cluster.hosts();
    world.proxy.reload_with(&settings(&hosts, PRIMARY));
    assert_eq!(world.servers(), ["primary 1 1", "standby 1 0"], "{}", world.proxy.log());
    ok(&mut old, WRITE);
    world.cluster.promote(1);
    assert_replaced(old);
    let mut new = session(&world.proxy.address(), 2);
    assert_eq!(world.server_of(&mut new), 1);
    ok(&mut new, WRITE);

    let one = host(&world, 1);
    world.proxy.reload_with(&settings(&one, ""));
    assert_eq!(world.servers().len(), 1, "{}", world.proxy.log());
    ok(&mut new, WRITE);
    ok(&mut session(&world.proxy.address(), 3), WRITE);
    assert!(!world.proxy.log().contains("reload_failed"), "{}", world.proxy.log());
}

#[test]
fn sessions_on_a_server_that_has_left_the_list_end() {
    for (left, target) in [("target_session_attrs=prefer-standby", PRIMARY), ("target_session_attrs=standby", "")] {
        let mut world = start(&[0, 1], left);
        let mut gone = Wire::login(&world.proxy.address(), "postgres", "postgres");
        assert_eq!(world.server_of(&mut gone), 1);
        let primary = host(&world, 0);
        world.proxy.reload_with(&settings(&primary, target));
        assert_replaced(gone);
        ok(&mut session(&world.proxy.address(), 1), WRITE);
    }
}

/// The new primary leaves the list, but the proxy remembers its timeline.
#[test]
fn an_old_primary_stays_unused_when_the_new_one_has_left_the_list() {
    let mut world = start(&[0, 1], PRIMARY);
    world.wait_for_primary(0);
    world.cluster.promote(1);
    world.wait_for_event("upstream_superseded", 0);
    let old = host(&world, 0);
    world.proxy.reload_with(&settings(&old, PRIMARY));
    let error = world.refusal().expect("no server is the primary");
    let state = format!("{old} is superseded: cluster");
    assert!(error.code() == "57P03" && error.detail().contains(&state), "{error:?}\n{}", world.proxy.log());
    // A single server would be used in any role.
    world.proxy.reload_with(&settings(&old, ""));
    let expected =
        format!("upstream: {old} is superseded: it is on timeline 1, and the highest seen in its cluster is 2");
    assert!(world.proxy.log().contains(&expected), "{}", world.proxy.log());
}

#[test]
fn servers_of_another_cluster_are_refused() {
    let other = Postgres::start(Options::default().own_identifier());
    let other = format!("127.0.0.1:{}", other.port());
    for nodes in [&[0][..], &[0, 1]] {
        let mut world = start(nodes, "");
        let mut wire = session(&world.proxy.address(), 1);
        let with_other = format!("{},{other}", world.cluster.hosts());
        let hosts_in_force = world.cluster.hosts();
        for hosts in [&other, &with_other] {
            world.proxy.reload_with(&settings(hosts, "").replace(&control(hosts), &control(&hosts_in_force)));
            let expected = format!("upstream: {other} belongs to another cluster");
            assert!(world.proxy.log().contains(&expected), "{}", world.proxy.log());
            ok(&mut wire, WRITE);
        }
        let hosts = &hosts_in_force;
        world.proxy.reload_with(&settings(hosts, "").replace(&control(hosts), &control(&other)));
        let expected = "control: its server belongs to another cluster";
        assert!(world.proxy.log().contains(expected), "{}", world.proxy.log());
        assert!(!world.proxy.log().contains("setting_changed"), "{}", world.proxy.log());
        assert_eq!(world.server_of_a_session(), 0);
    }
}

#[test]
fn servers_that_cannot_be_reached_are_not_put_in_force() {
    let mut world = start(&[0, 1], PRIMARY);
    let [one, other] = [(); 2].map(|()| Port::claim());
    let dead = format!("127.0.0.1:{},127.0.0.1:{}", one.number(), other.number());
    let alive = control(&world.cluster.hosts());
    for (hosts, expected) in
        [(dead.clone(), "no server can be used"), (dead[..dead.find(',').unwrap()].to_owned(), "cannot be reached")]
    {
        world.proxy.reload_with(&format!("upstream: postgres://{hosts}\ncontrol: {alive}\n"));
        assert!(world.proxy.log().contains(expected), "{}", world.proxy.log());
        ok(&mut session(&world.proxy.address(), 1), WRITE);
    }
    // One reachable server is enough.
    let hosts = format!("127.0.0.1:{},{}", one.number(), host(&world, 0));
    world.proxy.reload_with(&format!("upstream: postgres://{hosts}?{PRIMARY}\ncontrol: {alive}\nhttp: 127.0.0.1:0\n"));
    assert_eq!(world.servers(), ["unknown  0", "primary 1 0"], "{}", world.proxy.log());
    ok(&mut session(&world.proxy.address(), 1), WRITE);
}
