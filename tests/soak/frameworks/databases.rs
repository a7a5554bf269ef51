//! What test runners do to databases: the proxy's own connections and its memory are in nobody's way.

use crate::frameworks::world::World;
use crate::support::fenced::{code, code_in, init, ok};
use crate::support::message::{self, query};
use crate::support::{DEADLINE, Wire, postgres::SUPERUSER, wait_until};

const CONNECTS: usize = 300;

#[test]
fn databases_that_were_just_in_use_are_copied_renamed_and_dropped() {
    let world = World::start("");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
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

        // The same name, another database.
        ok(&mut runner, "CREATE DATABASE copy");
        let mut session = login("copy");
        ok(&mut session, "DO 'BEGIN END'");
        ok(&mut session, "CREATE TABLE jobs (n int)");
        assert_eq!(code(&mut session, "DO 'BEGIN END'"), "LF004");
        drop(session);
        assert_eq!(write("copy", token), "LF006");
        init(&world.postgres, "copy");
        // For a moment the failed attempt is the answer to everybody.
        wait_until("the schema is found", DEADLINE, || write("copy", token).is_empty());
        ok(&mut runner, "DROP DATABASE copy");
    }
}

/// A session that stays keeps them open: nothing but such a statement is a reason to close them.
#[test]
fn control_connections_close_before_a_statement_that_needs_the_database_alone() {
    let world = World::start("");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
    let login = |database: &str| Wire::login(&world.proxy.address(), SUPERUSER, database);
    let (mut session, mut runner) = (login("app"), login("postgres"));
    let statements = ["CREATE DATABASE copy TEMPLATE app", "ALTER DATABASE app RENAME TO renamed", "DROP DATABASE app"];
    for (token, statement) in (1..).zip(statements) {
        ok(&mut session, &format!("SET lease.fence = {token}"));
        ok(&mut session, "INSERT INTO jobs VALUES (1)");
        assert_ne!(world.control_connections_to("app"), "0");
        runner.send(&query(statement));
        wait_until("they are closed", DEADLINE, || world.control_connections_to("app") == "0");
        // The session is in its way: it would wait for seconds, and fail.
        world.postgres.sql(&format!("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = '{statement}'"));
        runner.read_until_ready();
    }
}

#[test]
fn many_connects_leave_nothing_behind() {
    let world = World::start("");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
    for _ in 0..CONNECTS {
        let mut session = Wire::login(&world.proxy.address(), SUPERUSER, "app");
        ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    }
    world.wait_until_no_control_connection_is_left();
    // Those of the last processes to end stay until somebody comes again.
    let admissions = world.postgres.sql_in("app", "SELECT FROM fencegate.admission");
    assert!(admissions.len() < CONNECTS / 10, "{}", admissions.len());
}

/// Who may not do it to the database is refused by the server, and nobody else feels anything of it.
#[test]
fn control_connections_stay_open_for_who_may_not_have_the_database_alone() {
    let world = World::start("");
    world.postgres.sql("CREATE ROLE stranger LOGIN; CREATE ROLE maker LOGIN CREATEDB; GRANT stranger TO maker");
    world.postgres.sql_in("app", "CREATE TABLE jobs (n int)");
    let login = |user: &str, database: &str| Wire::login(&world.proxy.address(), user, database);
    let mut session = login(SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 1; INSERT INTO jobs VALUES (1)");
    let control = || {
        world.postgres.value(
            "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity \
             WHERE datname = 'app' AND application_name = 'fencegate control'",
        )
    };
    let before = control();
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
                // By which the role is not asked for: that of the login counts.
                let extended = [message::unnamed(statement, &[]), message::sync()].concat();
                assert_eq!(code_in(&runner.exchange(&extended)), "42501", "{user}: {statement}");
            }
            assert_eq!(control(), before, "{user}: {statement}");
        }
    }
    // The owner of a database may.
    world.postgres.sql("ALTER DATABASE app OWNER TO stranger");
    drop(session);
    let mut session = login(SUPERUSER, "app");
    ok(&mut session, "SET lease.fence = 2; INSERT INTO jobs VALUES (1)");
    drop(session);
    ok(&mut login("stranger", "postgres"), "DROP DATABASE app");
}
