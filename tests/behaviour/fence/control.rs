//! Control connections: probed, watched, replaced, closed.

use crate::fence::server::{World, connect};
use crate::fence::{reason, stale_below};
use crate::support::until;
use fencegate_fence::session::Activity;
use fencegate_fence::{FenceError, Need, Remedy};
use fencegate_wire::client_error::ClientError;
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
    fencegate_fence::init(&bare.control_config("postgres"), Some(&bare.control())).await.unwrap();
    bare.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 0'").await;
    let session = bare.session(&bare.proxy("p1")).await;
    assert!(reason(session.admit(&bare.resource, 1).await).contains("version 0"));
}

/// Privileges that are revoked from the control role, the owner of the schema, and their names in the error.
const PRIVILEGES: [(&str, &str, &str); 13] = [
    ("pg_read_all_stats", "", "GRANT pg_read_all_stats TO"),
    ("pg_signal_backend", "", "GRANT pg_signal_backend TO"),
    ("CONNECT", " ON DATABASE %", "GRANT CONNECT ON DATABASE \"%\" TO"),
    ("EXECUTE", " ON FUNCTION pg_control_system()", "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO"),
    ("EXECUTE", " ON FUNCTION pg_stat_get_activity", "EXECUTE ON FUNCTION pg_catalog.pg_stat_get_activity(integer) TO"),
    ("USAGE", " ON SCHEMA fencegate", "in database % (USAGE on the schema fencegate)"),
    ("USAGE", " ON SCHEMA fencegate_state", "in database % (USAGE on the schema fencegate_state)"),
    ("EXECUTE", " ON FUNCTION fencegate.own_database()", "in database % (EXECUTE on own_database)"),
    ("SELECT", " ON fencegate_state.epoch", "in database % (SELECT on epoch)"),
    ("UPDATE", " ON fencegate_state.epoch", "in database % (UPDATE on epoch)"),
    ("INSERT, DELETE", " ON fencegate_state.admission", "in database % (DELETE on admission, INSERT on admission)"),
    ("SELECT", " ON fencegate_state.lease", "in database % (SELECT on lease)"),
    ("INSERT", " ON fencegate_state.reset", "in database % (INSERT on reset)"),
];

/// The error is in the result of `--check` and `/readyz`, and in LF006 of a new proxy and of a proxy with open
/// connections.
#[tokio::test]
async fn a_privilege_that_the_control_role_has_lost_is_named() {
    let world = World::new().await;
    let (control, config) = (world.control(), world.control_config(&world.control()));
    let proxy = world.proxy("p1");
    let (session, other) = (world.session(&proxy).await, world.session(&proxy).await);
    session.admit(&world.resource, 1).await.unwrap();
    let mut wrong = Vec::new();
    for (token, (privilege, on, named)) in (2..).zip(PRIVILEGES) {
        let [on, named] = [on, named].map(|it| it.replace('%', &world.database));
        let from_public = if on.is_empty() { "" } else { "PUBLIC, " };
        let fresh_proxy = world.proxy(&format!("p{token}"));
        let fresh = world.session(&fresh_proxy).await;
        world.run(&format!("REVOKE {privilege}{on} FROM {from_public}{control}")).await;
        let probed = fencegate_fence::probe(&config, Need::Tables).await.expect_err(privilege).to_string();
        let refused = reason(fresh.admit(&world.resource, token).await);
        let mut told = vec![("probe", probed), ("new proxy", refused)];
        // An open connection does not need these: its plans contain the result of own_database as a constant.
        if !["CONNECT", "INSERT"].contains(&privilege) && !on.contains("own_database") {
            told.push(("open connection", reason(other.admit(&world.resource, token).await)));
        }
        wrong.extend(told.into_iter().filter(|(_, it)| !it.contains(&named)).map(|it| (privilege, on.clone(), it)));
        let from_public = ["CONNECT", "EXECUTE"].contains(&privilege) || on.ends_with("SCHEMA fencegate");
        let to_public = if from_public { ", PUBLIC" } else { "" };
        world.run(&format!("GRANT {privilege}{on} TO {control}{to_public}")).await;
        until("it is admitted again", async || session.admit(&world.resource, token).await.is_ok()).await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Without the privilege, the drain would wait for processes that the role may not terminate, or take ended processes
/// for live ones.
#[tokio::test]
async fn a_drain_names_the_privilege_that_the_control_role_has_lost() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    for (token, privilege) in [(1, "pg_signal_backend"), (3, "pg_read_all_stats")] {
        let writer = world.session(&proxy).await;
        writer.admit(&world.resource, token).await.unwrap();
        writer.write(token).await;
        let leader = world.session(&proxy).await;
        world.run(&format!("REVOKE {privilege} FROM {}", world.control())).await;
        let Err(FenceError::Store { error, .. }) = leader.admit(&world.resource, token + 1).await else { panic!() };
        assert!(error.to_string().contains(&format!("GRANT {privilege} TO {}", world.control())), "{error}");
        let message = error.text().message;
        assert!(message.contains(&format!("GRANT {privilege} TO the role")), "{message}");
        assert_eq!(error.remedy(), Remedy::Grant);
        assert!(world.lives(&writer).await);
        world.run(&format!("GRANT {privilege} TO {}", world.control())).await;
        until("it is admitted", async || leader.admit(&world.resource, token + 1).await.is_ok()).await;
    }
}

#[tokio::test]
async fn killed_control_connections_are_replaced() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.admit(&world.resource, 2).await.unwrap();
    until("the proxy listens", async || proxy.known_stale("scheduler", 1).is_some()).await;
    world
        .run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fencegate control'")
        .await;
    until("the proxy does not listen", async || proxy.known_stale("scheduler", 1).is_none()).await;
    assert!(old.fence.begin_write([("scheduler", 2)]), "an admitted session continues");
    old.fence.set_activity(Activity::Idle);
    new.admit(&world.resource, 3).await.unwrap();
    stale_below(old.admit(&world.resource, 2).await, 3);
    until("the proxy's memory is valid again", async || {
        let _ = old.admit(&world.resource, 2).await;
        proxy.known_stale("scheduler", 2).is_some()
    })
    .await;
}

