//! Where operators see the servers: the console, metrics, readiness and `proxy --check`.

use super::{World, control};
use crate::metrics::page::get;
use crate::support::postgres::SUPERUSER;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, Wire, wait_until};

#[test]
fn roles_and_timelines_are_shown() {
    let mut world = World::start(&[]);
    let [one, other] = [0, 1].map(|node| format!("127.0.0.1:{}", world.cluster.port(node)));
    let _session = Wire::login(&world.proxy.address(), SUPERUSER, "postgres");
    assert_eq!(world.servers(), ["primary 1 1", "standby 1 0"]);
    let page = |path: &str| get(world.http(), path);
    assert_eq!(page("/readyz").status, 200);

    world.cluster.promote(1);
    world.wait_for_event("upstream_superseded", 0);
    world.wait_for_servers(["superseded 1 0", "primary 2 0"]);
    let metrics = get(world.http(), "/metrics").body;
    for (host, role, timeline) in [(&one, -1, 1), (&other, 2, 2)] {
        assert!(metrics.contains(&format!("fencegate_upstream_role{{host=\"{host}\"}} {role}\n")), "{metrics}");
        assert!(metrics.contains(&format!("fencegate_upstream_timeline{{host=\"{host}\"}} {timeline}\n")), "{metrics}");
    }
    let url = format!("postgres://{}?target_session_attrs=primary", world.cluster.hosts());
    let mut check = fencegate();
    check.args(["proxy", "--check", "--upstream", &url, "--control", &control(&world.cluster.hosts()), "--policies"]);
    let output = check.arg(world.proxy.policies()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    for expected in
        [format!("{other} is primary, timeline 2"), format!("{one} accepts writes on timeline 1, but is not")]
    {
        assert!(said.contains(&expected), "{said}");
    }

    world.cluster.cut_off(1);
    wait_until("the proxy is not ready", DEADLINE, || get(world.http(), "/readyz").status == 503);
    wait_until("the reason is known", DEADLINE, || {
        let body = get(world.http(), "/readyz").body;
        body.contains(&format!("{one} is superseded")) && body.contains(&format!("{other} is unknown"))
    });
}
