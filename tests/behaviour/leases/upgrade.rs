//! An upgrade from a schema without leases, and repeated `init`.

use super::Leases;
use crate::fence::server::{VERSION_5, World};

#[tokio::test]
async fn the_schema_of_version_3_gets_leases() {
    let world = World::new().await;
    world
        .run(
            "DROP FUNCTION fencegate.acquire, fencegate.renew, fencegate.release, fencegate.proclaim, fencegate.leader, \
               fencegate.lease_role, fencegate.lease_time, fencegate.lease_holder, fencegate.lease_ended, fencegate.lease_prune, \
               fencegate.lease_durable, fencegate.lease_day; \
             DROP TABLE fencegate_state.lease, fencegate_state.lease_history, fencegate_state.lease_grant; DROP SEQUENCE fencegate_state.lease_token; \
             INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES ('scheduler', 7, true)",
        )
        .await;
    world.run(VERSION_5).await;
    world.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 3'").await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let run = || fencegate_fence::init(&config, Some(&control));
    let (one, two) = tokio::join!(run(), run());
    assert!([one.unwrap(), two.unwrap()].iter().any(|report| report.versions == Some((3, 6))));
    assert_eq!(world.epoch().await, "(1,7,t)");
    let owners = "SELECT count(*) FROM pg_class c WHERE relnamespace = 'fencegate_state'::regnamespace AND relname LIKE 'lease%' \
        AND relkind IN ('r', 'S') AND relowner <> (current_database() || '_control')::regrole";
    assert_eq!(world.ask(owners).await, "0");
    let owners = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencegate'::regnamespace \
        AND proowner <> (current_database() || '_control')::regrole";
    assert_eq!(world.ask(owners).await, "0");
}

#[tokio::test]
async fn another_init_keeps_leases_and_grants() {
    let leases = Leases::new().await;
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "1");
    let init = fencegate_fence::init(&leases.control_config("postgres"), Some(&leases.control())).await;
    assert_eq!(init.unwrap().versions, None);
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "");
    assert_eq!(leases.call("release('e', 1)").await, "t");
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "2");
}
