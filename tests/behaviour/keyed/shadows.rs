//! Operators and types that hide those of the catalog change the rows that a statement affects.

use super::{SCHEMA, holder, refused};
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::wire::Wire;
use crate::support::{DEADLINE, wait_until};

const POLICIES: &str = "version: 1\nresources:\n  - name: shard/{shard}\n    tables: [{name: public.shard_ticks, key: shard}]\n  \
    - name: word/{word}\n    tables: [{name: public.words, key: word}]\n";

/// The operator finds all values equal. The type `int8` always has the value 4.
const EVIL: &str = "CREATE SCHEMA evil;
    CREATE FUNCTION evil.always(int, int) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.always)";
const EVIL_TYPE: &str = "CREATE SCHEMA evil;
    CREATE TYPE evil.int8 AS ENUM ('3');
    CREATE FUNCTION evil.four(evil.int8) RETURNS int LANGUAGE sql AS 'SELECT 4';
    CREATE CAST (evil.int8 AS int) WITH FUNCTION evil.four(evil.int8) AS IMPLICIT";

fn world(evil: &str) -> Fenced {
    let schema = format!("{SCHEMA}; CREATE TABLE words (word varchar, n int); {evil}");
    let world = Fenced::start(&schema, POLICIES);
    world.postgres.sql("INSERT INTO shard_ticks (shard, id) VALUES (3, 1), (4, 2)");
    world
}

/// A session for each way to set the search path.
fn sessions_by_way(world: &Fenced) -> Vec<(&'static str, Wire)> {
    world.postgres.sql(
        "CREATE ROLE led SUPERUSER LOGIN; ALTER ROLE led SET search_path = evil, pg_catalog, public;
         CREATE VIEW sets_path AS SELECT set_config('search_path', 'evil, pg_catalog, public', false);
         CREATE FUNCTION set_path() RETURNS text LANGUAGE sql AS 'SELECT * FROM sets_path'",
    );
    let start = |parameters: &[(&str, &str)]| {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        let parameters = [&[("database", "postgres"), ("lease.fence", "shard/3=47,word/a=47")], parameters].concat();
        assert_eq!(code_in(&wire.start(&parameters, "")), "");
        wire
    };
    let after = |statement: &'static str| {
        let mut wire = start(&[("user", "postgres")]);
        ok(&mut wire, statement);
        (statement, wire)
    };
    vec![
        after("SET search_path = evil, pg_catalog, public"),
        after("SELECT set_config('search_path', 'evil, pg_catalog, public', false)"),
        after("SELECT * FROM sets_path"),
        after("SELECT set_path()"),
        ("startup", start(&[("user", "postgres"), ("search_path", "evil, pg_catalog, public")])),
        ("options", start(&[("user", "postgres"), ("options", "-csearch_path=evil,pg_catalog,public")])),
        ("ALTER ROLE", start(&[("user", "led")])),
    ]
}

