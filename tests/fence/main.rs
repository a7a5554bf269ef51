//! The fence against real server processes: every hole that a first version had, and the ways back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod server;

use fencegate::fence::session::{Activity, Epoch};
use fencegate::fence::{CutOff, Refusal};
use server::{Session, World, connect, one, resource};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

fn reason(result: Result<(), Refusal>) -> String {
    match result {
        Err(Refusal::Unavailable { reason, .. }) => reason,
        other => panic!("expected LF006, got {other:?}"),
    }
}

fn stale_below(result: Result<(), Refusal>, highest: i64) {
    match result {
        Err(Refusal::Stale { highest: epoch, .. }) => assert_eq!(epoch.token, highest),
        other => panic!("expected LF001, got {other:?}"),
    }
}

#[tokio::test]
async fn missing_row_is_published_drained_and_marked_before_anybody_is_admitted() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    assert_eq!(world.epoch().await, "none");
    session.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.epoch().await, "(1,5,t)");
    assert_eq!(world.admissions(&session).await, "1");
    assert!(session.fence.begin_write([("scheduler", 5)]));

    let equal = world.session(&proxy).await;
    equal.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.admissions(&equal).await, "1");
    session.admit(&world.resource, 5).await.unwrap();
    assert_eq!(world.admissions(&session).await, "1", "asking again adds nothing");
}

#[tokio::test]
async fn lower_token_is_stale_and_memory_knows_it_for_a_second() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (new, old) = (world.session(&proxy).await, world.session(&proxy).await);
    new.admit(&world.resource, 7).await.unwrap();
    stale_below(old.admit(&world.resource, 6).await, 7);
    assert_eq!(world.admissions(&old).await, "0");
    assert_eq!(proxy.known_stale("scheduler", 6), Some(Epoch { generation: 1, token: 7 }));
    assert_eq!(proxy.known_stale("scheduler", 7), None);
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(proxy.known_stale("scheduler", 6), None, "not confirmed lately");
    stale_below(old.admit(&world.resource, 6).await, 7);
    assert!(proxy.known_stale("scheduler", 6).is_some());
}

#[tokio::test]
async fn writer_in_a_transaction_is_ended_before_its_successor_is_admitted() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    let began = Instant::now();
    new.admit(&world.resource, 2).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(1000));
    assert!(!world.lives(&old).await);
    assert_eq!(world.ask("SELECT count(*) FROM fencegate.admission").await, "1");
    let cut = old.proxy.cut_off_by(&old.fence).await;
    let (presented, highest) = (Epoch { generation: 1, token: 1 }, Epoch { generation: 1, token: 2 });
    assert_eq!(cut, Some(CutOff { resource: "scheduler".into(), presented, highest }));
    assert_eq!(new.proxy.cut_off_by(&new.fence).await, None);
}

#[tokio::test]
async fn statement_that_runs_is_ended_although_it_holds_no_lock_yet() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    assert!(old.fence.begin_write([("scheduler", 1)]));
    new.admit(&world.resource, 2).await.unwrap();
    assert!(!world.lives(&old).await);
}

#[tokio::test]
async fn idle_and_unwritten_sessions_keep_their_process() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (idle, waiting, locking, new) = (
        world.session(&proxy).await,
        world.session(&proxy).await,
        world.session(&proxy).await,
        world.session(&proxy).await,
    );
    for session in [&idle, &waiting, &locking] {
        session.admit(&world.resource, 1).await.unwrap();
    }
    waiting.client.batch_execute("BEGIN; SELECT * FROM ticks; CREATE TEMP TABLE x (n int)").await.unwrap();
    waiting.fence.set_activity(Activity::Waiting);
    locking.client.batch_execute("BEGIN; SELECT * FROM ticks FOR UPDATE").await.unwrap();
    locking.fence.set_activity(Activity::Waiting);
    new.admit(&world.resource, 2).await.unwrap();
    assert!(world.lives(&idle).await && world.lives(&waiting).await);
    assert!(!world.lives(&locking).await, "its row locks would block the successor");
    for session in [&idle, &waiting] {
        assert_eq!(world.admissions(session).await, "0");
        assert!(!session.fence.begin_write([("scheduler", 1)]));
        stale_below(session.admit(&world.resource, 1).await, 2);
    }
}

#[tokio::test]
async fn writes_through_a_partition_count() {
    let world = World::new().await;
    world.run("CREATE TABLE part () INHERITS (ticks); GRANT ALL ON part TO PUBLIC").await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.client.batch_execute("BEGIN; INSERT INTO part VALUES (1)").await.unwrap();
    old.fence.set_activity(Activity::Waiting);
    new.admit(&world.resource, 2).await.unwrap();
    assert!(!world.lives(&old).await);
}

