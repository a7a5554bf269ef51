//! An operator deletes an epoch row while processes are admitted: the next leader still shuts them out.

use crate::fence::server::{World, connect};
use crate::support::{Release, until};
use fencegate_fence::session::Activity;

#[tokio::test]
async fn the_next_leader_shuts_out_earlier_admissions() {
    next_leader(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn the_next_leader_shuts_out_earlier_admissions_on_18() {
    next_leader(Release::Eighteen).await;
}

async fn next_leader(release: Release) {
    let world = World::new_on(release).await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (writing, idle, new) = (world.session(&one).await, world.session(&two).await, world.session(&two).await);
    writing.admit(&world.resource, 9).await.unwrap();
    for token in [8, 7] {
        one.reset(&world.resource, token, "operator", true).await.unwrap();
    }
    assert_eq!(world.epoch().await, "(3,7,t)");
    writing.admit(&world.resource, 7).await.unwrap();
    idle.admit(&world.resource, 7).await.unwrap();
    writing.write(7).await;
    world.run("DELETE FROM fencegate_state.epoch").await;

    // A lower token, as after a loss of tokens. No epoch refuses it.
    new.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.epoch().await, "(4,5,t)");
    assert!(writing.client.batch_execute("COMMIT").await.is_err(), "it would commit after the new leader");
    assert!(!idle.fence.begin_write([("scheduler", 7)]));
    assert!(new.fence.begin_write([("scheduler", 5)]));
    new.fence.set_activity(Activity::Idle);
    assert_eq!(world.ask("SELECT count(*) FROM ticks").await, "0");

    // Without admitted processes, the next epoch is the first.
    drop((writing, idle));
    new.client.batch_execute("SELECT 1").await.unwrap();
    world.run("DELETE FROM fencegate_state.epoch; DELETE FROM fencegate_state.admission").await;
    let first = world.session(&one).await;
    first.admit(&world.resource, 3).await.unwrap();
    assert_eq!(world.epoch().await, "(1,3,t)");
}

/// A subscription would bring an epoch that is older than the admissions on this server.
#[tokio::test]
async fn a_subscription_brings_no_older_epoch() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 9).await.unwrap();
    proxy.reset(&world.resource, 7, "operator", true).await.unwrap();
    let admitted = world.session(&proxy).await;
    admitted.admit(&world.resource, 7).await.unwrap();
    let worker = connect(&world.config("postgres")).await;
    worker.batch_execute("DELETE FROM fencegate_state.epoch; SET session_replication_role = replica").await.unwrap();
    let bring = |generation| {
        format!("INSERT INTO fencegate_state.epoch (resource, generation, token) VALUES ('scheduler', {generation}, 8)")
    };
    let error = worker.batch_execute(&bring(1)).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "LF006", "{error:?}");
    assert!(error.message().contains(&admitted.pid().to_string()), "{error:?}");
    // A newer epoch drains the admitted processes.
    worker.batch_execute(&format!("BEGIN; {}; ROLLBACK", bring(2))).await.unwrap();
    let pid = admitted.pid();
    drop(admitted);
    let ended = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    until("the admitted process has ended", async || world.ask(&ended).await == "0").await;
    worker.batch_execute(&bring(1)).await.unwrap();
    assert_eq!(world.epoch().await, "(1,8,f)");
}
