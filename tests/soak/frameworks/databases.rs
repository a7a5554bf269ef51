//! Operations of test runners on databases: the proxy's own connections and its memory do not block them.

use crate::frameworks::world::World;
use crate::support::fenced::{code, code_in, init, ok};
use crate::support::message::{self, query};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Wire, postgres::SUPERUSER, wait_until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const CONNECTS: usize = 300;
const ROUNDS: usize = 5;

/// `jobs` is fenced in every database.
fn start() -> World {
    let world = World::start("");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
    world
}

#[test]
fn databases_that_were_just_in_use_are_copied_renamed_and_dropped() {
    let world = start();
    let login = |database: &str| Wire::login(&world.proxy.address(), SUPERUSER, database);
    let mut runner = login("postgres");
    for token in 2..=4 {
        let write = |database: &str, token: i64| {
            let mut session = login(database);
            ok(&mut session, &format!("SET lease.fence = {token}"));
            code(&mut session, "INSERT INTO jobs VALUES (1)")
        };
        assert_eq!(write("app", token), "");
        ok(&mut runner, "CREATE DATABASE copy TEMPLATE app");
        assert_eq!(write("copy", token - 1), "LF001");
        assert_eq!(write("copy", token + 100), "");
        ok(&mut runner, "ALTER DATABASE copy RENAME TO renamed");
        assert_eq!(write("renamed", token + 100), "");
        ok(&mut runner, "DROP DATABASE renamed");

        // Another database with the same name.
        ok(&mut runner, "CREATE DATABASE copy");
        let mut session = login("copy");
        ok(&mut session, "DO 'BEGIN END'");
        ok(&mut session, "CREATE TABLE jobs (n int)");
        assert_eq!(code(&mut session, "DO 'BEGIN END'"), "LF004");
        drop(session);
        assert_eq!(write("copy", token), "LF006");
        init(&world.postgres, "copy");
        // The proxy caches the failed attempt for a moment.
        wait_until("the schema is found", DEADLINE, || write("copy", token).is_empty());
        ok(&mut runner, "DROP DATABASE copy");
    }
}

