//! Bounds on the cost of reading a text, and texts that must be read within them.

use super::*;
use crate::analyze::{options, read_tree_here};
use crate::rows::{ColumnValue, Rows, ValueType};
use fencegate_testing::bombs::bombs;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Limit on a shared thread. Without optimization, reading takes several times as long.
const LONGEST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 300 } else { 50 });

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// CPU time of the thread that parses a deep tree.
fn time_of_tree(text: &[u8]) -> Duration {
    let Ok(text) = std::str::from_utf8(text) else { return Duration::ZERO };
    let read = || {
        let before = processor_time();
        drop(read_tree_here(text, options(Lexing::USUAL)));
        processor_time() - before
    };
    crate::cost::with_room(text.as_bytes(), true, read).unwrap()
}

/// Tests each text whole and truncated, because shorter texts are parsed immediately.
#[test]
fn no_text_takes_long_on_a_shared_thread() {
    let cache = Cache::default();
    for (what, text) in bombs() {
        for cut in [usize::MAX, 15_000, 9_000, 5_000, 3_000, 1_000] {
            let text = &text.as_bytes()[..cut.min(text.len())];
            let before = processor_time();
            let is_read = cache.get(text, Lexing::USUAL, true).is_some();
            let took = processor_time() - before + if is_read { time_of_tree(text) } else { Duration::ZERO };
            assert!(took < LONGEST, "{what}, {} bytes: {took:?}, {is_read}", text.len());
        }
    }
}

#[test]
fn without_another_process_unproved_texts_are_too_complex() {
    for (what, text) in bombs() {
        let read = Cache::default().get_slowly(text.as_bytes(), Lexing::USUAL, true);
        if let Ok(script) = &*read {
            assert_eq!(script.statements.len(), 1, "{what}");
        } else {
            assert_eq!(*read, Err(Unreadable::TooComplex), "{what}");
        }
    }
}

#[test]
fn bulk_inserts_of_drivers_need_no_tree() {
    let list = vec!["123456"; 200_000].join(", ");
    let rows = (0..20_000).map(|n| format!("(3, {n}, 'name', now(), NULL)")).collect::<Vec<_>>().join(", ");
    for (text, expected) in [
        (format!("SELECT * FROM t WHERE id IN ({list})"), "-"),
        (format!("INSERT INTO t (shard, id, name, since, note) VALUES {rows}"), "insert:t calls:now"),
        (format!("INSERT INTO t (shard, id, name, since, note) VALUES {rows} RETURNING id;"), "insert:t calls:now"),
    ] {
        let read = Cache::default().get_slowly(text.as_bytes(), Lexing::USUAL, true);
        assert_eq!(show_result(&read), expected, "{}", &text[..60]);
        for write in read.as_ref().as_ref().unwrap().statements.iter().flat_map(|statement| &statement.writes) {
            let three = ColumnValue::Literal { text: "3".into(), kind: Some(crate::rows::ValueType::Integer) };
            assert_eq!(write.rows.values("shard", None), Some(&[three][..]));
            let too_many = Some(&[ColumnValue::TooMany][..]);
            assert_eq!((write.rows.values("id", None), write.rows.are_unread()), (too_many, false));
        }
    }
}

