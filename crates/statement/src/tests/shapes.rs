//! Texts that share one analysis.

use super::*;
use crate::recent::{Recent, Serves};
use crate::rows::{ColumnValue, ValueType};
use crate::shape::{Literals, Shape};
use fencegate_testing::length::{length, seed};
use pg_query::protobuf::Token;

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
        ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b = 2147483647"),
        ("SELECT a FROM t WHERE b = 2147483648", "SELECT a FROM t WHERE b = 1.5"),
        ("SELECT a FROM t WHERE b = ''", "SELECT a FROM t WHERE b = 'a longer one'"),
        ("SELECT unknown('a')", "SELECT unknown('b')"),
        ("SELECT E'a', 1", "SELECT E'a', 2"),
        // A list of any length is one literal.
        ("SELECT a FROM t WHERE b IN (1)", "SELECT a FROM t WHERE b IN (1, 22,333 )"),
        ("DELETE FROM t WHERE b NOT IN ('a','b') AND c = 1", "DELETE FROM t WHERE b NOT IN ('c') AND c = 2"),
    ] {
        assert!(share_an_analysis(one, other, Lexing::USUAL), "{one}; {other}");
    }
}

#[test]
fn texts_that_differ_in_comments_are_read_once() {
    for (one, other) in [
        ("SELECT a FROM t /* 1 */", "SELECT a FROM t /* 22 /* nested */ */"),
        ("SELECT a FROM t -- 1", "SELECT a FROM t -- 22\n"),
        ("SELECT a --/* 1 \n - b", "SELECT a /*--*/\t- b"),
        ("/* 1 */ BEGIN", "/* 22 */ BEGIN"),
        ("SET work_mem = 1 -- 1", "SET work_mem = 1 /* ; */ -- 22"),
        ("SELECT f('a') /* 1 */ FROM t", "SELECT f('a') /* 22 */  FROM t"),
        ("DELETE FROM t WHERE a = $1 /* 1 */", "DELETE FROM t WHERE a = $1 /* 22 */"),
        ("DO $$ /* 1 */ $$ /* 1 */", "DO $$ /* 1 */ $$ /* 22 */"),
    ] {
        for with_rows in [false, true] {
            let cache = Cache::default();
            let [one, other] = [one, other].map(|text| cache.get(text.as_bytes(), Lexing::USUAL, with_rows).unwrap());
            assert!(std::sync::Arc::ptr_eq(&one, &other), "{one:?}; {other:?}");
        }
    }
}

#[test]
fn texts_with_one_shape_have_rows_of_their_own() {
    for (one, other) in [
        ("SELECT * FROM t WHERE a = 1 FOR UPDATE", "SELECT * FROM t WHERE a = 7 FOR UPDATE"),
        ("UPDATE t SET b = 'x' WHERE a = 1", "UPDATE t /* 7 */ SET b = 'it''s' WHERE a = 777"),
        ("INSERT INTO t VALUES (1, 'x'), (2, 'y')", "INSERT INTO t VALUES (777, ''), (007, 'it''s')"),
        ("DELETE FROM t WHERE a = 3000000000", "DELETE FROM t WHERE a = 3000000007"),
        ("DELETE FROM t WHERE a IN ('1'::int, 2)", "DELETE FROM t WHERE a IN ('3'::int, 2)"),
        ("DELETE FROM t WHERE a = int '1'", "DELETE FROM t WHERE a = int '7'"),
        ("DELETE FROM t WHERE a = ANY (ARRAY[1, 2])", "DELETE FROM t WHERE a = ANY (ARRAY[3, 3])"),
        ("SELECT f(1) FROM t WHERE a = 1 FOR UPDATE", "SELECT f(7) FROM t WHERE a = 77 FOR UPDATE"),
    ] {
        let [first, second] = [one, other].map(|text| Shape::of(text.as_bytes(), Lexing::USUAL, Literals::Numbered));
        let (first, second) = first.zip(second).unwrap();
        assert_eq!(first.key(), second.key());
        let [one, other] = [one, other].map(|text| analyze_rows(text.as_bytes(), Lexing::USUAL));
        let common = first.common(&one, Lexing::USUAL).unwrap();
        let writes = |script: &Script| script.statements[0].writes.clone();
        assert_eq!(writes(&first.complete(&common)), writes(&one.unwrap()));
        assert_eq!(writes(&second.complete(&common)), writes(&other.unwrap()));
    }
}