#[tokio::test]
async fn table_created_in_an_open_transaction_counts() {
    let world = World::new().await;
    world.run("DROP TABLE ticks; GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.client.batch_execute("BEGIN; CREATE TABLE ticks (n int); INSERT INTO ticks VALUES (1)").await.unwrap();
    old.fence.set_activity(Activity::Waiting);
    new.admit(&world.resource, 2).await.unwrap();
    assert!(!world.lives(&old).await);
}

#[tokio::test]
async fn half_done_advance_is_finished_by_another_proxy() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    // Published, and then the proxy died.
    world.run("UPDATE fencegate.epoch SET token = 2, drained = false").await;
    new.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.epoch().await, "(1,2,t)");
    assert!(!world.lives(&old).await);
}

#[tokio::test]
async fn late_admit_reply_is_discarded_after_a_revocation() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    new.admit(&world.resource, 1).await.unwrap();
    // The drain's revocation for 2 arrives while the Admit at 1, already committed, is on its way.
    let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 2 });
    let asking = old.admit(&world.resource, 1);
    let publish = async {
        sleep(Duration::from_millis(100)).await;
        world.run("UPDATE fencegate.epoch SET token = 2, drained = false").await;
    };
    let (answer, ()) = tokio::join!(asking, publish);
    stale_below(answer, 2);
    assert!(!old.fence.begin_write([("scheduler", 1)]));
    assert_eq!(world.admissions(&old).await, "0", "the unused row is gone");
    assert!(world.lives(&old).await);
}

#[tokio::test]
async fn foreign_idle_process_is_ended_after_the_grace_and_its_row_not_before() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    let began = Instant::now();
    let admitting = new.admit(&world.resource, 2);
    let watching = async {
        while world.lives(&old).await {
            assert!(!(world.admissions(&old).await == "0" && world.lives(&old).await), "row deleted first");
            sleep(Duration::from_millis(1)).await;
        }
        began.elapsed()
    };
    let (admitted, died) = tokio::join!(admitting, watching);
    admitted.unwrap();
    assert!(died >= Duration::from_millis(90), "{died:?}");
    assert!(died < Duration::from_millis(2000), "{died:?}");
}

#[tokio::test]
async fn foreign_idle_process_is_released_by_its_own_proxy() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    new.admit(&world.resource, 2).await.unwrap();
    assert!(world.lives(&old).await);
    assert_eq!(world.admissions(&old).await, "0");
    assert!(!old.fence.begin_write([("scheduler", 1)]));
    sleep(Duration::from_millis(50)).await;
    assert!(one.known_stale("scheduler", 1).is_some(), "the notification was followed by a look");
}

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
async fn dead_process_is_buried() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    // A row of an earlier process with a pid that is used again.
    world
        .run("INSERT INTO fencegate.admission SELECT pg_backend_pid(), '2001-01-01', 'scheduler', 1, 1, 'p3', now()")
        .await;
    world.run(&format!("SELECT pg_terminate_backend({}, 5000)", old.pid())).await;
    let began = Instant::now();
    new.admit(&world.resource, 2).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(100), "nobody to wait for: {:?}", began.elapsed());
    assert_eq!(world.ask("SELECT count(*) FROM fencegate.admission").await, "1");
}

#[tokio::test]
async fn raising_session_keeps_its_process_unless_it_has_written() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    session.client.batch_execute("BEGIN; SELECT * FROM ticks FOR UPDATE").await.unwrap();
    session.fence.set_activity(Activity::Waiting);
    session.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.admissions(&session).await, "1");
    session.client.batch_execute("ROLLBACK").await.unwrap();

    session.write(2).await;
    let answer = session.admit(&world.resource, 3).await;
    assert_eq!(
        answer,
        Err(Refusal::WrittenUnderAnotherToken { resource: "scheduler".into(), presented: 3, current: 2 })
    );
    assert_eq!(world.epoch().await, "(1,2,t)", "nothing was raised");
    assert!(session.fence.begin_write([("scheduler", 2)]), "the session goes on under its token");
    let busy = session.admit(&world.resource, 3).await;
    assert!(matches!(busy, Err(Refusal::WrittenUnderAnotherToken { .. })), "it may be writing");
    session.client.batch_execute("ROLLBACK").await.unwrap();
    session.fence.set_activity(Activity::Idle);
    session.admit(&world.resource, 3).await.unwrap();
}

