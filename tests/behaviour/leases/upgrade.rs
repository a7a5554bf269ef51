//! The schema before there were leases, and what another `init` leaves alone.

use super::Leases;
use crate::fence::server::World;

#[tokio::test]
async fn the_schema_of_version_3_gets_leases() {
    let world = World::new().await;
    world
        .run(
            "DROP FUNCTION fencegate.acquire, fencegate.renew, fencegate.release, fencegate.proclaim, fencegate.leader, \
               fencegate.lease_role, fencegate.lease_time, fencegate.lease_holder, fencegate.lease_ended, fencegate.lease_prune, \
               fencegate.lease_durable, fencegate.lease_day; \
             DROP TABLE fencegate.lease, fencegate.lease_history, fencegate.lease_grant; DROP SEQUENCE fencegate.lease_token; \
             COMMENT ON SCHEMA fencegate IS 'fencegate schema version 3'; \
             INSERT INTO fencegate.epoch (resource, token, drained) VALUES ('scheduler', 7, true)",
        )
        .await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let run = || fencegate::fence::init(&config, Some(&control));
    let (one, two) = tokio::join!(run(), run());
    assert!([one.unwrap(), two.unwrap()].iter().any(|report| report.upgraded == Some((3, 4))));
    assert_eq!(world.epoch().await, "(1,7,t)");
    let owners = "SELECT count(*) FROM pg_class c WHERE relnamespace = 'fencegate'::regnamespace AND relname LIKE 'lease%' \
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
    let init = fencegate::fence::init(&leases.control_config("postgres"), Some(&leases.control())).await;
    assert_eq!(init.unwrap().upgraded, None);
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "");
    assert_eq!(leases.call("release('e', 1)").await, "t");
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "2");
}