#[test]
fn recent_texts_have_rows_of_their_own() {
    for (one, other, is_recent) in [
        ("UPDATE t SET b = 'x' WHERE a = 1", "UPDATE t SET b = 'it''s' WHERE a = 777", true),
        ("INSERT INTO t VALUES (1, 'x'), (2, 'y')", "INSERT INTO t VALUES (77, ''), (007, 'z')", true),
        ("DELETE FROM t WHERE a = 3000000000", "DELETE FROM t WHERE a = 3000000007", true),
        ("DELETE FROM t WHERE a IN ('1'::int, 2)", "DELETE FROM t WHERE a IN ('3'::int, 2)", true),
        // No key can have this value.
        ("DELETE FROM t WHERE a = 3000000000", "DELETE FROM t WHERE a = 99999999999999999999", false),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM t WHERE a = 3000000000", false),
        ("DELETE FROM t WHERE a = 'a'", "DELETE FROM t WHERE a = 'é'", false),
        ("DELETE FROM t WHERE a = 'é' AND b = 1", "DELETE FROM t WHERE a = 'é' AND b = 7", false),
    ] {
        let cache = Cache::default();
        // The first text is read, and the second one is kept.
        for text in [one, one, other] {
            let found = cache.get(text.as_bytes(), Lexing::USUAL, true).unwrap();
            let read = analyze_rows(text.as_bytes(), Lexing::USUAL).unwrap();
            assert_eq!(found.as_ref().as_ref().unwrap().statements[0].writes, read.statements[0].writes, "{text}");
        }
        let (shape, recent) =
            (Shape::of(one.as_bytes(), Lexing::USUAL, Literals::Numbered).unwrap(), Recent::default());
        let common = shape.common(&analyze_rows(one.as_bytes(), Lexing::USUAL), Lexing::USUAL).unwrap();
        let common = std::sync::Arc::new(Ok(common));
        recent.keep(one.as_bytes(), shape.left_out(), Lexing::USUAL, Serves::Completed, &common);
        assert_eq!(recent.find(other.as_bytes(), Lexing::USUAL, true).is_some(), is_recent, "{other}");
    }
}

/// All these texts have a common analysis with the first, except for numbers that begin with 0.
#[test]
fn texts_that_set_a_token_are_read_once_and_have_values_of_their_own() {
    let cache = Cache::default();
    for (literal, value) in [
        ("1", "1"),
        ("2147483647", "2147483647"),
        ("9223372036854775807", "9223372036854775807"),
        ("3000000000", "3000000000"),
        ("007", "7"),
        ("00000000009", "9"),
        ("-7", "-7"),
        ("'job/7=42'", "job/7=42"),
        ("'it''s \\'", "it's \\"),
        ("''", ""),
    ] {
        for (text, local) in [
            (format!("SET lease.fence = {literal}"), false),
            (format!("SET LOCAL lease.fence TO {literal} -- 1"), true),
        ] {
            let read = cache.get(text.as_bytes(), Lexing::USUAL, true).unwrap();
            let parameter = |read: &Result<Script, Unreadable>| read.as_ref().unwrap().statements[0].parameter.clone();
            assert_eq!(parameter(&read), ParameterEffect::Set { value: value.to_owned(), local }, "{text}");
            assert_eq!(parameter(&read), parameter(&analyze(text.as_bytes(), Lexing::USUAL)), "{text}");
        }
    }
    let text = b"SET lease.fence = 47";
    let shape = Shape::of(text, Lexing::USUAL, Literals::Typed).unwrap();
    assert!(shape.common(&analyze(text, Lexing::USUAL), Lexing::USUAL).is_some());
    for text in ["SET lease.fence = '1', '2'", "SET work_mem = 4", "SELECT set_config('lease.fence', '1', true)"] {
        let shape = Shape::of(text.as_bytes(), Lexing::USUAL, Literals::Typed).unwrap();
        assert!(shape.common(&analyze(text.as_bytes(), Lexing::USUAL), Lexing::USUAL).is_none(), "{text}");
    }
}

