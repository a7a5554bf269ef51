//! Publish, drain and mark: no session is admitted before all lower tokens are drained.

use crate::fence::server::{Session, World, connect, metrics};
use crate::fence::{reason, stale_below};
use crate::support::{DEADLINE, Stalls, until};
use fencegate_fence::background::Background;
use fencegate_fence::session::{Activity, Epoch};
use fencegate_fence::{CutOff, Database, FenceError, Obstacle, ProcessFault};
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn writer_in_a_transaction_is_ended_before_its_successor_is_admitted() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    let (stalls, began) = (Stalls::watch(), Instant::now());
    new.admit(&world.resource, 2).await.unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1000) + stalls.total(), "{took:?}");
    assert!(!world.lives(&old).await);
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.admission").await, "1");
    let cut = old.proxy.cut_off_by(&old.fence).await;
    let (presented, highest) = (Epoch { generation: 1, token: 1 }, Epoch { generation: 1, token: 2 });
    assert_eq!(cut, Some(CutOff { resource: "scheduler".into(), presented, highest }));
    assert_eq!(new.proxy.cut_off_by(&new.fence).await, None);
}

#[tokio::test]
async fn a_running_statement_without_a_lock_is_terminated() {
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
    // Another proxy died after its Publish.
    world.run("UPDATE fencegate_state.epoch SET token = 2, drained = false").await;
    new.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.epoch().await, "(1,2,t)");
    assert!(!world.lives(&old).await);
}

/// With any query plan, a proxy that releases its own sessions does not touch the sessions of other proxies.
#[tokio::test]
async fn raises_its_token_while_another_proxy_releases_its_sessions() {
    let world = World::new().await;
    let wait = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
        $$BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END$$; \
        CREATE TRIGGER wait AFTER DELETE ON fencegate_state.admission FOR EACH ROW WHEN (OLD.proxy = 'p1') EXECUTE FUNCTION wait()";
    world.run(wait).await;
    world.run(&format!("ALTER DATABASE {} SET enable_nestloop = off", world.database)).await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let sessions = [world.session(&one).await, world.session(&one).await];
    let (raising, other) = (world.session(&two).await, world.session(&one).await);
    for session in sessions.iter().chain([&raising]) {
        session.admit(&world.resource, 1).await.unwrap();
    }
    // Its own proxy cannot release it while it is busy.
    raising.fence.set_activity(Activity::Busy);
    world.run("SELECT pg_advisory_lock(42)").await;
    let held_up = async {
        world.is_awaited().await;
        let mut admitting = Box::pin(raising.admit(&world.resource, 2));
        while world.admissions(&raising).await != "0" {
            tokio::select! {
                admitted = &mut admitting => panic!("before its row is deleted: {admitted:?}"),
                () = sleep(Duration::from_millis(1)) => {}
            }
        }
        world.run("SELECT pg_advisory_unlock(42)").await;
        admitting.await
    };
    let stalls = Stalls::watch();
    let (admitted, other_admitted) = tokio::join!(held_up, other.admit(&world.resource, 2));
    other_admitted.unwrap();
    // If the machine stalls for longer than the grace period, the other proxy ends the process first.
    match (admitted, stalls.total()) {
        (
            Err(FenceError::Unavailable { obstacle: Obstacle::Process { fault: ProcessFault::Unseen, .. }, .. }),
            stalled,
        ) if !stalled.is_zero() => {}
        (admitted, _) => admitted.unwrap(),
    }
}

/// Operations that read or mark an admission briefly lock its row. Unlike the guard's lock, this lock does not indicate
/// a write.
#[tokio::test]
async fn raises_its_token_while_another_transaction_locks_its_row() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    for (token, lock) in [(2, "FOR UPDATE"), (3, "FOR NO KEY UPDATE")] {
        session.admit(&world.resource, token - 1).await.unwrap();
        world.run(&format!("BEGIN; SELECT FROM fencegate_state.admission {lock}")).await;
        let for_a_moment = async {
            let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted";
            until("a process waits for the row", async || world.ask(waits).await != "0").await;
            world.run("COMMIT").await;
        };
        let (admitted, ()) = tokio::join!(session.admit(&world.resource, token), for_a_moment);
        admitted.unwrap();
    }
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
}

