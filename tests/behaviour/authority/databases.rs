//! A role that may not drop, rename or move a database is refused before it waits for a lock on the database: a waiting
//! process would block all logins to that database.

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::postgres::SUPERUSER;
use crate::support::wire::error_in;
use crate::support::{Wire, message};

const SCHEMA: [&str; 5] = [
    "CREATE ROLE stranger LOGIN",
    "CREATE ROLE owner",
    "CREATE ROLE member LOGIN; GRANT owner TO member",
    "CREATE DATABASE app",
    "ALTER DATABASE app OWNER TO owner",
];
const POLICIES: &str = "version: 1\nresources: [{name: scheduler, tables: [public.jobs]}]\n";
/// Statements for which the server needs such a lock. The session's own database is `postgres`.
const STATEMENTS: [&str; 6] = [
    "DROP DATABASE app",
    "DROP DATABASE IF EXISTS app WITH (FORCE)",
    "ALTER DATABASE app RENAME TO other",
    "ALTER DATABASE app SET TABLESPACE pg_default",
    "DROP DATABASE postgres",
    "ALTER DATABASE postgres RENAME TO other",
];

/// Statements that may precede these in the same string.
const STRINGS: [&str; 4] = ["SELECT 1", "BEGIN", "SET ROLE NONE", "BEGIN; COMMIT"];

fn start() -> Fenced {
    let world = Fenced::start("CREATE TABLE jobs (id int)", POLICIES);
    for sql in SCHEMA {
        world.postgres.sql(sql);
    }
    world
}

#[test]
fn a_stranger_is_refused_before_it_waits_for_a_database() {
    let world = start();
    let mut direct = Wire::login(&world.postgres.socket(), "stranger", "postgres");
    let errors = STATEMENTS.map(|sql| error_in(&direct.query(sql)).expect("the server refuses it"));
    // The holder shares the lock on both databases.
    let mut holder = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    ok(&mut holder, "BEGIN; ALTER ROLE owner IN DATABASE app SET work_mem = '4MB'");
    ok(&mut holder, "ALTER ROLE owner IN DATABASE postgres SET work_mem = '4MB'");
    let mut stranger = world.login_as("stranger");
    ok(&mut stranger, "SET statement_timeout = '10s'");
    let mut became = world.login();
    ok(&mut became, "SET statement_timeout = '10s'; SET ROLE stranger");
    for (sql, expected) in STATEMENTS.iter().zip(&errors) {
        let unnamed = message::unnamed(sql, &[]);
        let pipeline = [message::unnamed("SELECT 1", &[]), unnamed.clone(), message::sync()].concat();
        let mut answers = vec![
            stranger.query(sql),
            stranger.exchange(&[unnamed, message::sync()].concat()),
            stranger.exchange(&pipeline),
            became.query(sql),
        ];
        for before in STRINGS {
            answers.push(stranger.query(&format!("{before}; {sql}")));
            stranger.query("ROLLBACK");
        }
        for session in [&mut stranger, &mut became] {
            ok(session, "BEGIN");
            answers.push(session.query(sql));
            // The transaction has failed.
            assert_eq!(code(session, sql), "25P02", "{sql}");
            ok(session, "ROLLBACK");
        }
        for answer in answers {
            let error = error_in(&answer).expect("it is refused");
            assert_eq!((error.code(), error.message()), (expected.code(), expected.message()), "{sql}");
        }
    }
    // No login was blocked.
    ok(&mut Wire::login(&world.proxy.address(), SUPERUSER, "app"), "SELECT 1");
}

/// These statements lock a relation before the server checks privileges, and every session needs the relation.
#[test]
fn a_stranger_is_refused_before_it_waits_for_the_catalog() {
    let world = start();
    world.postgres.sql("GRANT CREATE ON SCHEMA public TO stranger");
    let mut stranger = world.login_as("stranger");
    for sql in [
        "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE child (id oid)",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "SET statement_timeout = '10s'",
    ] {
        ok(&mut stranger, sql);
    }
    let mut holder = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    ok(&mut holder, "BEGIN; LOCK TABLE pg_class, pg_authid IN ROW EXCLUSIVE MODE; SELECT FROM pg_stat_activity");
    for relation in ["pg_class", "pg_catalog.pg_authid", "pg_stat_activity"] {
        for statement in [
            "CREATE RULE nothing AS ON INSERT TO {} DO NOTHING",
            "CREATE TRIGGER nothing BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION nothing()",
            "ALTER TABLE parted ATTACH PARTITION {} DEFAULT",
            "ALTER TABLE parted DETACH PARTITION {}",
            "ALTER TABLE child ADD FOREIGN KEY (id) REFERENCES {} (oid)",
            "CREATE TABLE another (id oid REFERENCES {})",
        ] {
            let sql = statement.replace("{}", relation);
            let refusal = code(&mut stranger, &sql);
            assert!(["42501", "LF004"].contains(&&*refusal), "{sql}: {refusal}");
        }
    }
}

#[test]
fn an_owner_is_not_refused() {
    let world = start();
    let mut member = world.login_as("member");
    assert_eq!(code(&mut member, "DROP DATABASE nowhere"), "3D000");
    assert_eq!(code(&mut member, "DROP DATABASE IF EXISTS nowhere"), "");
    // For the session's own database, the server reports why it cannot drop it.
    assert_eq!(code(&mut world.login(), "DROP DATABASE postgres"), "55006");
    // A role that does not inherit the owner's privileges may act as the owner.
    world.postgres.sql("ALTER ROLE owner CREATEDB; CREATE ROLE deputy LOGIN NOINHERIT; GRANT owner TO deputy");
    let mut deputy = world.login_as("deputy");
    ok(&mut deputy, "SET ROLE owner; ALTER DATABASE app RENAME TO other");
    ok(&mut deputy, "BEGIN");
    ok(&mut deputy, "ALTER DATABASE other RENAME TO app");
    ok(&mut deputy, "COMMIT");
    let extended = [message::unnamed("DROP DATABASE app", &[]), message::sync()].concat();
    assert_eq!(code_in(&member.exchange(&extended)), "");
}
