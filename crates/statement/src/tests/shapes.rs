//! Texts that share one analysis.

use super::*;
use fencegate_testing::length::{length, seed};

fn share_an_analysis(one: &str, other: &str, lexing: Lexing) -> bool {
    let cache = Cache::default();
    let [one, other] = [one, other].map(|text| cache.get(text.as_bytes(), lexing, false).unwrap());
    std::sync::Arc::ptr_eq(&one, &other)
}

#[test]
fn texts_that_differ_in_literals_are_read_once() {
    for (one, other) in [
        ("SELECT * FROM t WHERE a = 1", "SELECT * FROM t WHERE a = 7"),
        ("INSERT INTO t VALUES ('a', 3.5)", "INSERT INTO t VALUES (';', 4.2)"),
        ("UPDATE t SET a = 'x''y' WHERE b = 12", "UPDATE t SET a = '--/*' WHERE b = 99"),
        ("DELETE FROM t WHERE a = 'for'", "DELETE FROM t WHERE a = '\\\\\\'"),
        ("SELECT count(*) FROM t WHERE a = '1' FOR UPDATE", "SELECT count(*) FROM t WHERE a = '2' FOR UPDATE"),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 2",
            "INSERT INTO t VALUES (3) ON CONFLICT (a) DO UPDATE SET b = 4",
        ),
        ("SELECT 'ä' FROM t", "SELECT 'ö' FROM t"),
        ("SELECT $1, $$x$$, 1", "SELECT $1, $$x$$, 2"),
        ("SELECT 1 /* 'a' */;", "SELECT 2 /* 'a' */;"),
    ] {
        assert!(share_an_analysis(one, other, Lexing::USUAL), "{one}; {other}");
    }
}

/// Literals determine the rows.
#[test]
fn only_texts_without_writes_share_an_analysis_with_rows() {
    for (one, other, are_one) in [
        ("SELECT * FROM t WHERE a = 1", "SELECT * FROM t WHERE a = 7", true),
        ("SELECT * FROM t WHERE a = 1 FOR UPDATE", "SELECT * FROM t WHERE a = 7 FOR UPDATE", false),
        ("UPDATE t SET b = 2 WHERE a = 1", "UPDATE t SET b = 2 WHERE a = 7", false),
    ] {
        let cache = Cache::default();
        // An analysis without rows is not sufficient.
        cache.get(one.as_bytes(), Lexing::USUAL, false).unwrap();
        let [one, other] = [one, other].map(|text| cache.get(text.as_bytes(), Lexing::USUAL, true).unwrap());
        assert_eq!(std::sync::Arc::ptr_eq(&one, &other), are_one, "{one:?}; {other:?}");
        let rows = |read: &Analysis| (**read).as_ref().unwrap().statements[0].writes.clone();
        assert_eq!(rows(&one) == rows(&other), are_one);
    }
}

