//! SHOW POLICIES: how far all proxies together enforce the fences.

use super::world::{World, console};
use crate::support::ticks::{self, POLICIES, ok};
use crate::support::{DEADLINE, Proxy, ProxyOptions, Wire, wait_until};

/// The status of a table, the number of proxies that enforce it, and the number of all proxies.
fn status(console: &mut Wire, table: &str) -> String {
    let rows = console.rows("SHOW POLICIES").unwrap();
    let row = rows.into_iter().find(|row| row[2].as_deref() == Some(table)).expect("the table");
    row[9..].iter().map(|column| column.clone().unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_fence_is_enforced_once_earlier_transactions_have_ended() {
    let world = World::start();
    let mut writer = Wire::login(&world.proxy.address(), "postgres", "postgres");
    ok(&mut writer, "CREATE TABLE later (n int)");
    let mut console = world.console();
    wait_until("the first fence is enforced", DEADLINE, || status(&mut console, "public.ticks") == "enforced 1 1");
    ok(&mut writer, "BEGIN; INSERT INTO later VALUES (1)");
    world.proxy.write_policies(&format!("{POLICIES}  - name: later\n    tables: [public.later, public.missing]\n"));
    console.rows("RELOAD").unwrap();
    assert_eq!(status(&mut console, "public.later"), "pending 0 1");
    assert_eq!(status(&mut console, "public.missing"), "unresolved 0 1");
    ok(&mut writer, "COMMIT");
    wait_until("the new fence is enforced", DEADLINE, || status(&mut console, "public.later") == "enforced 1 1");
}

/// While the database does not answer, the state is unknown; the proxy queries it again.
#[test]
fn a_failed_query_is_retried() {
    let world = World::start();
    let mut writer = Wire::login(&world.proxy.address(), "postgres", "postgres");
    ok(&mut writer, "CREATE TABLE later (n int)");
    ok(&mut writer, "BEGIN; INSERT INTO later VALUES (1)");
    let mut console = world.console();
    world.proxy.write_policies(&format!("{POLICIES}  - name: later\n    tables: [public.later]\n"));
    console.rows("RELOAD").unwrap();
    let mut locker = Wire::login(&world.postgres.address(), "postgres", "postgres");
    ok(&mut locker, "BEGIN; LOCK TABLE pg_catalog.pg_authid");
    wait_until("a query fails", DEADLINE, || world.proxy.log().contains("fence_enforcement_unknown"));
    ok(&mut locker, "ROLLBACK");
    ok(&mut writer, "COMMIT");
    wait_until("the new fence is enforced", DEADLINE, || status(&mut console, "public.later") == "enforced 1 1");
}

/// A statement that was forwarded before the fence may still write.
#[test]
fn a_transaction_without_locks_counts_as_open() {
    let world = World::start();
    let mut reader = Wire::login(&world.proxy.address(), "postgres", "postgres");
    ok(&mut reader, "CREATE TABLE later (n int)");
    ok(&mut reader, "BEGIN; SELECT 1");
    world.proxy.write_policies(&format!("{POLICIES}  - name: later\n    tables: [public.later]\n"));
    let mut console = world.console();
    console.rows("RELOAD").unwrap();
    // Each query reaches the database after the proxy's own query about the fence.
    for _ in 0..50 {
        assert_eq!(status(&mut console, "public.later"), "pending 0 1");
    }
    ok(&mut reader, "COMMIT");
    wait_until("the new fence is enforced", DEADLINE, || status(&mut console, "public.later") == "enforced 1 1");
}

#[test]
fn an_observing_fence_is_shown_as_observed() {
    let world = World::start();
    world.proxy.write_policies(&format!("{POLICIES}    mode: observe\n"));
    let mut console = world.console();
    console.rows("RELOAD").unwrap();
    let _session = Wire::login(&world.proxy.address(), "postgres", "postgres");
    wait_until("all observe it", DEADLINE, || status(&mut console, "public.ticks") == "observed 1 1");
}

/// A database without the schema and without fenced tables is not shown, causes no warning, and cannot be reset.
#[test]
fn a_database_without_fences_is_not_shown() {
    let world = World::start();
    world.postgres.sql("CREATE DATABASE plain");
    let mut console = world.console();
    let notices =
        |console: &mut Wire, command: &str| console.query(command).iter().filter(|frame| frame.tag == b'N').count();
    // Without a session so far, a notice reports that the state is unknown.
    assert_eq!(status(&mut console, "public.ticks"), "unknown  ");
    assert_eq!([notices(&mut console, "SHOW FENCES"), notices(&mut console, "SHOW POLICIES")], [1, 1]);

    let _writer = world.writer(47);
    let _plain = Wire::login(&world.proxy.address(), "postgres", "plain");
    for _ in 0..2 {
        for command in ["SHOW POLICIES", "SHOW FENCES"] {
            let rows = console.rows(command).unwrap();
            assert!(rows.len() == 1 && rows[0][0].as_deref() == Some("postgres"), "{command}: {rows:?}");
            assert_eq!(notices(&mut console, command), 0, "{command}");
        }
        for database in ["plain", "template1"] {
            let error = console.rows(&format!("FENCE RESET scheduler IN DATABASE {database} TO 47")).unwrap_err();
            assert_eq!(error.code(), "55000", "{error:?}");
            assert!(error.message().ends_with("it has no schema fencegate"), "{error:?}");
        }
        let frames = console.query("FENCE RESET scheduler TO 47");
        assert!(frames.iter().all(|frame| frame.tag != b'N' && frame.tag != b'E'), "{frames:?}");
    }
    // After a fenced table is created, the next session makes the database visible.
    world.postgres.sql_in("plain", "CREATE TABLE ticks (n int)");
    wait_until("it is shown", DEADLINE, || {
        Wire::login(&world.proxy.address(), "postgres", "plain");
        console
            .rows("SHOW POLICIES")
            .unwrap()
            .iter()
            .any(|row| row[0].as_deref() == Some("plain") && row[9].as_deref() == Some("unknown"))
    });
    assert_eq!(notices(&mut console, "SHOW POLICIES"), 1);
}

#[test]
fn a_policy_is_in_force_only_if_all_live_proxies_enforce_it() {
    let world = World::start();
    let mut other = ticks::proxy(&world.postgres);
    let _through = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let _through_other = Wire::login(&other.address(), "postgres", "postgres");
    let mut console = console(&world.proxy);
    wait_until("both enforce it", DEADLINE, || status(&mut console, "public.ticks") == "enforced 2 2");
    // A reload of one proxy does not affect the other.
    world.proxy.write_policies(&POLICIES.replace("[public.ticks]", "[{name: public.ticks, operations: [insert]}]"));
    console.rows("RELOAD").unwrap();
    wait_until("this one enforces it", DEADLINE, || status(&mut console, "public.ticks") == "pending 1 2");
    // A proxy that shuts down unregisters itself, without a reload.
    assert_eq!(other.terminate(), 0);
    wait_until("all remaining proxies enforce it", DEADLINE, || status(&mut console, "public.ticks") == "enforced 1 1");
}

#[test]
fn a_proxy_without_sessions_does_not_count() {
    let world = World::start();
    let other = ticks::proxy(&world.postgres);
    let _through = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let through_other = Wire::login(&other.address(), "postgres", "postgres");
    let mut console = console(&world.proxy);
    wait_until("both enforce it", DEADLINE, || status(&mut console, "public.ticks") == "enforced 2 2");
    drop(through_other);
    wait_until("the other has left", DEADLINE, || status(&mut console, "public.ticks") == "enforced 1 1");
}

#[test]
fn the_policies_of_a_lost_proxy_are_unknown() {
    let world = World::start();
    world.postgres.sql("CREATE TABLE later (n int); CREATE ROLE lost LOGIN SUPERUSER");
    let control = world.postgres.control_url().replace("postgres@", "lost@");
    let options = ProxyOptions::default().policies(POLICIES).control(&control);
    let mut other = Proxy::start_with(&world.postgres, &options);
    let _through = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let mut through_other = Wire::login(&other.address(), "postgres", "postgres");
    let mut console = console(&world.proxy);
    wait_until("both enforce it", DEADLINE, || status(&mut console, "public.ticks") == "enforced 2 2");

    let away = "ALTER ROLE lost NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lost'";
    world.postgres.sql(away);
    world.proxy.write_policies(&format!("{POLICIES}  - name: later\n    tables: [public.later]\n"));
    console.rows("RELOAD").unwrap();
    wait_until("one is lost", DEADLINE, || status(&mut console, "public.later") == "unknown 1 2");
    other.wait_for_log("control_not_listening", DEADLINE);
    // The other proxy enforces its own policies, but can no longer determine which relations lead to their tables.
    let doubt = through_other.rows("INSERT INTO later VALUES (1)").unwrap_err();
    assert!(doubt.code() == "LF006" && doubt.detail().is_empty(), "{doubt:?}");
    world.postgres.sql("ALTER ROLE lost LOGIN");
    wait_until("it is connected again, and has other policies", DEADLINE, || {
        status(&mut console, "public.later") == "pending 1 2"
    });
    // The other proxy's policies do not fence this table.
    wait_until("it reads the catalog", DEADLINE, || through_other.rows("INSERT INTO later VALUES (1)").is_ok());

    // The sessions of a killed proxy have ended once their server processes have ended. Until then, they may exist.
    let mut around = Wire::login(&world.postgres.address(), "postgres", "postgres");
    other.kill9();
    wait_until("it is lost", DEADLINE, || status(&mut console, "public.later") == "unknown 1 2");
    ok(&mut around, "SELECT 1");
    assert_eq!(status(&mut console, "public.later"), "unknown 1 2");
    drop(around);
    world.postgres.end_session();
    wait_until("it has no sessions left", DEADLINE, || status(&mut console, "public.later") == "enforced 1 1");
}

/// One of two proxies is killed. Its row remains, but the other proxy does not wait ten minutes.
#[test]
fn a_proxy_that_was_killed_does_not_count_once_its_sessions_are_gone() {
    let world = World::start();
    let mut other = ticks::proxy(&world.postgres);
    let _through = Wire::login(&world.proxy.address(), "postgres", "postgres");
    let mut through_other = Wire::login(&other.address(), "postgres", "postgres");
    let mut console = console(&world.proxy);
    wait_until("both enforce it", DEADLINE, || status(&mut console, "public.ticks") == "enforced 2 2");
    // The server still runs one of its statements.
    let process = ticks::process(&mut through_other);
    through_other.send(&crate::support::message::query("SELECT pg_sleep(1000)"));
    ticks::wait_for_process(&world.postgres, &process, "wait_event = 'PgSleep'");
    other.kill9();
    wait_until("it is lost", DEADLINE, || status(&mut console, "public.ticks") == "unknown 1 2");
    world.postgres.sql(&format!("SELECT pg_terminate_backend({process})"));
    world.postgres.end_session();
    wait_until("it does not count", DEADLINE, || status(&mut console, "public.ticks") == "enforced 1 1");
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.proxy"), "2");
}