#[tokio::test]
async fn reset_to_a_lower_token_makes_old_rows_older() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 100).await.unwrap();
    old.write(100).await;
    world.run("UPDATE fencegate.epoch SET generation = generation + 1, token = 50, drained = false").await;
    new.admit(&world.resource, 50).await.unwrap();
    assert_eq!(world.epoch().await, "(2,50,t)");
    assert!(!world.lives(&old).await);
    assert_eq!(new.fence.admission("scheduler"), Some(Epoch { generation: 2, token: 50 }));
}

#[tokio::test]
async fn prepared_transaction_keeps_the_epoch_from_being_marked() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    world.run("BEGIN; INSERT INTO ticks VALUES (1); PREPARE TRANSACTION 'hidden one'").await;
    assert!(reason(session.admit(&world.resource, 1).await).contains("hidden one"));
    assert_eq!(world.epoch().await, "(1,1,f)");
    assert_eq!(world.admissions(&session).await, "0");
    world.run("COMMIT PREPARED 'hidden one'").await;
    world.run("CREATE TABLE other (); BEGIN; DROP TABLE other; PREPARE TRANSACTION 'another'").await;
    session.admit(&world.resource, 1).await.unwrap();
    world.run("ROLLBACK PREPARED 'another'").await;
}

#[tokio::test]
async fn process_that_is_not_what_it_says_is_refused() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let good = session.fence.identity.clone().unwrap();
    let other = connect(&world.server.config("postgres", &format!("{}_app", world.database))).await;
    let elsewhere = world.identity(&other).await;
    let wrong = [
        (fencegate::fence::session::Identity { pid: 1, ..good.clone() }, "no such server process"),
        (fencegate::fence::session::Identity { backend_start: "1.000000".into(), ..good.clone() }, "another process"),
        (fencegate::fence::session::Identity { system_identifier: "1".into(), ..good.clone() }, "another server"),
        (fencegate::fence::session::Identity { postmaster_start: "1".into(), ..good.clone() }, "started anew"),
        (fencegate::fence::session::Identity { in_recovery: true, ..good.clone() }, "recovery"),
        (elsewhere, "another database"),
    ];
    for (identity, expected) in wrong {
        let client = connect(&world.config("postgres")).await;
        let liar = Session::new(&proxy, client, identity);
        for token in [1, 2] {
            let reason = reason(liar.admit(&world.resource, token).await);
            assert!(reason.contains(expected), "{expected}: {reason}");
            assert!(!liar.fence.holds_admissions());
        }
    }
    assert_eq!(world.epoch().await, "(1,1,t)", "nothing was raised");
    assert_eq!(world.ask("SELECT count(*) FROM fencegate.admission").await, "1");
}

#[tokio::test]
async fn superusers_session_needs_a_superuser_as_control_role() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session_as(&proxy, "postgres").await;
    assert!(reason(session.admit(&world.resource, 1).await).contains("superuser"));
    assert_eq!(world.epoch().await, "none");
    let strong = fencegate::fence::Database::new("strong", world.config("postgres"), "p2");
    let session = world.session_as(&strong, "postgres").await;
    session.admit(&world.resource, 1).await.unwrap();
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
    fencegate::fence::init(&bare.config("postgres"), Some(&bare.control())).await.unwrap();
    bare.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 0'").await;
    let session = bare.session(&bare.proxy("p1")).await;
    assert!(reason(session.admit(&bare.resource, 1).await).contains("version 0"));
}

#[tokio::test]
async fn privilege_lost_in_mid_drain_makes_nobody_dead() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    one.close().await;
    let admitting = new.admit(&world.resource, 2);
    let hiding = async {
        until(&world, "(1,2,f)").await;
        world.run(&format!("REVOKE pg_read_all_stats FROM {}", world.control())).await;
        sleep(Duration::from_millis(300)).await;
        assert!(world.lives(&old).await, "the test needs it alive");
        assert_eq!(world.admissions(&old).await, "1", "a process whose backend_start is hidden is not dead");
        assert_eq!(world.epoch().await, "(1,2,f)");
        world.run(&format!("GRANT pg_read_all_stats TO {}", world.control())).await;
    };
    let (admitted, ()) = tokio::join!(admitting, hiding);
    admitted.unwrap();
    assert!(!world.lives(&old).await);
}