fn extended(wire: &mut Wire, sql: &str) -> String {
    code_in(&wire.exchange(&[parse("", sql, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat()))
}

#[track_caller]
fn other_rows_are_safe(world: &Fenced) {
    let left = world
        .postgres
        .value("SELECT string_agg(shard || '/' || id || coalesce(v, ''), ' ' ORDER BY id) FROM public.shard_ticks");
    assert_eq!(left, "3/1 4/2");
}

#[test]
fn an_operator_in_front_of_the_catalogs() {
    let world = world(EVIL);
    let statements = [
        "DELETE FROM shard_ticks WHERE shard = 3",
        "DELETE FROM shard_ticks WHERE 3 = shard",
        "DELETE FROM shard_ticks WHERE shard IN (3)",
        "DELETE FROM shard_ticks WHERE shard = ANY (ARRAY[3])",
        "UPDATE shard_ticks SET v = 'x' WHERE shard = 3",
        "UPDATE shard_ticks t SET v = 'x' WHERE t.shard = 3 AND t.id = 2",
        "SELECT 1 FROM shard_ticks WHERE shard = 3 FOR UPDATE",
        "MERGE INTO shard_ticks t USING (SELECT 1) s ON t.shard = 3 WHEN MATCHED THEN DELETE",
        "WITH d AS (DELETE FROM shard_ticks WHERE shard = 3 RETURNING 1) SELECT * FROM d",
        "PREPARE p AS DELETE FROM shard_ticks WHERE shard = 3; EXECUTE p",
        "BEGIN; DELETE FROM shard_ticks WHERE shard = 3; COMMIT",
    ];
    for (way, mut wire) in sessions_by_way(&world) {
        for statement in statements {
            assert_eq!(code(&mut wire, statement), "LF004", "{way}: {statement}");
            wire.query("ROLLBACK; DEALLOCATE ALL");
            if !statement.contains(';') {
                assert_eq!(extended(&mut wire, statement), "LF004", "{way}, extended: {statement}");
            }
        }
        other_rows_are_safe(&world);
        // Statements with an explicit catalog operator, or without a comparison, still pass.
        ok(&mut wire, "BEGIN; DELETE FROM shard_ticks WHERE shard OPERATOR(pg_catalog.=) 3");
        ok(&mut wire, "ROLLBACK");
        ok(&mut wire, "BEGIN; INSERT INTO shard_ticks VALUES (3, 7)");
        ok(&mut wire, "ROLLBACK");
    }
    // A session with another search path is not affected.
    let mut usual = holder(&world, "shard/3=48");
    ok(&mut usual, "BEGIN");
    ok(&mut usual, "UPDATE shard_ticks SET v = 'x' WHERE shard = 3");
    assert_eq!(extended(&mut usual, "UPDATE shard_ticks SET v = 'x' WHERE shard IN (3)"), "");
    ok(&mut usual, "ROLLBACK");
    assert_eq!(refused(&mut usual, "UPDATE shard_ticks SET v = 'x' WHERE shard = 4").code(), "LF002");
}

#[test]
fn a_type_in_front_of_the_catalogs() {
    let world = world(EVIL_TYPE);
    let statements = [
        "UPDATE shard_ticks SET v = 'x' WHERE shard OPERATOR(pg_catalog.=) '3'::int8",
        "INSERT INTO shard_ticks (shard, id) VALUES ('3'::int8, 9)",
        "PREPARE p(int8) AS INSERT INTO shard_ticks (shard, id) VALUES ($1, 9); EXECUTE p('3')",
    ];
    for (way, mut wire) in sessions_by_way(&world) {
        for statement in statements {
            assert_eq!(code(&mut wire, statement), "LF004", "{way}: {statement}");
            wire.query("DEALLOCATE ALL");
        }
        other_rows_are_safe(&world);
        ok(&mut wire, "BEGIN; INSERT INTO shard_ticks (shard, id) VALUES ('3'::bigint, 9)");
        ok(&mut wire, "ROLLBACK");
    }
}

/// A session's temporary types precede all others, whatever its search path is.
#[test]
fn a_temporary_type() {
    let world = world("SELECT 1");
    let mut stranger = holder(&world, "shard/3=47");
    ok(&mut stranger, "CREATE TYPE pg_temp.int8 AS ENUM ('3')");
    ok(&mut stranger, "CREATE FUNCTION pg_temp.four(pg_temp.int8) RETURNS int LANGUAGE sql AS 'SELECT 4'");
    ok(&mut stranger, "CREATE CAST (pg_temp.int8 AS int) WITH FUNCTION pg_temp.four(pg_temp.int8) AS IMPLICIT");
    let insert = "INSERT INTO shard_ticks (shard, id) VALUES ('3'::int8, 9)";
    assert_eq!(code(&mut stranger, insert), "LF004");
    other_rows_are_safe(&world);
    // Other sessions do not see the type.
    let mut other = holder(&world, "shard/3=48");
    ok(&mut other, insert);
}

/// The creating transaction sees the operator before other sessions do.
#[test]
fn an_operator_that_is_being_created() {
    let world =
        world("CREATE SCHEMA evil; CREATE FUNCTION evil.always(int, int) RETURNS bool LANGUAGE sql AS 'SELECT true'");
    let create = "CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.always)";
    let delete = "DELETE FROM shard_ticks WHERE shard = 3";
    let mut wire = holder(&world, "shard/3=47");
    ok(&mut wire, "SET search_path = evil, pg_catalog, public");
    ok(&mut wire, &format!("BEGIN; {create}"));
    assert_eq!(code(&mut wire, delete), "LF004");
    ok(&mut wire, "ROLLBACK");
    assert_eq!(code(&mut wire, &format!("{create}; {delete}")), "LF004");
    // After the operator was committed.
    ok(&mut wire, create);
    assert_eq!(code(&mut wire, delete), "LF004");
    other_rows_are_safe(&world);
    ok(&mut wire, "DROP OPERATOR evil.= (int, int)");
    wait_until("the proxy detects the removal", DEADLINE, || code(&mut wire, delete).is_empty());
}

/// The catalog has no `=` for varchar, so any other operator is a better match, wherever it is.
#[test]
fn an_operator_that_fits_better() {
    let world = world(
        "CREATE FUNCTION always(varchar, varchar) RETURNS bool LANGUAGE sql AS 'SELECT true';
         CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = always)",
    );
    world.postgres.sql("INSERT INTO words VALUES ('a', 1), ('b', 2)");
    let mut wire = holder(&world, "word/a=47");
    assert_eq!(code(&mut wire, "DELETE FROM words WHERE word = 'a'"), "LF004");
    ok(&mut wire, "DELETE FROM words WHERE word OPERATOR(pg_catalog.=) 'a'");
    assert_eq!(world.postgres.value("SELECT count(*) FROM words"), "1");
}

/// A superuser may have created a cast between built-in types.
#[test]
fn a_cast_of_the_keys_type() {
    let world = world(
        "CREATE FUNCTION other(int) RETURNS text LANGUAGE sql AS $$ SELECT 'b'::text $$;
         CREATE CAST (int AS text) WITH FUNCTION other(int) AS ASSIGNMENT",
    );
    let mut wire = holder(&world, "word/3=47, shard/3=47");
    assert_eq!(code(&mut wire, "INSERT INTO words VALUES (3, 1)"), "LF004");
    assert_eq!(world.postgres.value("SELECT count(*) FROM words"), "0");
}