#[tokio::test]
async fn foreign_idle_process_is_released_by_its_own_proxy() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    world.publish("scheduler", 2).await;
    until("its own proxy releases it", async || world.admissions(&old).await == "0").await;
    new.admit(&world.resource, 2).await.unwrap();
    assert!(world.lives(&old).await);
    assert!(!old.fence.begin_write([("scheduler", 1)]));
    until("the proxy reads the epoch after the notification", async || one.known_stale("scheduler", 1).is_some()).await;
}

#[tokio::test]
async fn rows_of_a_dead_process_are_removed() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    // A row of an earlier process whose pid is in use again.
    world
        .run("INSERT INTO fencegate_state.admission SELECT pg_backend_pid(), '2001-01-01', 'scheduler', 1, 1, 'p3', now()")
        .await;
    world.run(&format!("SELECT pg_terminate_backend({}, 5000)", old.pid())).await;
    new.admit(&world.resource, 2).await.unwrap();
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.admission").await, "1");
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
        Err(FenceError::WrittenUnderAnotherToken { resource: "scheduler".into(), presented: 3, current: 2 })
    );
    assert_eq!(world.epoch().await, "(1,2,t)", "nothing was raised");
    assert!(session.fence.begin_write([("scheduler", 2)]), "the session continues under its token");
    let busy = session.admit(&world.resource, 3).await;
    assert!(matches!(busy, Err(FenceError::WrittenUnderAnotherToken { .. })), "it may be writing");
    session.client.batch_execute("ROLLBACK").await.unwrap();
    session.fence.set_activity(Activity::Idle);
    session.admit(&world.resource, 3).await.unwrap();
}

/// Another proxy's drain signals the process, which does not end immediately. Meanwhile the process's own proxy checks
/// whether it may release the process: it may not, and the client's error reports a newer token.
#[tokio::test]
async fn a_process_that_is_being_terminated_is_not_released() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    signal("STOP", old.pid());
    let crossing = async {
        until("it is being terminated", async || is_being_ended(old.pid())).await;
        let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 2 });
        one.release(&old.fence).await;
        let left = world.admissions(&old).await;
        // Nor can the session keep its process by raising its token now.
        let mut raising = std::pin::pin!(old.admit(&world.resource, 2));
        let cut = tokio::select! {
            biased;
            admitted = &mut raising => panic!("{admitted:?}"),
            cut = one.cut_off_by(&old.fence) => cut,
        };
        signal("CONT", old.pid());
        assert!(reason(raising.await).contains("server process"));
        (left, cut)
    };
    let (admitted, (left, cut)) = tokio::join!(new.admit(&world.resource, 2), crossing);
    admitted.unwrap();
    assert_eq!(left, "1");
    assert!(!world.lives(&old).await);
    for cut in [cut, one.cut_off_by(&old.fence).await] {
        let cut = cut.expect("a newer token did");
        assert_eq!((cut.presented.token, cut.highest.token), (1, 2));
    }
}

fn signal(name: &str, pid: i32) {
    let sent = std::process::Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A SIGTERM is pending for the process, which is stopped.
fn is_being_ended(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:"));
    pending.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap()).any(|mask| mask & (1 << 14) != 0)
}

#[tokio::test]
async fn reset_to_a_lower_token_makes_old_rows_older() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 100).await.unwrap();
    old.write(100).await;
    world.run("UPDATE fencegate_state.epoch SET generation = generation + 1, token = 50, drained = false").await;
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
async fn losing_a_privilege_during_a_drain_does_not_mark_processes_dead() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    old.write(1).await;
    one.close().await;
    // Connect now: a connection opened without the privilege would be refused.
    two.admissions().await.unwrap();
    // The process is terminated, but does not end until it is resumed.
    signal("STOP", old.pid());
    let admitting = new.admit(&world.resource, 2);
    let hiding = async {
        becomes(&world, "(1,2,f)").await;
        world.run(&format!("REVOKE pg_read_all_stats FROM {}", world.control())).await;
        sleep(Duration::from_millis(300)).await;
        assert!(world.lives(&old).await, "the test needs it alive");
        assert_eq!(world.admissions(&old).await, "1", "a process whose backend_start is hidden is not dead");
        assert_eq!(world.epoch().await, "(1,2,f)");
        world.run(&format!("GRANT pg_read_all_stats TO {}", world.control())).await;
        signal("CONT", old.pid());
    };
    let (admitted, ()) = tokio::join!(admitting, hiding);
    assert!(reason(admitted).contains("GRANT pg_read_all_stats TO"));
    until("it is admitted", async || new.admit(&world.resource, 2).await.is_ok()).await;
    assert!(!world.lives(&old).await);
}