/// Waits for the epoch row to become this.
async fn until(world: &World, epoch: &str) {
    while world.epoch().await != epoch {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Runs the statements between the drain of an advance to 2 and its Mark: the old holder, of a
/// proxy that does not answer, keeps the drain busy until the epoch row is locked.
async fn before_mark(world: &World, statements: &str) -> Result<(), Refusal> {
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    let intervening = async {
        until(world, "(1,2,f)").await;
        let locker = connect(&world.config("postgres")).await;
        locker.batch_execute("BEGIN; SELECT FROM fencegate.epoch FOR UPDATE").await.unwrap();
        while world.lives(&old).await {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(200)).await;
        locker.batch_execute(&format!("{statements}; COMMIT")).await.unwrap();
    };
    tokio::join!(new.admit(&world.resource, 2), intervening).0
}

#[tokio::test]
async fn mark_is_for_the_epoch_that_was_drained() {
    let world = World::new().await;
    stale_below(before_mark(&world, "UPDATE fencegate.epoch SET token = 3, drained = false").await, 3);
    assert_eq!(world.epoch().await, "(1,3,f)");
}

#[tokio::test]
async fn mark_looks_at_the_admissions_itself() {
    let world = World::new().await;
    let late = world.session(&world.proxy("p3")).await;
    let row = format!(
        "INSERT INTO fencegate.admission SELECT pid, backend_start, 'scheduler', 1, 1, 'p3', now() \
         FROM pg_stat_get_activity({})",
        late.pid()
    );
    before_mark(&world, &row).await.unwrap();
    assert!(!world.lives(&late).await);
}

#[tokio::test]
async fn other_policies_are_refused_until_the_reload() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (first, second) = (world.session(&one).await, world.session(&two).await);
    first.admit(&world.resource, 1).await.unwrap();
    let newer = resource("scheduler", "b");
    for token in [1, 2] {
        assert!(reason(second.admit(&newer, token).await).contains("reload"));
    }
    assert_eq!(world.epoch().await, "(1,1,t)", "nothing was raised");
    two.apply_policy(std::slice::from_ref(&newer)).await.unwrap();
    second.admit(&newer, 2).await.unwrap();
    assert!(reason(first.admit(&world.resource, 2).await).contains("reload"));
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
    sleep(Duration::from_millis(20)).await;
    assert_eq!(proxy.known_stale("scheduler", 1), None, "nobody listens");
    assert!(old.fence.begin_write([("scheduler", 2)]), "who is admitted goes on");
    old.fence.set_activity(Activity::Idle);
    new.admit(&world.resource, 3).await.unwrap();
    stale_below(old.admit(&world.resource, 2).await, 3);
    timeout(Duration::from_secs(5), async {
        while proxy.known_stale("scheduler", 2).is_none() {
            let _ = old.admit(&world.resource, 2).await;
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("memory is believed again");
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
    assert!(reason(other.admit(&world.resource, 1).await).contains("did not answer"));
    assert!(!other.fence.holds_admissions());
    sleep(Duration::from_millis(300)).await;
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    assert_eq!(world.ask(waiting).await, "0", "the half-sent Admit was ended");
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
    sleep(Duration::from_millis(200)).await;
    assert_eq!(world.ask(count).await, "0");
    session.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.ask(count).await, "3");
    session.registration = None;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(world.ask(count).await, "0");
}

#[tokio::test]
async fn released_session_loses_its_rows_when_it_becomes_idle() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let old = world.session(&proxy).await;
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 2 });
    proxy.release(&old.fence).await;
    assert_eq!(world.admissions(&old).await, "1", "it has written");
    old.fence.set_activity(Activity::Busy);
    old.client.batch_execute("COMMIT").await.unwrap();
    proxy.release(&old.fence).await;
    assert_eq!(world.admissions(&old).await, "1", "it may still be writing");
    old.fence.set_activity(Activity::Idle);
    proxy.release(&old.fence).await;
    assert_eq!(world.admissions(&old).await, "0");
}