/// A literal determines the types of parameters and literals beside it.
#[test]
fn literals_of_other_types_have_rows_of_their_own() {
    for (one, other) in [
        ("DELETE FROM t WHERE a IN ($1, 3) AND a = $1", "DELETE FROM t WHERE a IN ($1, 3.5) AND a = $1"),
        (
            "DELETE FROM t WHERE a = ANY (ARRAY[$1, 3]) AND a = $1",
            "DELETE FROM t WHERE a = ANY (ARRAY[$1, 3.5]) AND a = $1",
        ),
        ("DELETE FROM t WHERE 6::int = a AND a = $1", "DELETE FROM t WHERE 5.0::int = a AND a = $1"),
        ("DELETE FROM t WHERE a = -3.5", "DELETE FROM t WHERE a = -3"),
        ("DELETE FROM t WHERE a = -'5'", "DELETE FROM t WHERE a = -5"),
        ("DELETE FROM t WHERE a IN (5, 5.5)", "DELETE FROM t WHERE a IN (5, 6)"),
        ("INSERT INTO t (a) SELECT unnest(ARRAY[1, '2'])", "INSERT INTO t (a) SELECT unnest(ARRAY[1, 2])"),
        ("INSERT INTO t (b, a) SELECT '3', unnest($1::text[])", "INSERT INTO t (b, a) SELECT 3, unnest($1::text[])"),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            let cache = Cache::default();
            cache.get(one.as_bytes(), Lexing::USUAL, true).unwrap();
            let found = cache.get(other.as_bytes(), Lexing::USUAL, true).unwrap();
            assert_eq!(*found, analyze_rows(other.as_bytes(), Lexing::USUAL), "{other} after {one}");
        }
    }
    for text in ["DELETE FROM t WHERE a IN ($1, 3)", "DELETE FROM t WHERE a = 3.5"] {
        let shape = Shape::of(text.as_bytes(), Lexing::USUAL, Literals::Numbered);
        assert!(shape.is_none(), "{text}: a parameter, or a value that no key can have");
    }
}

/// The cache does not return an analysis without rows for one with rows.
#[test]
fn a_text_is_read_for_its_rows_when_they_are_needed() {
    let cache = Cache::default();
    for with_rows in [false, true, false, true] {
        for value in ["1", "77"] {
            let text = format!("UPDATE t SET b = 2 WHERE a = {value}");
            let read = cache.get(text.as_bytes(), Lexing::USUAL, with_rows).unwrap();
            let rows = &(*read).as_ref().unwrap().statements[0].writes[0].rows;
            let expected = ColumnValue::Literal { text: value.to_owned(), kind: Some(ValueType::Integer) };
            match rows.are_left_out() {
                true => assert!(!with_rows),
                false => assert_eq!(rows.values("a", None), Some(&[expected][..])),
            }
        }
    }
}

#[test]
fn rows_that_need_the_tree_are_not_shared() {
    for text in ["UPDATE t SET b = 2 WHERE a = -1", "DELETE FROM t WHERE a = ANY ('{1}'::int[])"] {
        let (text, cache) = (text.as_bytes(), Cache::default());
        let read = analyze_rows(text, Lexing::USUAL);
        let shape = Shape::of(text, Lexing::USUAL, Literals::Numbered).unwrap();
        assert_eq!(shape.common(&read, Lexing::USUAL), None, "{}", text.escape_ascii());
        for _ in 0..2 {
            assert_eq!(*cache.get(text, Lexing::USUAL, true).unwrap(), read);
        }
    }
}