#[test]
fn tokens_report_no_rows_beyond_those_of_the_tree() {
    for (text, is_read) in [
        ("INSERT INTO t VALUES (3, 'x'), (-4, 'y')", true),
        ("insert into s.\"T\" (\"K\", v) values ( 3 , 'x' ) , (3,'')", true),
        ("INSERT INTO t (k, v) VALUES (3, abs(1)), (4, (1 + (2)))", true),
        ("INSERT INTO t (k, v[1]) VALUES (3, 1) ON CONFLICT DO NOTHING", true),
        ("INSERT INTO t (k) VALUES ('3'), (E'4'), ('it''s'), (5::int)", true),
        ("INSERT INTO t (k) VALUES (/* ' */ 3), (3 -- 4\n)", true),
        ("INSERT INTO t (k) VALUES (99999999999999999999), (3.0), (1e3)", true),
        ("INSERT INTO t VALUES (3, 4), (5)", false),
        ("INSERT INTO t VALUES ((r).*, 3)", false),
        ("INSERT INTO t (k) SELECT 3", false),
        ("INSERT INTO t (k) VALUES (3) LIMIT 1", false),
        ("INSERT INTO t (k) OVERRIDING USER VALUE VALUES (3)", false),
        ("INSERT INTO t DEFAULT VALUES", false),
    ] {
        let of = |script: Option<Script>| script.map(|script| script.statements[0].writes[0].rows.clone());
        let tokens = of(read_tokens(text.as_bytes(), Lexing::USUAL, true)).unwrap_or_else(Rows::unread);
        assert_eq!(!tokens.are_unread(), is_read, "{text}");
        let tree = of(analyze_rows(text.as_bytes(), Lexing::USUAL).ok()).unwrap();
        assert!(tokens.implies_no_more_than(&tree), "{text}: {tokens:?}, {tree:?}");
    }
    let text = format!("INSERT INTO t (k) VALUES (3), {}", vec!["(4)"; 100].join(","));
    let mut proved = read_tokens(text.as_bytes(), Lexing::USUAL, true).unwrap();
    // Tokens do not show which relations are read.
    let statement = std::sync::Arc::make_mut(&mut proved.statements[0]);
    assert!(std::mem::take(&mut statement.reads_more));
    assert_eq!(proved, analyze_rows(text.as_bytes(), Lexing::USUAL).unwrap());
}

/// Tokens report no key that depends on an operator or type resolved by the search path.
#[test]
fn keys_from_tokens_do_not_depend_on_the_search_path() {
    for key in [
        "3::int8",
        "'3'::int8",
        "'3' :: text",
        "int8 '3'",
        "uuid '3'",
        "varchar(9) '3'",
        "CAST(3 AS int8)",
        "CAST('3' AS text)",
        "(3)",
        "+3",
        "- 3",
        "-'3'",
        "@ 3",
        "3!",
        "3 = 3",
        "3 OPERATOR(public.+) 0",
        "'3'\n'4'",
        "E'3'",
        "U&'3'",
        "B'3'",
        "$1",
        "0x3",
        "three",
    ] {
        let text = format!("INSERT INTO t (k, v) VALUES ({key}, '3'::text)");
        let Some(proved) = read_tokens(text.as_bytes(), Lexing::USUAL, true) else { continue };
        let statement = &proved.statements[0];
        let found = statement.writes[0].rows.values("k", None);
        assert!(found.is_none() && !statement.keys_by_path, "{key}: {found:?}");
    }
    // The type of another column does not affect the key.
    let text = "INSERT INTO t (k, v) VALUES (3, '3'::text)";
    let proved = read_tokens(text.as_bytes(), Lexing::USUAL, true).unwrap();
    let three = ColumnValue::Literal { text: "3".to_owned(), kind: Some(ValueType::Integer) };
    assert_eq!(proved.statements[0].writes[0].rows.values("k", None), Some(&[three][..]));
    assert_eq!(proved.statements[0].writes[0].rows.values("v", None), None);
}

/// Reading in pieces yields the same statements and ranges as reading the whole.
#[test]
fn a_script_of_many_statements_is_read_piece_by_piece() {
    let script = "CREATE TABLE t (a int); -- a; b\n INSERT INTO t VALUES (';'); DO $$ BEGIN; END $$;\n/* ; */\
        CREATE RULE r AS ON INSERT TO t DO (DELETE FROM u; SELECT 1);; UPDATE t SET a = 1;";
    let function = "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END;";
    for (part, statements, times) in [(script.to_owned(), 5, 400), ([script, function].concat(), 6, 300)] {
        let text = part.repeat(times);
        let read = analyze(text.as_bytes(), Lexing::USUAL).unwrap();
        let one = analyze(part.as_bytes(), Lexing::USUAL).unwrap();
        assert_eq!((read.statements.len(), one.statements.len()), (times * statements, statements));
        for (index, statement) in read.statements.iter().enumerate() {
            let first = &one.statements[index % statements];
            let shift = index / statements * part.len();
            assert_eq!(statement.range, first.range.start + shift..first.range.end + shift);
            assert_eq!(show(statement), show(first));
        }
    }
}
