//! Keyed resources through the proxy: a separate token for every value of a column.
//!
//! tests/behaviour/keys checks that the keys read from statements are those that PostgreSQL writes.

mod arrays;
mod elections;
mod paths;
mod policies;
mod shadows;
mod strings;
mod values;

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{Format, bind, close_statement, execute, parse, sync};
use crate::support::wire::{Fields, Wire, error_in};

const SCHEMA: &str = "CREATE TABLE shard_ticks (shard int, id int, v text, PRIMARY KEY (shard, id)); \
    CREATE UNIQUE INDEX ON shard_ticks (id); CREATE TABLE free (shard int, v text)";
const POLICIES: &str =
    "version: 1\nresources:\n  - name: shard/{shard}\n    tables: [{name: public.shard_ticks, key: shard}]\n";

/// Length of a text that is too long for the parsers.
const TOO_LONG: usize = 512 << 10;

fn world() -> Fenced {
    Fenced::start(SCHEMA, POLICIES)
}

/// A session with these tokens, by resource.
fn holder(world: &Fenced, tokens: &str) -> Wire {
    let mut wire = world.login();
    ok(&mut wire, &format!("SET lease.fence = '{tokens}'"));
    wire
}

/// Prepares a statement with one parameter, and runs it once.
fn run(wire: &mut Wire, statement: &str, oid: u32, format: Format, value: &[u8]) -> String {
    let frames = [
        close_statement("s"),
        parse("s", statement, &[oid]),
        bind("", "s", format, &[Some(value)], Format::Text),
        execute("", 0),
        sync(),
    ];
    code_in(&wire.exchange(&frames.concat()))
}

#[track_caller]
fn refused(wire: &mut Wire, sql: &str) -> Fields {
    error_in(&wire.query(sql)).unwrap_or_else(|| panic!("{sql} passes"))
}

/// The resources that have an epoch, with their tokens.
fn epochs(world: &Fenced) -> String {
    world
        .postgres
        .value("SELECT string_agg(resource || '=' || token, ' ' ORDER BY resource) FROM fencegate_state.epoch")
}

#[test]
fn each_key_has_a_token_of_its_own() {
    let world = world();
    let mut three = holder(&world, "shard/3=47");
    let mut four = holder(&world, "shard/4=12");
    ok(&mut three, "INSERT INTO shard_ticks (shard, id) VALUES (3, 1)");
    ok(&mut four, "INSERT INTO shard_ticks (shard, id) VALUES (4, 2)");
    assert_eq!(epochs(&world), "shard/3=47 shard/4=12");
    let error = refused(&mut four, "UPDATE shard_ticks SET v = 'x' WHERE shard = 3 AND id = 1");
    assert_eq!((error.code(), error.detail()), ("LF002", "resource=shard/3"));
    // A single number applies to all resources that the session writes.
    let mut stale = holder(&world, "46");
    let error = refused(&mut stale, "DELETE FROM shard_ticks WHERE shard = 3");
    assert_eq!((error.code(), error.detail()), ("LF001", "resource=shard/3 presented=46 highest=47"));
    ok(&mut stale, "DELETE FROM shard_ticks WHERE shard = 4");
    assert_eq!(epochs(&world), "shard/3=47 shard/4=46");
    assert_eq!(code(&mut four, "INSERT INTO shard_ticks (shard, id) VALUES (4, 3)"), "LF001");
}