#[test]
fn texts_that_may_have_different_effects_are_read_separately() {
    let old = Lexing { standard_conforming_strings: false, ..Lexing::USUAL };
    let single = Lexing { server: ServerEncoding::SingleByte, ..Lexing::USUAL };
    for (one, other, lexing) in [
        ("SELECT set_config('work_mem   ', '4', true)", "SELECT set_config('lease.fence', '4', true)", Lexing::USUAL),
        ("SELECT f(1), set_config('a', '4', true)", "SELECT f(1), set_config('b', '4', true)", Lexing::USUAL),
        ("FETCH 1 FROM c", "FETCH 2 FROM c", Lexing::USUAL),
        ("SET work_mem = 1", "SET work_mem = 2", Lexing::USUAL),
        ("DO 'a'", "DO 'b'", Lexing::USUAL),
        ("SELECT 1; SELECT 1", "SELECT 1; SELECT 2", Lexing::USUAL),
        ("EXPLAIN SELECT 1", "EXPLAIN SELECT 2", Lexing::USUAL),
        // Literals of other kinds.
        ("SELECT '1' FROM t", "SELECT 1.0 FROM t", Lexing::USUAL),
        ("SELECT 100 FROM t", "SELECT 1.0 FROM t", Lexing::USUAL),
        ("SELECT a FROM t WHERE b IN (1, 'a')", "SELECT a FROM t WHERE b IN (1)", Lexing::USUAL),
        ("SELECT a FROM t WHERE b IN (1, 2 + c)", "SELECT a FROM t WHERE b IN (1 + c)", Lexing::USUAL),
        ("SELECT t.in (1, 2)", "SELECT t.in (1)", Lexing::USUAL),
        ("INSERT INTO t VALUES (1, 2)", "INSERT INTO t VALUES (1)", Lexing::USUAL),
        ("SELECT 2147483647", "SELECT 2147483648", Lexing::USUAL),
        ("SELECT 1e5", "SELECT 1e6", Lexing::USUAL),
        ("SELECT E'a'", "SELECT E'b'", Lexing::USUAL),
        ("SELECT $a$x$a$", "SELECT $a$y$a$", Lexing::USUAL),
        // No literals, and comments that are none.
        ("SELECT 1; SELECT 2 /* 1 */", "SELECT 1; SELECT 2 /* 2 */", Lexing::USUAL),
        ("SELECT a /* 1 */", "SELECT a -- 1 \r -1", Lexing::USUAL),
        ("SELECT 1 +/* 1 */- a", "SELECT 1 +- a", Lexing::USUAL),
        ("SELECT a/* 1 */b FROM t", "SELECT ab FROM t", Lexing::USUAL),
        ("SELECT 'a' -- 1\n 'b'", "SELECT 'a' -- 2\n 'b'", Lexing::USUAL),
        ("SELECT 'a' /* 1 */ 'b'", "SELECT 'a' \n 'b'", Lexing::USUAL),
        ("SELECT \"'a'\" FROM t", "SELECT \"'b'\" FROM t", Lexing::USUAL),
        ("SELECT U&\"a!0041\" UESCAPE '!'", "SELECT U&\"a!0041\" UESCAPE '?'", Lexing::USUAL),
        // A backslash may hide the end of a literal, and a character may be read differently.
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
    let shape = Shape::of(text, Lexing::USUAL, Literals::Typed).unwrap();
    assert_eq!(*cache.get(shape.key(), Lexing::USUAL, false).unwrap(), Err(Unreadable::Syntax));
}

/// Expressions of all kinds in statements of all kinds. Some are invalid SQL.
#[test]
fn other_literals_do_not_change_the_effects() {
    const FRAMES: [&str; 14] = [
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
        "SET lease.fence = @",
        "SET LOCAL lease.fence TO @, @",
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

/// The tokens of a text as PostgreSQL's lexer finds them, without comments. None where it finds an error.
fn tokens(text: &str) -> Option<Vec<(Token, &str)>> {
    let tokens = pg_query::scan(text).ok()?.tokens;
    let is_comment = |token: &Token| matches!(token, Token::SqlComment | Token::CComment);
    let tokens = tokens.iter().map(|it| (it.token(), &text[it.start as usize..it.end as usize]));
    Some(tokens.filter(|(token, _)| !is_comment(token)).collect())
}

/// Leaves the first of a list of literals of one type after IN.
fn shortened<'t>(tokens: &[(Token, &'t str)]) -> Vec<(Token, &'t str)> {
    let mut short = Vec::new();
    for &token in tokens {
        short.push(token);
        let open = short.iter().rposition(|(_, text)| *text == "(").unwrap_or(0);
        let is_named = open > 1 && matches!(short[open - 2].1, "." | "..");
        let (items, commas): (Vec<_>, Vec<_>) = short[open..].iter().skip(1).enumerate().partition(|(n, _)| n % 2 == 0);
        let is_list = token.1 == ")"
            && open > 0
            && short[open - 1].0 == Token::InP
            && !is_named
            && items.iter().all(|(_, item)| is_plain(item) && item.0 == items[0].1.0)
            && commas.iter().rev().skip(1).all(|(_, comma)| comma.1 == ",")
            && short[open..].len() % 2 == 1;
        if is_list {
            short.truncate(open + 2);
            short.push(token);
        }
    }
    short
}

/// A literal that shapes leave out.
fn is_plain((token, text): &(Token, &str)) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match token {
        Token::Sconst => text.starts_with('\''),
        Token::Iconst | Token::Fconst => is_number && !text.starts_with('.') && !text.ends_with('.'),
        _ => false,
    }
}