/// The server ignores the session that requests the copy.
#[test]
fn a_database_is_copied_from_within() {
    let world = start();
    let mut session = Wire::login(&world.proxy.address(), SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 1");
    ok(&mut session, "INSERT INTO jobs VALUES (1)");
    assert_ne!(world.control_processes_of("app"), "");
    ok(&mut session, "CREATE DATABASE copy TEMPLATE app");
    ok(&mut session, "INSERT INTO jobs VALUES (2)");
}

/// Waits until the server runs the statement and waits for other users of the database.
fn wait_until_it_waits(world: &World, statement: &str) {
    let runs = format!("SELECT FROM pg_stat_activity WHERE state = 'active' AND query = '{statement}'");
    wait_until("the server waits", DEADLINE, || !world.postgres.sql(&runs).is_empty());
}

/// The owner may drop the database, but not while others use it. The other sessions are not affected.
#[test]
fn control_connections_stay_open_for_users_of_the_database() {
    let world = start();
    world.postgres.sql("CREATE ROLE owner LOGIN CREATEDB; ALTER DATABASE app OWNER TO owner");
    let login = |user: &str, database: &str| Wire::login(&world.proxy.address(), user, database);
    let mut session = login(SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    let before = world.control_processes_of("app");
    assert_ne!(before, "");
    for user in ["owner", SUPERUSER] {
        let mut runner = login(user, "postgres");
        for statement in [
            "DROP DATABASE app",
            "CREATE DATABASE copy TEMPLATE app",
            "ALTER DATABASE app RENAME TO renamed",
            "ALTER DATABASE app SET TABLESPACE other",
        ] {
            let extended = [message::unnamed(statement, &[]), message::sync()].concat();
            for bytes in [query(statement), extended] {
                // The server rejects this before it waits.
                if statement.contains("TABLESPACE") {
                    assert_eq!(code_in(&runner.exchange(&bytes)), "42704", "{user}: {statement}");
                } else {
                    runner.send(&bytes);
                    wait_until_it_waits(&world, statement);
                    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query =";
                    world.postgres.sql(&format!("{cancel} '{statement}'"));
                    // A cancel between two messages has no effect.
                    let refusal = code_in(&runner.read_until_ready());
                    assert!(["57014", "55006"].contains(&&*refusal), "{user}: {statement}: {refusal}");
                }
                assert_eq!(world.control_processes_of("app"), before, "{user}: {statement}");
                ok(&mut session, "INSERT INTO jobs VALUES (1)");
            }
        }
    }
}

/// Control connections close only if the server will run the statement.
#[test]
fn control_connections_stay_open_where_force_is_refused() {
    let world = start();
    world.postgres.sql("CREATE ROLE owner LOGIN CREATEDB; ALTER DATABASE app OWNER TO owner");
    let login = |user: &str, database: &str| Wire::login(&world.proxy.address(), user, database);
    let (mut session, mut within) = (login(SUPERUSER, "app"), login("owner", "app"));
    ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    let before = world.control_processes_of("app");
    let force = "DROP DATABASE app WITH (FORCE)";
    let refused = |runner: &mut Wire, statement: &str, expected: &str| {
        assert_eq!(code(runner, statement), expected, "{statement}");
        assert_eq!(world.control_processes_of("app"), before, "{statement}");
    };
    refused(&mut within, force, "55006");
    refused(&mut login(SUPERUSER, "app"), force, "55006");
    let mut runner = login(SUPERUSER, "postgres");
    refused(&mut runner, &format!("SELECT 1; {force}"), "25001");
    ok(&mut runner, "BEGIN");
    refused(&mut runner, force, "25001");
    ok(&mut runner, "ROLLBACK");
    let behind = [message::unnamed("SELECT 1", &[]), message::unnamed(force, &[]), message::sync()].concat();
    assert_eq!(code_in(&runner.exchange(&behind)), "25001");
    assert_eq!(world.control_processes_of("app"), before, "in a pipeline");
    let begun = [query("BEGIN"), message::unnamed(force, &[]), message::sync()].concat();
    assert_eq!(code_in(&runner.exchange(&begun)), "");
    assert_eq!(code_in(&runner.read_until_ready()), "25001");
    assert_eq!(world.control_processes_of("app"), before, "after a message that begins a transaction");
    ok(&mut runner, "ROLLBACK");
    // An owner cannot terminate a session of a superuser.
    refused(&mut login("owner", "postgres"), force, "42501");
    world.postgres.sql("ALTER DATABASE app IS_TEMPLATE true");
    refused(&mut runner, force, "42809");
    world.postgres.sql("ALTER DATABASE app IS_TEMPLATE false");
    world.postgres.sql_in("app", "BEGIN; CREATE TABLE t (n int); PREPARE TRANSACTION 'open'");
    refused(&mut runner, force, "55006");
    world.postgres.sql_in("app", "ROLLBACK PREPARED 'open'");
    let mut reader = Wire::connect(&world.postgres.address()).unwrap();
    reader.start(&[("user", SUPERUSER), ("database", "app"), ("replication", "database")], "");
    reader.query("CREATE_REPLICATION_SLOT reader TEMPORARY LOGICAL test_decoding");
    refused(&mut runner, force, "55006");
    ok(&mut session, "INSERT INTO jobs VALUES (1)");
}

/// The role need not be permitted to terminate the proxy's own connections.
#[test]
fn force_ends_sessions_of_the_database() {
    let world = World::start("");
    world.postgres.sql("CREATE ROLE owner LOGIN CREATEDB");
    for (name, user, stays) in [("one", "owner", true), ("two", "owner", false), ("three", SUPERUSER, true)] {
        world.postgres.sql(&format!("CREATE DATABASE {name} OWNER {user}"));
        init(&world.postgres, name);
        world.postgres.sql_in(name, "CREATE TABLE jobs (n int); GRANT ALL ON jobs TO owner");
        let mut session = Wire::login(&world.proxy.address(), user, name);
        ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
        assert_ne!(world.control_processes_of(name), "");
        let mut runner = Wire::login(&world.proxy.address(), user, "postgres");
        let mut session = Some(session).filter(|_| stays);
        ok(&mut runner, &format!("DROP DATABASE {name} WITH (FORCE)"));
        if let Some(session) = &mut session {
            assert_eq!(code_in(&session.read_to_end()), "57P01");
        }
    }
}

/// Sessions continuously request admissions. For these the proxy would open control connections, which the owner cannot
/// terminate.
#[test]
fn force_ends_sessions_of_the_database_without_a_pause() {
    const WRITERS: usize = 6;
    let world = World::start("");
    // The owner cannot terminate autovacuum workers.
    world.postgres.sql("ALTER SYSTEM SET autovacuum = off");
    world.postgres.sql("SELECT pg_reload_conf()");
    world.postgres.sql("CREATE ROLE owner LOGIN CREATEDB");
    let mut runner = Wire::login(&world.proxy.address(), "owner", "postgres");
    for round in 0..ROUNDS {
        let name = format!("busy{round}");
        world.postgres.sql(&format!("CREATE DATABASE {name} OWNER owner"));
        init(&world.postgres, &name);
        world.postgres.sql_in(&name, "CREATE TABLE jobs (n int); GRANT ALL ON jobs TO owner");
        // The sessions of the test itself, which the owner cannot terminate.
        let others = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'");
        wait_until("the database has no sessions", DEADLINE, || world.postgres.value(&others) == "0");
        let (tokens, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
        let write = || {
            let mut wire = Wire::connect(&world.proxy.address()).unwrap();
            wire.start(&[("user", "owner"), ("database", &name)], "");
            let token = tokens.fetch_add(1, Ordering::Relaxed);
            wire.send(&query(&format!("SET lease.fence = {token}; INSERT INTO jobs VALUES (1)")));
            wire.read_until_ready();
        };
        let answer = thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        write()
                    }
                });
            }
            wait_until("they write", DEADLINE, || tokens.load(Ordering::Relaxed) > 20);
            let answer = error_in(&runner.query(&format!("DROP DATABASE {name} WITH (FORCE)")));
            is_over.store(true, Ordering::Relaxed);
            answer
        });
        assert!(answer.is_none(), "{name}: {answer:?}");
    }
}

