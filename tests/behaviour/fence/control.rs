//! Control connections: probed, watched, replaced, closed.

use crate::fence::server::{World, connect};
use crate::fence::{reason, stale_below};
use crate::support::until;
use fencegate::fence::session::Activity;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test]
async fn notification_alone_raises_nothing() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    world.run("NOTIFY fencegate, 'scheduler'; NOTIFY fencegate, 'scheduler=99'; NOTIFY fencegate").await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(proxy.known_stale("scheduler", 1), None);
    assert!(session.fence.begin_write([("scheduler", 1)]));
}

#[tokio::test]
async fn control_role_without_privileges_or_schema_is_refused() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    for grant in ["pg_read_all_stats", "pg_signal_backend"] {
        world.run(&format!("REVOKE {grant} FROM {}", world.control())).await;
        let blind = world.proxy("p2");
        let session = world.session(&blind).await;
        assert!(reason(session.admit(&world.resource, 1).await).contains(grant));
        world.run(&format!("GRANT {grant} TO {}", world.control())).await;
    }

    let bare = World::bare().await;
    bare.run(&format!("GRANT pg_read_all_stats, pg_signal_backend TO {}", bare.control())).await;
    let session = bare.session(&bare.proxy("p1")).await;
    assert!(reason(session.admit(&bare.resource, 1).await).contains("fencegate init"));
    fencegate::fence::init(&bare.control_config("postgres"), Some(&bare.control())).await.unwrap();
    bare.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 0'").await;
    let session = bare.session(&bare.proxy("p1")).await;
    assert!(reason(session.admit(&bare.resource, 1).await).contains("version 0"));
}

#[tokio::test]
async fn killed_control_connections_are_replaced() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 2).await.unwrap();
    assert!(proxy.known_stale("scheduler", 1).is_some());
    world
        .run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fencegate control'")
        .await;
    until("nobody listens", async || proxy.known_stale("scheduler", 1).is_none()).await;
    assert!(old.fence.begin_write([("scheduler", 2)]), "who is admitted goes on");
    old.fence.set_activity(Activity::Idle);
    new.admit(&world.resource, 3).await.unwrap();
    stale_below(old.admit(&world.resource, 2).await, 3);
    until("memory is believed again", async || {
        let _ = old.admit(&world.resource, 2).await;
        proxy.known_stale("scheduler", 2).is_some()
    })
    .await;
}

/// What is prepared answers in the types that the tables had: the server refuses to run it, and a new connection prepares anew.
#[tokio::test]
async fn a_column_of_another_type_costs_one_attempt() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    world
        .run("ALTER TABLE fencegate.admission ALTER COLUMN proxy TYPE varchar, ALTER COLUMN resource TYPE varchar")
        .await;
    let other = world.session(&proxy).await;
    until("it is prepared anew", async || other.admit(&world.resource, 1).await.is_ok()).await;
}

#[tokio::test]
async fn blocked_control_connection_is_given_up_and_its_process_ended() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let blocker = connect(&world.config("postgres")).await;
    blocker.batch_execute("BEGIN; SELECT FROM fencegate.epoch FOR UPDATE").await.unwrap();
    let other = world.session(&proxy).await;
    assert!(reason(other.admit(&world.resource, 1).await).contains("was not given back"));
    assert!(!other.fence.holds_admissions());
    // What has no limit of its own on the server.
    blocker.batch_execute("LOCK TABLE fencegate.epoch").await.unwrap();
    let waiting = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND query LIKE '%updated%' AND datname = current_database()";
    let process = async {
        loop {
            let process = world.ask(waiting).await;
            if process != "0" {
                return process;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let (asked, process) = tokio::join!(proxy.fences(std::slice::from_ref(&world.resource)), process);
    assert!(asked.unwrap_err().contains("did not answer"));
    let half_sent = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
    until("what was half sent is ended", async || world.ask(&half_sent).await == "0").await;
    blocker.batch_execute("ROLLBACK").await.unwrap();
    other.admit(&world.resource, 1).await.unwrap();
}

#[tokio::test]
async fn connections_close_after_the_last_session_and_on_demand() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencegate control' AND datname = current_database()";
    let mut session = world.session(&proxy).await;
    assert_eq!(world.ask(count).await, "0", "opened when first needed");
    session.admit(&world.resource, 1).await.unwrap();
    assert_eq!(world.ask(count).await, "3");
    proxy.close().await;
    until("they are closed", async || world.ask(count).await == "0").await;
    session.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.ask(count).await, "3");
    session.registration = None;
    until("they are closed", async || world.ask(count).await == "0").await;
}