/// A text that is accepted in place of a recent one has the same shape.
#[test]
fn recent_texts_stand_for_texts_of_their_shape_only() {
    const LITERALS: [&str; 10] = ["''", "'a'", "'b''c'", "''''", "1", "23", "2147483647", "2147483648", "1.5", "23.75"];
    #[rustfmt::skip]
    const PIECES: [&str; 31] = [
        "'", "'é'", "'\0'", "'\\'", "1.", ".5", "1..2", "1e5", "e", "$1", "E'a'", "N'a'", "'a' 'b'", "a", "n", "_", "é", "--", "-",
        "/* 1 */", "/*", "*/", "IN (1, 2)", "(", ")", ",", "U&'a'", "x'1'", "\"'\"", "\n", ";",
    ];
    let (mut dice, mut accepted) = (Dice::new(seed()), 0);
    let analysis = std::sync::Arc::new(Ok(Script { statements: Vec::new() }));
    for _ in 0..length(20_000, 2_000_000) {
        let (recent, parts) = (Recent::default(), dice.below(5));
        let frame: Vec<&str> = (0..=parts).map(|_| *dice.pick::<&str>(&[" ", "", " = ", " a ", ", "])).collect();
        let mut text = || {
            let mut piece = || {
                let pieces = if dice.below(4) == 0 { &PIECES[..] } else { &LITERALS[..] };
                *dice.pick::<&str>(pieces)
            };
            frame.iter().map(|part| [piece(), *part].concat()).collect::<String>()
        };
        let (one, other) = (text(), text());
        for (literals, serves) in [(Literals::Typed, Serves::Names), (Literals::Numbered, Serves::Completed)] {
            let Some(shape) = Shape::of(one.as_bytes(), Lexing::USUAL, literals) else { continue };
            recent.keep(one.as_bytes(), shape.left_out(), Lexing::USUAL, serves, &analysis);
            if recent.find(other.as_bytes(), Lexing::USUAL, serves == Serves::Completed).is_some() {
                let same = Shape::of(other.as_bytes(), Lexing::USUAL, literals);
                assert_eq!(
                    same.map(|it| it.key().to_owned()),
                    Some(shape.key().to_owned()),
                    "{other:?} in place of {one:?}"
                );
                accepted += usize::from(one != other);
            }
        }
    }
    assert!(accepted > 300, "{accepted}");
}

#[test]
fn recent_texts_take_little_memory() {
    for (text, is_kept) in [("BEGIN;".to_owned(), true), ("END;".repeat(250), false)] {
        let (text, recent) = (text.as_bytes(), Recent::default());
        let analysis = std::sync::Arc::new(analyze(text, Lexing::USUAL));
        recent.keep(text, &[], Lexing::USUAL, Serves::All, &analysis);
        assert_eq!(recent.find(text, Lexing::USUAL, true).is_some(), is_kept, "{} bytes", text.len());
    }
}

/// PostgreSQL's lexer finds in the shape of a text the tokens of that text: texts of one shape have the same tokens.
#[test]
fn shapes_have_the_tokens_of_their_texts() {
    #[rustfmt::skip]
    const PIECES: [&str; 64] = [
        " ", " ", " ", "\n", "\r", "\t", "\x0b", "\x0c", "'", "''", "'a'", "'b''c'", "\"", "\"a\"", "\\", "--", "-- a\n", "/*", "*/",
        "/* a */", "/*/", "/**/", "/* /* a */ */", "/", "*", "-", "+", "<", "=", "@", "%", "~", "|", "(", ")", ",", ";", ".", "$$", "$a$",
        "$1", "$99999", "$", "a", "in", "IN (1, 2)", "in ('a','b', 'c' )", "IN (", "1", "23", "2147483648", "1.5", "1.", "e", "E'", "U&'",
        "U&\"", "x'", "N'", "b'0'", "é", "_", "select", "::int",
    ];
    let (mut dice, mut compared) = (Dice::new(seed()), 0);
    for _ in 0..length(20_000, 2_000_000) {
        let text: String = (0..dice.below(14)).map(|_| *dice.pick::<&str>(&PIECES)).collect();
        for literals in [Literals::Kept, Literals::Typed, Literals::Numbered] {
            let Some(shape) = Shape::of(text.as_bytes(), Lexing::USUAL, literals) else { continue };
            let body = std::str::from_utf8(&shape.key()[3..]).unwrap();
            let sql = body.replace("\0s", "''").replace("\0i", "0").replace("\0f", "2147483648");
            let (own, others) = (tokens(&text), tokens(&sql));
            assert_eq!(own.is_some(), others.is_some(), "{text:?} has the shape {sql:?}");
            let Some((own, others)) = own.zip(others) else { continue };
            let is_one = |(own, other): (&(Token, &str), &(Token, &str))| {
                let stands_for = match literals {
                    Literals::Kept => false,
                    Literals::Typed => own.0 == other.0,
                    Literals::Numbered => other.0 == Token::Param && other.1.len() == "$10500000".len(),
                };
                own == other || is_plain(own) && stands_for
            };
            let own = if literals == Literals::Typed { shortened(&own) } else { own };
            let are_one = own.len() == others.len() && own.iter().zip(&others).all(is_one);
            assert!(are_one, "{text:?} has the shape {sql:?}: {own:?} {others:?}");
            compared += 1;
        }
    }
    assert!(compared > 3_000, "{compared}");
}