/// The server waits for some seconds until others leave the database. The proxy then closes its connections.
#[test]
fn control_connections_close_after_the_last_session() {
    let world = start();
    let login = |database: &str| Wire::login(&world.proxy.address(), SUPERUSER, database);
    let mut runner = login("postgres");
    let statements =
        ["CREATE DATABASE copy TEMPLATE app", "ALTER DATABASE app RENAME TO renamed", "DROP DATABASE renamed"];
    for (token, statement) in (1..).zip(statements) {
        let mut session = login(if statement.starts_with("DROP") { "renamed" } else { "app" });
        ok(&mut session, &format!("SET lease.fence = {token}; INSERT INTO jobs VALUES (1)"));
        runner.send(&query(statement));
        wait_until_it_waits(&world, statement);
        drop(session);
        assert_eq!(code_in(&runner.read_until_ready()), "", "{statement}");
    }
}

#[test]
fn many_connects_leave_nothing_behind() {
    let world = start();
    for _ in 0..CONNECTS {
        let mut session = Wire::login(&world.proxy.address(), SUPERUSER, "app");
        ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    }
    world.wait_until_no_control_connection_is_left();
    // The admissions of the last processes remain until the next session.
    let admissions = || world.postgres.sql_in("app", "SELECT FROM fencegate_state.admission").len();
    assert!(admissions() < CONNECTS, "no admission was deleted");
    let mut session = Wire::login(&world.proxy.address(), SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    wait_until("they are deleted", DEADLINE, || admissions() <= 1);
}

/// The server rejects roles without the privilege, and other sessions are not affected.
#[test]
fn control_connections_stay_open_for_roles_without_the_privilege() {
    let world = World::start("");
    world.postgres.sql("CREATE ROLE stranger LOGIN; CREATE ROLE maker LOGIN CREATEDB; GRANT stranger TO maker");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
    let login = |user: &str, database: &str| Wire::login(&world.proxy.address(), user, database);
    let mut session = login(SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    let before = world.control_processes_of("app");
    assert_ne!(before, "");
    let roles = [("stranger", ""), ("maker", ""), ("maker", "SET ROLE stranger"), (SUPERUSER, "SET ROLE stranger")];
    for (user, become_it) in roles {
        let mut runner = login(user, "postgres");
        ok(&mut runner, become_it);
        for statement in [
            "DROP DATABASE app",
            "DROP DATABASE app WITH (FORCE)",
            "CREATE DATABASE copy TEMPLATE app",
            "ALTER DATABASE app RENAME TO renamed",
            "ALTER DATABASE app SET TABLESPACE pg_default",
        ] {
            assert_eq!(code(&mut runner, statement), "42501", "{user}: {statement}");
            if user != SUPERUSER {
                // The extended protocol: the proxy does not query the role, and uses that of the login.
                let extended = [message::unnamed(statement, &[]), message::sync()].concat();
                assert_eq!(code_in(&runner.exchange(&extended)), "42501", "{user}: {statement}");
            }
            assert_eq!(world.control_processes_of("app"), before, "{user}: {statement}");
        }
    }
    // The owner of a database has the privilege.
    world.postgres.sql("ALTER DATABASE app OWNER TO stranger");
    drop(session);
    let mut session = login(SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 2; INSERT INTO jobs VALUES (1)");
    drop(session);
    ok(&mut login("stranger", "postgres"), "DROP DATABASE app");
}