/// Waits for this value of the epoch row.
async fn becomes(world: &World, epoch: &str) {
    until(format!("the epoch is {epoch}"), async || world.epoch().await == epoch).await;
}

/// Runs the statements between the drain of an advance to 2 and its Mark. The old holder is stopped, and delays the
/// drain until the epoch row is locked.
async fn before_mark(world: &World, statements: &str) -> Result<(), FenceError> {
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    old.admit(&world.resource, 1).await.unwrap();
    one.close().await;
    signal("STOP", old.pid());
    let intervening = async {
        becomes(world, "(1,2,f)").await;
        let locker = connect(&world.config("postgres")).await;
        locker.batch_execute("BEGIN; SELECT FROM fencegate_state.epoch FOR UPDATE").await.unwrap();
        signal("CONT", old.pid());
        until("the process has ended", async || !world.lives(&old).await).await;
        sleep(Duration::from_millis(200)).await;
        locker.batch_execute(&format!("{statements}; COMMIT")).await.unwrap();
    };
    tokio::join!(new.admit(&world.resource, 2), intervening).0
}

#[tokio::test]
async fn mark_is_for_the_epoch_that_was_drained() {
    let world = World::new().await;
    stale_below(before_mark(&world, "UPDATE fencegate_state.epoch SET token = 3, drained = false").await, 3);
    assert_eq!(world.epoch().await, "(1,3,f)");
}

#[tokio::test]
async fn mark_checks_the_admissions_itself() {
    let world = World::new().await;
    let late = world.session(&world.proxy("p3")).await;
    let row = format!(
        "INSERT INTO fencegate_state.admission SELECT pid, backend_start, 'scheduler', 1, 1, 'p3', now() \
         FROM pg_stat_get_activity({})",
        late.pid()
    );
    before_mark(&world, &row).await.unwrap();
    assert!(!world.lives(&late).await);
}

/// The connection belongs to another proxy's Admit, whose control role may differ.
#[tokio::test]
async fn control_connection_that_holds_the_lock_is_spared() {
    let world = World::new().await;
    let proxy = Database::new(
        world.database.clone(),
        world.control_config("postgres"),
        "p2",
        fencegate_fence::Authority::new(Background::current()),
        metrics(),
        Background::current(),
    );
    let session = world.session(&proxy).await;
    let admitting = connect(&world.config(&world.control())).await;
    let lock = "SET application_name = 'fencegate control'; BEGIN; \
        SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:scheduler', 0))";
    admitting.batch_execute(lock).await.unwrap();
    assert!(reason(session.admit(&world.resource, 1).await).contains("waiting for a lock"));
    admitting.batch_execute("COMMIT").await.expect("it was not ended");
    session.admit(&world.resource, 1).await.unwrap();
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
            Err(FenceError::Stale { .. }) => {}
            // The drain for a newer token terminates processes of the other proxy during their admission.
            Err(other) => assert!(reason(Err(other)).contains("process")),
        }
    }
    assert_eq!(admitted, 10);
    assert_eq!(world.epoch().await, "(1,3,t)");
}

/// One leader: writes under its token, in and out of transactions, until it is stale or terminated.
async fn lead(session: Session, resource: std::sync::Arc<fencegate_policy::Resource>, token: i64) -> u32 {
    if session.admit(&resource, token).await.is_err() {
        return 0;
    }
    for round in 0.. {
        // The steps of a relay: held back until admitted, busy while the statement runs, then idle or waiting.
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
    const ENOUGH: i64 = 20;
    let mut leaders = Vec::new();
    let written = async || world.ask("SELECT count(DISTINCT token) FROM ticks").await.parse::<i64>().unwrap();
    let since = Instant::now();
    for token in 1.. {
        for proxy in &proxies {
            let session = world.session(proxy).await;
            leaders.push(tokio::spawn(lead(session, world.resource.clone(), token)));
        }
        sleep(Duration::from_millis(50)).await;
        if token >= 40 && written().await >= ENOUGH {
            break;
        }
        assert!(since.elapsed() < DEADLINE, "too few rows are written");
    }
    // The leaders with the last token never stop on their own.
    let last = world.session(&proxies[0]).await;
    last.admit(&world.resource, 1_000_000).await.unwrap();
    for leader in leaders {
        leader.await.unwrap();
    }
    let inversions = "SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY pg_xact_commit_timestamp(xmin)) \
                      AS before FROM ticks) t WHERE token < before";
    assert_eq!(world.ask(inversions).await, "0");
}
