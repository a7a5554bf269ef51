//! The `init` of an earlier version must not create empty tables after an upgrade: every token would count as the
//! first.

use super::{reason, stale_below};
use crate::fence::server::{VERSION_5, World};
use crate::support::Release;
use tokio_postgres::error::SqlState;

const EARLIER: &str = include_str!("version_5.sql");

#[tokio::test]
async fn an_earlier_init_is_refused_and_no_old_token_passes() {
    earlier_init(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn an_earlier_init_is_refused_and_no_old_token_passes_on_18() {
    earlier_init(Release::Eighteen).await;
}

async fn earlier_init(release: Release) {
    let world = World::new_on(release).await;
    world.session(&world.proxy("p1")).await.admit(&world.resource, 7).await.unwrap();
    world.run(VERSION_5).await;
    let report = fencegate_fence::init(&world.control_config("postgres"), Some(&world.control())).await.unwrap();
    assert_eq!(report.versions, Some((5, 6)));

    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencegate'::regnamespace";
    let error = world.root.batch_execute(&format!("BEGIN; {EARLIER}; COMMIT")).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DUPLICATE_OBJECT), "{error:?}");
    world.run("ROLLBACK").await;
    assert_eq!(world.ask(tables).await, "0");
    let session = world.session(&world.proxy("p2")).await;
    stale_below(session.admit(&world.resource, 6).await, 7);
    session.admit(&world.resource, 7).await.unwrap();

    // If the version is also set back by hand, no session can write.
    world.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 5'").await;
    let session = world.session(&world.proxy("p3")).await;
    assert!(reason(session.admit(&world.resource, 6).await).contains("run `fencegate init`"));
}
