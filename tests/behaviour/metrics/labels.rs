//! Bounds on labels: clients cannot create unlimited series.

use crate::metrics::page::{get, samples};
use crate::metrics::world::World;
use crate::support::fenced::{code, ok};
use crate::support::{DEADLINE, Wire, wait_until};

#[test]
fn keys_and_names_of_databases_make_no_series() {
    let world = World::start();
    let mut wire = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let write = |key: i32| format!("INSERT INTO shards VALUES ({key}, 1)");
    ok(&mut wire, "SET lease.fence = 7");
    let page = || get(world.of_proxy(), "/metrics").body;
    let series = || samples(&page()).len();
    ok(&mut wire, &write(0));
    wait_until("the series of the server and the leaders exist", DEADLINE, || {
        let page = page();
        ["fencegate_election_token{", "fencegate_lease_token{", "\nfencegate_notification_queue_usage "]
            .iter()
            .all(|name| page.contains(name))
    });
    let before = series();
    for key in 1..200 {
        ok(&mut wire, &write(key));
    }
    ok(&mut wire, "SET lease.fence = 6");
    for key in 1..200 {
        assert_eq!(code(&mut wire, &write(key)), "LF001");
    }
    for name in ["nowhere", "elsewhere"] {
        let mut stranger = Wire::connect(&world.proxy.address()).unwrap();
        stranger.start(&[("user", "postgres"), ("database", name)], "");
    }
    assert_eq!(series(), before);
    let page = page();
    let counted =
        r#"fencegate_writes_total{database="postgres",mode="enforce",resource="shard/{shard}",verdict="stale"} 199"#;
    assert!(page.contains(counted), "{page}");
}