/// The proxy's row has the server process of a connection other than the listening one.
#[tokio::test]
async fn a_proxy_whose_connection_was_replaced_is_not_lost() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let is_lost = "SELECT count(*) FROM fencegate_state.proxy p LEFT JOIN pg_stat_activity a USING (pid) \
        WHERE a.pid IS NULL OR p.id <> 'p1'";
    proxy.announce_catalog().await;
    proxy.enforcement(std::slice::from_ref(&world.resource)).await.unwrap();
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.proxy").await, "1");
    let listener = proxy.last_listener();
    world.run("SELECT pg_terminate_backend(pid, 5000) FROM fencegate_state.proxy").await;
    until("its row names a living process", async || world.ask(is_lost).await == "0").await;
    assert_eq!(proxy.last_listener(), listener);
}

/// Prepared statements have the tables' earlier types: the server refuses to run them, and a new connection prepares
/// them again.
#[tokio::test]
async fn a_column_of_another_type_costs_one_attempt() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    world
        .run(
            "ALTER TABLE fencegate_state.admission ALTER COLUMN proxy TYPE varchar, ALTER COLUMN resource TYPE varchar",
        )
        .await;
    let other = world.session(&proxy).await;
    until("it is prepared again", async || other.admit(&world.resource, 1).await.is_ok()).await;
}

#[tokio::test]
async fn a_blocked_control_connection_is_closed_and_its_process_terminated() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let blocker = connect(&world.config("postgres")).await;
    blocker.batch_execute("BEGIN; SELECT FROM fencegate_state.epoch FOR UPDATE").await.unwrap();
    let other = world.session(&proxy).await;
    assert!(reason(other.admit(&world.resource, 1).await).contains("waiting for a lock"));
    assert!(!other.fence.holds_admissions());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    // An operation without a time limit on the server: reading a row takes longer than the proxy waits.
    world
        .run(
            "ALTER TABLE fencegate_state.epoch ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; \
             CREATE POLICY slow ON fencegate_state.epoch USING (pg_sleep(600) IS NOT NULL)",
        )
        .await;
    let sleeping = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity \
        WHERE wait_event = 'PgSleep' AND query LIKE '%updated%' AND datname = current_database()";
    let process = async {
        loop {
            let process = world.ask(sleeping).await;
            if process != "0" {
                return process;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let (asked, process) = tokio::join!(proxy.fences(std::slice::from_ref(&world.resource)), process);
    assert!(asked.unwrap_err().to_string().contains("did not answer"));
    let half_sent = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
    until("the abandoned process is terminated", async || world.ask(&half_sent).await == "0").await;
    world
        .run("DROP POLICY slow ON fencegate_state.epoch; ALTER TABLE fencegate_state.epoch DISABLE ROW LEVEL SECURITY")
        .await;
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
    until("all are open", async || world.ask(count).await == "4").await;
    proxy.close().await;
    until("they are closed", async || world.ask(count).await == "0").await;
    session.admit(&world.resource, 2).await.unwrap();
    until("all are open", async || world.ask(count).await == "4").await;
    session.registration = None;
    until("they are closed", async || world.ask(count).await == "0").await;
}