#[test]
fn each_key_of_a_statement_needs_its_token() {
    let world = world();
    let statements = [
        "INSERT INTO shard_ticks (shard, id) VALUES (3, 1), (4, 2), (3, 3)",
        "UPDATE shard_ticks SET v = 'x' WHERE shard IN (3, 4)",
        "UPDATE shard_ticks SET shard = 4, id = 7 WHERE shard = 3 AND id = 3",
        "DELETE FROM shard_ticks WHERE shard = 3 OR shard = 4",
    ];
    for statement in statements {
        for (tokens, missing) in [("shard/3=1", "shard/4"), ("shard/4=1", "shard/3")] {
            let error = refused(&mut holder(&world, tokens), statement);
            assert_eq!(
                (error.code(), error.detail()),
                ("LF002", format!("resource={missing}").as_str()),
                "{statement}"
            );
        }
        ok(&mut holder(&world, "shard/3=1, shard/4=1"), statement);
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM shard_ticks"), "0");
}

#[test]
fn a_newer_leader_of_a_key_terminates_only_the_older_one() {
    let world = world();
    let mut old = holder(&world, "shard/3=1");
    ok(&mut old, "BEGIN; INSERT INTO shard_ticks (shard, id) VALUES (3, 1)");
    let mut other = holder(&world, "shard/4=1");
    ok(&mut other, "BEGIN; INSERT INTO shard_ticks (shard, id) VALUES (4, 2)");
    ok(&mut holder(&world, "shard/3=2"), "INSERT INTO shard_ticks (shard, id) VALUES (3, 1)");
    let ended = error_in(&old.query("COMMIT")).unwrap();
    assert_eq!((ended.severity(), ended.code()), ("FATAL", "LF001"));
    assert_eq!(ended.detail(), "resource=shard/3 presented=1 highest=2 outcome=rolled_back");
    ok(&mut other, "COMMIT");
    assert_eq!(
        world.postgres.value("SELECT string_agg(shard || '/' || id, ' ' ORDER BY id) FROM shard_ticks"),
        "3/1 4/2"
    );
}

/// The inserted rows are constants, so the lexer can read their keys.
#[test]
fn an_insert_of_constants_shows_its_keys_however_long_it_is() {
    let world = world();
    let long = "x".repeat(TOO_LONG);
    let one = format!("INSERT INTO shard_ticks (shard, id, v) VALUES (3, 7, '{long}')");
    let two = format!("INSERT INTO shard_ticks VALUES (3, 8, 'x'), (4, 9, '{long}')");
    for (statement, tokens, missing) in [(&one, "shard/4=1", "shard/3"), (&two, "shard/3=1", "shard/4")] {
        let error = refused(&mut holder(&world, tokens), statement);
        assert_eq!((error.code(), error.detail()), ("LF002", format!("resource={missing}").as_str()));
    }
    ok(&mut holder(&world, "shard/3=1"), &one);
    ok(&mut holder(&world, "shard/3=2, shard/4=1"), &two);
    assert_eq!(code(&mut holder(&world, "shard/3=1"), &one), "LF001");
    assert_eq!(world.postgres.value("SELECT string_agg(id::text, ' ' ORDER BY id) FROM shard_ticks"), "7 8 9");
}

#[test]
fn a_statement_without_a_visible_key_is_refused_with_a_hint() {
    let world = world();
    ok(&mut holder(&world, "1"), "INSERT INTO shard_ticks (shard, id) VALUES (3, 1)");
    let statements = [
        "INSERT INTO shard_ticks (id) VALUES (2)",
        "INSERT INTO shard_ticks (shard, id) SELECT 3, 2",
        "INSERT INTO shard_ticks (shard, id) VALUES (NULL, 2)",
        "INSERT INTO shard_ticks (shard, id) VALUES (1 + 2, 2)",
        "INSERT INTO shard_ticks DEFAULT VALUES",
        "UPDATE shard_ticks SET v = 'x'",
        "UPDATE shard_ticks SET v = 'x' WHERE id = 1",
        "UPDATE shard_ticks SET shard = shard + 1 WHERE shard = 3",
        "DELETE FROM shard_ticks WHERE shard = 3 OR id = 1",
        "DELETE FROM shard_ticks WHERE NOT shard = 3",
        // The conflicting row may have another key.
        "INSERT INTO shard_ticks (shard, id) VALUES (4, 1) ON CONFLICT (id) DO UPDATE SET v = 'x'",
        "TRUNCATE shard_ticks",
        "ALTER TABLE shard_ticks ADD COLUMN more int",
        "LOCK TABLE shard_ticks",
        "SELECT id FROM shard_ticks FOR UPDATE",
    ];
    for statement in statements {
        let error = refused(&mut holder(&world, "1"), &format!("BEGIN; {statement}"));
        assert_eq!((error.code(), error.detail()), ("LF004", "resource=shard/{shard}"), "{statement}: {error:?}");
        assert!(
            error.message().contains("the value of \"shard\" in public.shard_ticks is unknown"),
            "{}",
            error.message()
        );
        assert!(!error.hint().is_empty(), "{statement}");
    }
    let long = format!("UPDATE shard_ticks SET v = '{}' WHERE shard = 3", "x".repeat(TOO_LONG));
    assert!(refused(&mut holder(&world, "1"), &long).message().contains("too long"));
    // A session without a token gets that error first. A session that only reads needs no token.
    let mut nobody = world.login();
    assert_eq!(code(&mut nobody, "UPDATE shard_ticks SET v = 'x'"), "LF002");
    ok(&mut nobody, "SELECT id FROM shard_ticks FOR UPDATE");
    assert_eq!(world.postgres.value("SELECT count(*) FROM shard_ticks WHERE v IS NULL"), "1");
}
