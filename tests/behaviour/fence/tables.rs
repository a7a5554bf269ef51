//! Locks on fencegate's own tables, which only a superuser or the owner can take. The error names the holder. The proxy
//! terminates the holder unless it only reads.

use crate::fence::reason;
use crate::fence::server::{World, connect};
use crate::logs::line::{assert_fields, event, events};
use crate::metrics::page::get;
use crate::support::fenced::ok;
use crate::support::identity::one;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Release, Wire, until, wait_until};
use fencegate_fence::INIT_LOCK;
use tokio_postgres::Client;

const TABLES: [&str; 2] = ["admission", "epoch"];

/// A session that the control role may terminate, with a lock on the table, and its process id.
async fn hold(world: &World, user: &str, table: &str) -> (Client, String) {
    let holder = connect(&world.config(user)).await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE fencegate_state.{table}")).await.unwrap();
    let pid = one(&holder, "SELECT pg_backend_pid()").await[0].clone();
    (holder, pid)
}

#[tokio::test]
async fn the_only_lock_holder_of_a_table_is_terminated() {
    ended_with_a_table_locked(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn the_only_lock_holder_of_a_table_is_terminated_on_18() {
    ended_with_a_table_locked(Release::Eighteen).await;
}

/// The holder is terminated by a connected proxy, for a first write and for SHOW FENCES, and by a proxy that has yet to
/// connect.
async fn ended_with_a_table_locked(release: Release) {
    let world = World::new_on(release).await;
    let connected = world.proxy("connected");
    let first = world.session(&connected).await;
    first.admit(&world.resource, 1).await.unwrap();
    let mut token = 1;
    for table in TABLES {
        for proxy in [&connected, &world.proxy(table)] {
            let session = world.session(proxy).await;
            let (holder, _) = hold(&world, &world.control(), table).await;
            token += 1;
            session.admit(&world.resource, token).await.unwrap();
            session.write(token).await;
            holder.batch_execute("COMMIT").await.expect_err(table);
        }
        let (holder, _) = hold(&world, &world.control(), table).await;
        connected.fences(std::slice::from_ref(&world.resource)).await.unwrap();
        holder.batch_execute("COMMIT").await.expect_err(table);
    }
}

#[tokio::test]
async fn a_lock_waiter_behind_a_reader_is_terminated_and_the_reader_is_not() {
    ended_behind_a_reader(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn a_lock_waiter_behind_a_reader_is_terminated_and_the_reader_is_not_on_18() {
    ended_behind_a_reader(Release::Eighteen).await;
}

async fn ended_behind_a_reader(release: Release) {
    let world = World::new_on(release).await;
    let connected = world.proxy("connected");
    let first = world.session(&connected).await;
    first.admit(&world.resource, 1).await.unwrap();
    let mut token = 1;
    for table in TABLES {
        for proxy in [&connected, &world.proxy(table)] {
            let session = world.session(proxy).await;
            // The same lock as pg_dump.
            let reader = connect(&world.config(&world.control())).await;
            let lock = format!("LOCK TABLE fencegate_state.{table}");
            reader.batch_execute(&format!("BEGIN; {lock} IN ACCESS SHARE MODE")).await.unwrap();
            let queued = connect(&world.config(&world.control())).await;
            let queued = tokio::spawn(async move { queued.batch_execute(&format!("BEGIN; {lock}")).await });
            let waits = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            until("it waits", async || world.ask(waits).await == "1").await;
            token += 1;
            session.admit(&world.resource, token).await.unwrap();
            session.write(token).await;
            queued.await.unwrap().expect_err("it was ended");
            reader.batch_execute("COMMIT").await.expect("it only reads");
        }
    }
}

#[tokio::test]
async fn a_superuser_that_has_locked_a_table_is_named_by_another_role() {
    named_with_a_table_locked(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn a_superuser_that_has_locked_a_table_is_named_by_another_role_on_18() {
    named_with_a_table_locked(Release::Eighteen).await;
}

async fn named_with_a_table_locked(release: Release) {
    let world = World::new_on(release).await;
    let connected = world.proxy("connected");
    let session = world.session(&connected).await;
    session.admit(&world.resource, 1).await.unwrap();
    for table in TABLES {
        let unconnected = world.proxy(table);
        let (other, late) = (world.session(&connected).await, world.session(&unconnected).await);
        let (holder, pid) = hold(&world, "postgres", table).await;
        let resources = std::slice::from_ref(&world.resource);
        let (by_other, by_late, by_look) =
            tokio::join!(other.admit(&world.resource, 1), late.admit(&world.resource, 1), connected.fences(resources));
        let named = format!(
            "process {pid} of role postgres holds AccessExclusiveLock on fencegate_state.{table}, wait event Client/"
        );
        for said in [reason(by_other), reason(by_late), by_look.unwrap_err().to_string()] {
            assert!(said.contains(&named), "{said}");
        }
        assert!(connected.table_locks().await.unwrap().is_some_and(|it| it.contains(&named)));
        holder.batch_execute("COMMIT").await.expect("it is a superuser's");
        assert_eq!(connected.table_locks().await.unwrap(), None);
        for session in [&other, &late] {
            until("it is admitted", async || session.admit(&world.resource, 1).await.is_ok()).await;
        }
    }
}

#[tokio::test]
async fn locks_of_init_and_prepared_transactions_are_named() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let init = connect(&world.config(&world.control())).await;
    init.batch_execute(&format!("BEGIN; {INIT_LOCK}; LOCK TABLE fencegate_state.epoch")).await.unwrap();
    let said = reason(session.admit(&world.resource, 2).await);
    assert!(said.contains(" (fencegate init, remove or guard) holds AccessExclusiveLock on"), "{said}");
    init.batch_execute("LOCK TABLE fencegate_state.epoch; COMMIT").await.expect("it is fencegate's own");
    world.run("BEGIN; LOCK TABLE fencegate_state.epoch; PREPARE TRANSACTION 'forgotten'").await;
    // A failed operation is not retried immediately.
    until("the transaction is named", async || {
        reason(session.admit(&world.resource, 2).await).contains("are locked: prepared transaction forgotten")
    })
    .await;
    world.run("ROLLBACK PREPARED 'forgotten'").await;
    until("it is admitted", async || session.admit(&world.resource, 2).await.is_ok()).await;
}

/// The number of named holders is limited.
#[tokio::test]
async fn only_some_of_many_lock_holders_are_named() {
    let world = World::new().await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    session.admit(&world.resource, 1).await.unwrap();
    let mut holders = Vec::new();
    for _ in 0..12 {
        let holder = connect(&world.config("postgres")).await;
        holder.batch_execute("BEGIN; LOCK TABLE fencegate_state.admission IN SHARE MODE").await.unwrap();
        holders.push(holder);
    }
    let said = reason(session.admit(&world.resource, 1).await);
    assert_eq!(said.matches("holds ShareLock on fencegate_state.admission").count(), 10, "{said}");
    assert!(said.ends_with("; 2 more"), "{said}");
}

#[test]
fn the_lock_holder_of_a_table_is_shown() {
    shown_with_a_table_locked(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn the_lock_holder_of_a_table_is_shown_on_18() {
    shown_with_a_table_locked(Release::Eighteen);
}

fn shown_with_a_table_locked(release: Release) {
    let postgres = Postgres::start(Options::default().release(release));
    postgres.sql(
        "CREATE ROLE warden LOGIN; CREATE ROLE writer LOGIN; CREATE TABLE jobs (n int); GRANT ALL ON jobs TO writer",
    );
    let database = postgres.control_url() + "postgres";
    run(fencegate().args(["init", "--control", &database, "--role", "warden"]));
    let options = ProxyOptions::default()
        .policies("version: 1\nresources:\n  - {name: jobs, tables: [public.jobs]}\n")
        .control(&postgres.control_url().replace("postgres@", "warden@"))
        .arguments(&["--http", "127.0.0.1:0", "--log-format", "json", "--admin-roles", "postgres"]);
    let proxy = Proxy::start_with(&postgres, &options);
    let served = event(|| proxy.log(), "metrics_served");
    let address = served["address"].parse().unwrap();
    let write = |token: i64| {
        let mut wire = Wire::login(&proxy.address(), "writer", "postgres");
        ok(&mut wire, &format!("SET lease.fence = {token}"));
        let frames = wire.query("INSERT INTO jobs VALUES (1)");
        error_in(&frames)
    };
    let _leader = Wire::login(&proxy.address(), "writer", "postgres");
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    let mut locked_by = || ok(&mut console, "SHOW DATABASES").into_iter().find_map(|mut row| row.pop()?);
    assert!(write(1).is_none());
    wait_until("it is ready", DEADLINE, || get(address, "/readyz").status == 200);
    assert_eq!(locked_by(), None);

    let lock = "BEGIN; LOCK TABLE fencegate_state.admission";
    let mut superuser = Wire::login(&postgres.socket(), "postgres", "postgres");
    ok(&mut superuser, lock);
    let named = "of role postgres holds AccessExclusiveLock on fencegate_state.admission";
    wait_until("it is not ready", DEADLINE, || {
        let page = get(address, "/readyz");
        page.status == 503 && page.body.contains(named)
    });
    assert!(locked_by().is_some_and(|it| it.contains(named)));
    let refused = write(2).expect("an error");
    assert!(refused.code() == "LF006" && refused.message().contains(named), "{refused:?}");
    assert!(refused.message().contains(lock), "the query is shown to the client: {refused:?}");
    ok(&mut superuser, "COMMIT");
    wait_until("it is ready again", DEADLINE, || get(address, "/readyz").status == 200);
    assert_eq!(locked_by(), None);
    let in_the_log = event(|| proxy.log(), "table_locked");
    assert_fields(
        &in_the_log,
        &[("level", "WARN"), ("database", "postgres"), ("role", "postgres"), ("granted", "true")],
    );
    assert_fields(&in_the_log, &[("mode", "AccessExclusiveLock"), ("table", "admission")]);
    assert!(events(&proxy.log(), "table_lock_ended").is_empty() && !proxy.log().contains(lock), "{}", proxy.log());

    let mut owner = Wire::login(&postgres.socket(), "warden", "postgres");
    ok(&mut owner, lock);
    assert!(write(3).is_none());
    let [named, ended] = ["table_locked", "table_lock_ended"].map(|name| {
        let line = events(&proxy.log(), name).into_iter().find(|line| line["role"] == "warden");
        line.unwrap_or_else(|| panic!("{name} in {}", proxy.log()))
    });
    assert_eq!(named["pid"], ended["pid"]);
    assert!(named["timestamp"] <= ended["timestamp"], "it is named before it is ended");
}