#[test]
fn texts_that_may_have_different_effects_are_read_separately() {
    let old = Lexing { standard_conforming_strings: false, ..Lexing::USUAL };
    let single = Lexing { server: ServerEncoding::SingleByte, ..Lexing::USUAL };
    for (one, other, lexing) in [
        ("SELECT set_config('work_mem   ', '4', true)", "SELECT set_config('lease.fence', '4', true)", Lexing::USUAL),
        ("SELECT unknown('a')", "SELECT unknown('b')", Lexing::USUAL),
        ("SELECT query_to_xml('a')", "SELECT query_to_xml('b')", Lexing::USUAL),
        ("SET lease.fence = 1", "SET lease.fence = 2", Lexing::USUAL),
        ("DO 'a'", "DO 'b'", Lexing::USUAL),
        ("SELECT 1; SELECT 1", "SELECT 1; SELECT 2", Lexing::USUAL),
        ("EXPLAIN SELECT 1", "EXPLAIN SELECT 2", Lexing::USUAL),
        // Literals of other kinds or lengths.
        ("SELECT '1' FROM t", "SELECT 1.0 FROM t", Lexing::USUAL),
        ("SELECT 100 FROM t", "SELECT 1.0 FROM t", Lexing::USUAL),
        ("SELECT 1 FROM t", "SELECT 10 FROM t", Lexing::USUAL),
        ("SELECT 2147483647", "SELECT 2147483648", Lexing::USUAL),
        ("SELECT 1e5", "SELECT 1e6", Lexing::USUAL),
        ("SELECT E'a'", "SELECT E'b'", Lexing::USUAL),
        ("SELECT $a$x$a$", "SELECT $a$y$a$", Lexing::USUAL),
        // No literals.
        ("SELECT a /* 'a' */ FROM t", "SELECT a /* 'b' */ FROM t", Lexing::USUAL),
        ("SELECT \"'a'\" FROM t", "SELECT \"'b'\" FROM t", Lexing::USUAL),
        ("SELECT U&\"a!0041\" UESCAPE '!'", "SELECT U&\"a!0041\" UESCAPE '?'", Lexing::USUAL),
        // A backslash may hide the end, and a character may be read differently.
        ("SELECT 'a', '\\'' FROM t", "SELECT 'b', '\\'' FROM t", old),
        ("SELECT 'a' FROM t", "SELECT 'b' FROM t", old),
        ("SELECT 'ä' FROM t", "SELECT 'ab' FROM t", Lexing::USUAL),
        ("SELECT 'ä' FROM t", "SELECT 'ö' FROM t", single),
        ("SELECT 'ä\\' FROM t", "SELECT 'ö\\' FROM t", Lexing::USUAL),
    ] {
        assert!(!share_an_analysis(one, other, lexing), "{one}; {other}");
    }
}

#[test]
fn a_shape_is_not_valid_sql() {
    let cache = Cache::default();
    let text = b"SELECT * FROM t WHERE a = 1";
    cache.get(text, Lexing::USUAL, false).unwrap();
    let shape = super::super::cache::of(text, Lexing::USUAL).unwrap();
    assert_eq!(*cache.get(&shape, Lexing::USUAL, false).unwrap(), Err(Unreadable::Syntax));
}

/// Expressions of all kinds in statements of all kinds. Some are invalid SQL.
#[test]
fn other_literals_do_not_change_the_effects() {
    const FRAMES: [&str; 12] = [
        "SELECT @, @ FROM t WHERE a = @ AND b IN (@, @)",
        "SELECT a FROM t WHERE b = @ ORDER BY 1 LIMIT @ FOR UPDATE",
        "INSERT INTO t VALUES (@, @), (@, @)",
        "INSERT INTO t (a) SELECT @ FROM u WHERE b = @",
        "INSERT INTO t VALUES (@) ON CONFLICT (a) DO UPDATE SET b = @ RETURNING @",
        "UPDATE t SET a = @, b = @ WHERE c = @",
        "DELETE FROM t USING u WHERE a = @ AND b > @;",
        "WITH w AS (DELETE FROM t WHERE a = @ RETURNING *) SELECT @ FROM w",
        "SELECT @; DELETE FROM t WHERE a = @",
        "SELECT a OPERATOR(other.+) @ FROM t",
        "SELECT @ INTO u FROM t",
        "SET work_mem = @",
    ];
    #[rustfmt::skip]
    const EXPRESSIONS: [&str; 32] = [
        "'abcdef'", "'a'", "''", "12", "7", "3.25", "123456789", "1234567890", ".5", "1.", "1e5", "-4", "E'a\\'b'", "U&'ab'",
        "$$b'c$$", "$1", "\"q'\"", "x'1f'", "N'abc'", "/* ' */ 1", "-- '\n 'b'", "'a'\n'b'", "now()", "lower('ABC')",
        "set_config('lease.fence', '1', true)", "set_config('application_na', '1', true)", "run('a')", "'t'::regclass",
        "nextval('seq')", "interval '1' day", "float '2'", "(SELECT 1)",
    ];
    let mut dice = Dice::new(seed());
    let mut spared = 0;
    for _ in 0..length(1_000, 100_000) {
        let mut pieces = dice.pick::<&str>(&FRAMES).split('@');
        let mut text = pieces.next().unwrap().to_owned();
        for piece in pieces {
            text = text + *dice.pick::<&str>(&EXPRESSIONS) + piece;
        }
        spared += read_once(&text, &mut dice);
    }
    assert!(spared > 300, "{spared}");
}