#[tokio::test]
async fn many_sessions_raise_at_once() {
    let world = World::new().await;
    let proxies = [world.proxy("p1"), world.proxy("p2")];
    let mut tasks = Vec::new();
    for number in 0..30 {
        let session = world.session(&proxies[number % 2]).await;
        let resource = world.resource.clone();
        tasks.push(tokio::spawn(async move {
            let answer = session.admit(&resource, number as i64 / 10 + 1).await;
            (session, answer)
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        let (session, answer) = task.await.unwrap();
        match answer {
            Ok(()) => admitted += usize::from(session.fence.begin_write([("scheduler", 3)])),
            Err(Refusal::Stale { .. }) => {}
            // A newer token's drain ends processes of the other proxy that are on their way.
            Err(other) => assert!(reason(Err(other)).contains("process")),
        }
    }
    assert_eq!(admitted, 10);
    assert_eq!(world.epoch().await, "(1,3,t)");
}

/// One leader: writes under its token, in and out of transactions, until it is told or ended.
async fn lead(session: Session, resource: std::sync::Arc<fencegate::policy::Resource>, token: i64) -> u32 {
    if session.admit(&resource, token).await.is_err() {
        return 0;
    }
    for round in 0.. {
        // What a relay does: held back until admitted, busy while it runs, idle or waiting after.
        if !session.fence.begin_write([("scheduler", token)]) {
            return round;
        }
        let insert = format!("INSERT INTO ticks SELECT {token}, {token} FROM pg_sleep(0.002)");
        let statements = if round % 2 == 0 { vec![insert] } else { vec!["BEGIN".into(), insert, "COMMIT".into()] };
        for statement in &statements {
            session.fence.set_activity(Activity::Busy);
            if session.client.batch_execute(statement).await.is_err() {
                return round;
            }
            let open = statements.len() > 1 && statement != "COMMIT";
            session.fence.set_activity(if open { Activity::Waiting } else { Activity::Idle });
        }
    }
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_in_the_order_of_tokens_under_load() {
    let world = World::new().await;
    let proxies = [world.proxy("p1"), world.proxy("p2")];
    let mut leaders = Vec::new();
    for token in 1..=40 {
        for proxy in &proxies {
            let session = world.session(proxy).await;
            leaders.push(tokio::spawn(lead(session, world.resource.clone(), token)));
        }
        sleep(Duration::from_millis(50)).await;
    }
    // The last token's leaders never stop by themselves.
    let last = world.session(&proxies[0]).await;
    last.admit(&world.resource, 1000).await.unwrap();
    for leader in leaders {
        leader.await.unwrap();
    }
    let written = world.ask("SELECT count(DISTINCT token) FROM ticks").await.parse::<i64>().unwrap();
    assert!(written >= 20, "too little was written to tell: {written} tokens");
    let inversions = "SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY pg_xact_commit_timestamp(xmin)) \
                      AS before FROM ticks) t WHERE token < before";
    assert_eq!(world.ask(inversions).await, "0");
}

#[tokio::test]
async fn token_function_reads_both_forms() {
    let world = World::new().await;
    let client = connect(&world.config(&format!("{}_app", world.database))).await;
    for (value, resource, expected) in [
        ("", "scheduler", "none"),
        ("47", "scheduler", "47"),
        (" 47 ", "scheduler", "47"),
        ("scheduler=47, shard/3=55", "scheduler", "47"),
        (" scheduler = 47 ,\tshard/3=55 ", "shard/3", "55"),
        ("scheduler=47, shard/3=55", "shard/30", "none"),
        ("9223372036854775807", "x", "9223372036854775807"),
        ("9223372036854775808", "x", "none"),
        ("0", "x", "none"),
        ("x=y", "x", "none"),
        ("x=1=2", "x", "none"),
    ] {
        let query = format!(
            "SELECT set_config('lease.fence', '{value}', false); SELECT coalesce(fencegate.token('{resource}')::text, 'none')"
        );
        let messages = client.simple_query(&query).await.unwrap();
        let row = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(row.last(), Some(expected), "{value:?} for {resource}");
    }
    let fresh = connect(&world.config(&format!("{}_app", world.database))).await;
    assert_eq!(one(&fresh, "SELECT fencegate.token('x') IS NULL").await, ["t"]);
    assert!(fresh.batch_execute("SELECT * FROM fencegate.epoch").await.is_err(), "no table privileges");
}

#[tokio::test]
async fn init_may_be_run_again_and_at_once() {
    let world = World::bare().await;
    let (config, control) = (world.config("postgres"), world.control());
    let run = || fencegate::fence::init(&config, Some(&control));
    let (a, b, c) = tokio::join!(run(), run(), run());
    for report in [a.unwrap(), b.unwrap(), c.unwrap()] {
        assert_eq!(report.role, control);
        assert!(report.to_run.is_empty());
    }
    assert_eq!(world.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'fencegate' AND tableowner = current_database() || '_control'").await, "2");
    let again = run().await.unwrap();
    assert!(!again.created && again.granted.is_empty());

    // A role that may create a schema, but not grant.
    let poor = World::bare().await;
    poor.run(&format!("GRANT CREATE ON DATABASE {} TO {}", poor.database, poor.control())).await;
    let report = fencegate::fence::init(&poor.config(&poor.control()), None).await.unwrap();
    assert!(report.created);
    assert_eq!(report.to_run.len(), 2);
    poor.run(&report.to_run.join(";")).await;
    assert!(fencegate::fence::init(&poor.config(&poor.control()), None).await.unwrap().to_run.is_empty());
}
