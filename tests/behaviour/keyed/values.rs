//! Keys of every type, as literals and as parameters in both formats.

use super::{epochs, holder, refused, run};
use crate::support::fenced::{Fenced, code_in, ok};
use crate::support::message::{Format, bind, execute, parse, sync};
use crate::support::postgres::SUPERUSER;
use crate::support::wire::Wire;

const UUID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";

fn world(column: &str) -> Fenced {
    let schema = format!("CREATE TABLE t (k {column}, n int)");
    Fenced::start(&schema, KEYED)
}

const KEYED: &str = "version: 1\nresources:\n  - {name: 'k/{k}', tables: [{name: public.t, key: k}]}\n";

/// OIDs of the types.
const INT2: u32 = 21;
const INT4: u32 = 23;
const INT8: u32 = 20;
const TEXT: u32 = 25;
const VARCHAR: u32 = 1043;
const UUID_TYPE: u32 = 2950;

#[test]
fn literals() {
    for (column, literals, resource) in [
        ("smallint", &["3", "'3'", "' 03 '", "'3'::smallint", "int '3'"][..], "k/3"),
        ("bigint", &["-9223372036854775808", "'-9223372036854775808'"], "k/-9223372036854775808"),
        ("text", &["'café'", "'café'::text", "$$café$$"], "k/caf%C3%A9"),
        ("varchar(20)", &["'a b'", "'a b'::varchar"], "k/a%20b"),
        ("text", &["''"], "k/"),
        (
            "uuid",
            &["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc999c0b4ef8bb6d6bb9bd380a11'::uuid"],
            &format!("k/{UUID}"),
        ),
    ] {
        let world = world(column);
        for literal in literals {
            for statement in
                ["INSERT INTO t (k) VALUES (?)", "INSERT INTO t VALUES (?, 1)", "DELETE FROM t WHERE k = ?"]
            {
                let statement = statement.replace('?', literal);
                let refusal = refused(&mut holder(&world, "other=1"), &statement);
                assert_eq!(
                    (refusal.code(), refusal.detail()),
                    ("LF002", format!("resource={resource}").as_str()),
                    "{statement}"
                );
                ok(&mut holder(&world, "1"), &statement);
            }
        }
        assert_eq!(epochs(&world), format!("{resource}=1"), "{column}");
    }
}

#[test]
fn parameters() {
    let uuid = u128::from_str_radix(&UUID.replace('-', ""), 16).unwrap().to_be_bytes();
    let (two, four, eight) = (3i16.to_be_bytes(), 3i32.to_be_bytes(), 3i64.to_be_bytes());
    let text = |text: &'static str| (Format::Text, text.as_bytes());
    type Bound<'a> = (u32, (Format, &'a [u8]));
    let cases: [(&str, &[Bound], &str); 4] = [
        (
            "int",
            &[
                (0, text("3")),
                (INT4, text(" 3")),
                (INT8, text("3")),
                (0, (Format::Binary, &four)),
                (INT2, (Format::Binary, &two)),
                (INT4, (Format::Binary, &four)),
                (INT8, (Format::Binary, &eight)),
            ],
            "k/3",
        ),
        ("text", &[(0, text("a=b")), (TEXT, text("a=b")), (VARCHAR, (Format::Binary, b"a=b"))], "k/a%3Db"),
        ("varchar(5)", &[(0, text("a=b")), (TEXT, (Format::Binary, b"a=b"))], "k/a%3Db"),
        (
            "uuid",
            &[(0, text(UUID)), (UUID_TYPE, (Format::Binary, &uuid)), (0, (Format::Binary, &uuid))],
            &format!("k/{UUID}"),
        ),
    ];
    for (column, parameters, resource) in cases {
        let world = world(column);
        for (oid, (format, value)) in parameters {
            for statement in ["INSERT INTO t (k, n) VALUES ($1, 1)", "DELETE FROM t WHERE k = $1"] {
                for (tokens, expected) in [("other=1", "LF002"), (&*format!("{resource}=1"), "")] {
                    let mut wire = holder(&world, tokens);
                    let answer = run(&mut wire, statement, *oid, *format, value);
                    assert_eq!(answer, expected, "{column} {oid} {statement}");
                }
            }
        }
        assert_eq!(epochs(&world), format!("{resource}=1"), "{column}");
    }
}

#[test]
fn bound_values_are_judged_each_time() {
    let world = world("int");
    let mut wire = holder(&world, "k/3=1");
    let prepare = [parse("s", "INSERT INTO t (k, n) VALUES ($1, $2)", &[]), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&prepare)), "");
    for (key, expected) in [("3", ""), ("4", "LF002"), ("3", ""), ("x", "22P02"), ("3", "")] {
        let run =
            [bind("", "s", Format::Text, &[Some(key.as_bytes()), Some(b"1")], Format::Text), execute("", 0), sync()];
        assert_eq!(code_in(&wire.exchange(&run.concat())), expected, "{key}");
    }
    let null = [bind("", "s", Format::Text, &[None, Some(b"1")], Format::Text), execute("", 0), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&null)), "LF004");
    assert_eq!(world.postgres.value("SELECT count(*) FROM t"), "3");
    // The same with SQL commands.
    ok(&mut wire, "PREPARE p(int) AS INSERT INTO t (k, n) VALUES ($1, 1)");
    ok(&mut wire, "EXECUTE p(3)");
    assert_eq!(refused(&mut wire, "EXECUTE p(4)").detail(), "resource=k/4");
}

#[test]
fn a_parameter_of_another_type_is_not_trusted() {
    // The server infers the type of $1 from its first use.
    let world = Fenced::start("CREATE TABLE t (k int, f float8); INSERT INTO t VALUES (3, 3)", KEYED);
    let mut wire = holder(&world, "1");
    let three = 3f64.to_be_bytes();
    let delete = "DELETE FROM t WHERE f = $1 AND k = $1";
    assert_eq!(run(&mut wire, delete, 0, Format::Binary, &three), "LF004");
    const FLOAT8: u32 = 701;
    assert_eq!(run(&mut wire, "DELETE FROM t WHERE k = $1", FLOAT8, Format::Binary, &three), "LF004");
    // The row would have been deleted.
    let mut around = Wire::login(&world.postgres.address(), SUPERUSER, "postgres");
    assert_eq!(run(&mut around, delete, 0, Format::Binary, &three), "");
    assert_eq!(world.postgres.value("SELECT count(*) FROM t"), "0");
}

#[test]
fn columns_that_tell_no_rows_apart() {
    let folding = "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false); ";
    for (before, column) in [
        ("", "char(3)"),
        ("", "numeric"),
        ("", "int GENERATED ALWAYS AS (3) STORED"),
        ("CREATE DOMAIN inner_domain AS int; CREATE DOMAIN outer_domain AS inner_domain; ", "outer_domain"),
        (folding, "text COLLATE folding"),
    ] {
        let schema = format!("{before}CREATE TABLE t (k {column}, n int)");
        let world = Fenced::start(&schema, KEYED);
        assert_eq!(refused(&mut holder(&world, "1"), "DELETE FROM t WHERE k = '3'").code(), "LF004", "{column}");
    }
    // An index with a folding collation finds another row in conflict.
    let schema = format!("{folding}CREATE TABLE t (k text, n int); CREATE UNIQUE INDEX ON t (k COLLATE folding)");
    let world = Fenced::start(&schema, KEYED);
    let upsert = "INSERT INTO t VALUES ('A', 1) ON CONFLICT (k) DO UPDATE SET n = 2";
    assert_eq!(refused(&mut holder(&world, "1"), upsert).code(), "LF004");
    for index in [
        "CREATE UNIQUE INDEX ON t (k bpchar_ops)",
        "CREATE TABLE child () INHERITS (t); CREATE UNIQUE INDEX ON child (k COLLATE folding)",
        "CREATE TABLE child (k text GENERATED ALWAYS AS ('B') STORED, n int) INHERITS (t)",
    ] {
        let schema = format!("{folding}CREATE TABLE t (k text, n int); CREATE UNIQUE INDEX ON t (k); {index}");
        let world = Fenced::start(&schema, KEYED);
        assert_eq!(refused(&mut holder(&world, "1"), upsert).code(), "LF004", "{index}");
    }
    // An index that only speeds up searches does not affect keys.
    let schema =
        "CREATE TABLE t (k varchar, n int); CREATE UNIQUE INDEX ON t (k); CREATE INDEX ON t (k text_pattern_ops)";
    ok(&mut holder(&Fenced::start(schema, KEYED), "1"), &upsert.replace(" VALUES", " (k, n) VALUES"));
    // A value that is truncated when it is stored.
    let world = world_of_short_texts();
    assert_eq!(refused(&mut holder(&world, "1"), "INSERT INTO t VALUES ('abc  ', 1)").code(), "LF004");
    ok(&mut holder(&world, "1"), "INSERT INTO t VALUES ('abc', 1)");
    // A server may count bytes.
    assert_eq!(refused(&mut holder(&world, "1"), "INSERT INTO t VALUES ('éé ', 1)").code(), "LF004");
    ok(&mut holder(&world, "1"), "INSERT INTO t VALUES ('é', 1)");
}

fn world_of_short_texts() -> Fenced {
    world("varchar(3)")
}

#[test]
fn a_domain_is_its_base_type() {
    let schema = "CREATE DOMAIN shard AS int CHECK (VALUE > 0); CREATE TABLE t (k shard, n int)";
    let world = Fenced::start(schema, KEYED);
    ok(&mut holder(&world, "k/3=1"), "INSERT INTO t VALUES (3, 1)");
    assert_eq!(epochs(&world), "k/3=1");
}
