//! Statements too long or too deep for the parsers crash nothing and hide no write.

use super::world::{WRITE, World, codes};
use crate::support::fenced::ok;
use crate::support::message::{bind_text, execute, parse, query, sync};
use crate::support::share;
use std::time::Instant;

/// Maximum memory of the proxy for the texts, in KiB. Another process reads what is too much for the parsers.
const ALLOWED: u64 = 64 * 1024;

/// Length for texts that take the server quadratic time. The server parses each Parse message, even if it refuses it.
const QUADRATIC: usize = 20_000;

/// Sends each text with a write at its end, in both protocols, and asserts that it is refused and writes nothing.
fn hide_nothing(texts: Vec<(&str, String)>) {
    let mut world = World::new();
    let pid = world.fenced.proxy.pid();
    for (what, text) in share(texts, 6) {
        let started = Instant::now();
        let mut wire = world.hostile();
        let hiding = format!("{text}; {WRITE}");
        // The bystander is answered while the proxy reads the text.
        wire.send(&query(&hiding));
        world.is_unharmed();
        let frames = wire.read_until_ready();
        let refusal = codes(&frames);
        assert_eq!(refusal.len(), 1, "{what}: {frames:?}");
        let calling = format!("{text} /* */ ; SELECT run_tick()");
        let pipeline = [parse("", &calling, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat();
        let frames = wire.exchange(&pipeline);
        assert_eq!(codes(&frames).len(), 1, "{what}, extended: {frames:?}");
        println!("{what}: {} bytes, {refusal:?}, {:?}", text.len(), started.elapsed());
        assert_eq!(world.fenced.postgres.value("SELECT count(*) FROM jobs"), "0", "{what}");
    }
    assert_eq!(world.fenced.proxy.pid(), pid);
    world.ends_well(ALLOWED);
}

#[test]
fn sixty_four_thousand_terms() {
    let terms = |term: &str, between: &str| vec![term; 64_000].join(between);
    hide_nothing(vec![
        ("a sum", format!("SELECT {}", terms("1", "+"))),
        ("a sum of calls", format!("SELECT {}", terms("abs(1)", "+"))),
        ("OR", format!("SELECT {}", terms("true", " OR "))),
        ("AND NOT", format!("SELECT {}", terms("true", " AND NOT "))),
        ("UNION", terms("SELECT 1", " UNION ALL ")),
        ("a sum in an UPDATE", format!("UPDATE free SET n = {}", terms("1", "+"))),
        ("a sum that needs the tree", format!("UPDATE free SET n = {} RETURNING n", terms("1", "+"))),
        ("joins", format!("SELECT 1 FROM {}", terms("free", " NATURAL JOIN "))),
        ("casts", format!("SELECT 1{}", "::int".repeat(64_000))),
        ("subscripts", format!("SELECT (ARRAY[1]){}", "[1]".repeat(64_000))),
        ("minus", format!("SELECT {}1", "- ".repeat(64_000))),
        ("concatenation", format!("SELECT {}", terms("'x'", "||"))),
    ]);
}

#[test]
fn nested_nine_hundred_times() {
    hide_nothing(nested(900));
}

#[test]
fn nested_a_hundred_thousand_times() {
    hide_nothing(nested(100_000));
}

fn nested(depth: usize) -> Vec<(&'static str, String)> {
    let around =
        |open: &str, middle: &str, close: &str| format!("SELECT {}{middle}{}", open.repeat(depth), close.repeat(depth));
    vec![
        ("parentheses", around("(", "1", ")")),
        ("open parentheses", around("(", "1", "")),
        ("brackets", around("ARRAY[", "1", "]")),
        ("CASE", around("CASE WHEN true THEN ", "1", " END")),
        ("subselects", around("(SELECT ", "1", ")")),
        ("FROM", format!("SELECT 1 FROM {}(SELECT 1) x{}", "(SELECT 1 FROM ".repeat(depth), ") x".repeat(depth))),
        ("calls", around("abs(", "1", ")")),
        ("casts", around("CAST(", "1", " AS int)")),
        ("rows", around("ROW(", "1", ")")),
        ("NOT", around("NOT ", "true", "")),
        ("JSON", format!("SELECT '{}{}'::json", "[".repeat(depth), "]".repeat(depth))),
        ("WITH", format!("{}SELECT 1{}", "WITH x AS (".repeat(depth), ") SELECT 1".repeat(depth))),
        ("EXPLAIN", format!("{}SELECT 1", "EXPLAIN ".repeat(depth))),
        ("comments", format!("SELECT 1 {}{}", "/*".repeat(depth.min(QUADRATIC)), "*/".repeat(depth.min(QUADRATIC)))),
        ("open comments", format!("SELECT 1 {}", "/*".repeat(depth.min(QUADRATIC)))),
        ("dollar quotes", format!("SELECT 1, {}", (0..depth).map(|n| format!("$q{n}$")).collect::<String>())),
    ]
}

#[test]
fn lists_of_megabytes() {
    let list = |item: &str, bytes: usize| vec![item; bytes / (item.len() + 1)].join(",");
    hide_nothing(vec![
        ("IN of 10 MB", format!("SELECT 1 WHERE 1 IN ({})", list("123456", 10 << 20))),
        ("IN of 20 MB", format!("SELECT 1 WHERE 1 IN ({})", list("123456", 20 << 20))),
        ("IN of 3.9 MB", format!("SELECT 1 WHERE 1 IN ({})", list("123456", 3_900_000))),
        ("IN of 1 MB that needs the tree", format!("SELECT 1 WHERE 1 IN ({}) FOR UPDATE", list("12", 1_000_000))),
        ("VALUES of 3.9 MB", format!("INSERT INTO free VALUES {}", list("(1)", 3_900_000))),
        (
            "VALUES of 1 MB that need the tree",
            format!("INSERT INTO free VALUES {} RETURNING 1", list("(1)", 1_000_000)),
        ),
        ("calls of 1 MB", format!("SELECT {}", list("abs(1)", 1_000_000))),
        ("tables of 1 MB", format!("SELECT 1 FROM {}", list("free", 1_000_000))),
        ("columns of 200 kB", format!("CREATE TABLE wide ({})", list("c int", 200_000))),
        ("parameters", format!("SELECT {}", (1..=10_000).map(|n| format!("${n}::int")).collect::<Vec<_>>().join(","))),
        ("an array", format!("SELECT '{{{}}}'::int[]", list("1", 3_000_000))),
        ("operators", format!("SELECT 1 {} 1", "+".repeat(QUADRATIC))),
        ("a literal", format!("SELECT '{}'", "''".repeat(1_900_000))),
        ("white space", format!("SELECT {} 1", " \n".repeat(1_900_000))),
        ("line comments", format!("SELECT 1 {}", "--\n".repeat(1_200_000))),
        ("semicolons", format!("SELECT 1 {}", ";".repeat(3_900_000))),
        ("a quoted name", format!("SELECT 1 AS \"{}\"", "\"\"".repeat(1_900_000))),
    ]);
}

#[test]
fn many_statements_in_one_string() {
    let savepoints: String = (0..100_000).map(|number| format!("SAVEPOINT s{};", number % 10)).collect();
    hide_nothing(vec![
        ("50,000 statements", "SELECT 1;".repeat(50_000)),
        ("5,000 writes elsewhere", "DELETE FROM free;".repeat(5_000)),
        ("5,000 values of the token", "SET lease.fence=47;".repeat(5_000)),
        ("100,000 savepoints", format!("BEGIN;{savepoints}")),
        ("2,000 prepared", (0..2_000).map(|number| format!("PREPARE p{number} AS SELECT 1;")).collect()),
    ]);
}

/// The parser's trees do not take the proxy's own memory, for any number of sessions with long texts.
#[test]
fn many_sessions_at_once() {
    const SESSIONS: usize = 8;
    let world = World::new();
    let text = format!("SELECT 1 WHERE 1 IN ({}) FOR UPDATE", vec!["12"; 60_000].join(","));
    let mut wires: Vec<_> = (0..SESSIONS).map(|_| world.hostile()).collect();
    wires.iter_mut().for_each(|wire| wire.send(&query(&text)));
    for wire in &mut wires {
        assert_eq!(codes(&wire.read_until_ready()), Vec::<String>::new());
    }
    drop(wires);
    world.ends_well(ALLOWED);
}

/// Each savepoint has its own message. The proxy's memory for savepoints is bounded.
#[test]
fn savepoints_one_by_one() {
    let world = World::new();
    let mut wire = world.hostile();
    ok(&mut wire, "BEGIN");
    let batch = 1_000;
    for _ in 0..20 {
        wire.send(&query("SAVEPOINT s; SET LOCAL lease.fence = 46").repeat(batch));
        (0..batch).for_each(|_| drop(wire.read_until_ready()));
    }
    assert_eq!(codes(&wire.query(WRITE)), ["LF001"]);
    ok(&mut wire, "ROLLBACK");
    drop(wire);
    world.ends_well(32 * 1024);
}

/// The proxy analyzes plain statements that are too large for the parsers by their tokens: reads pass, and permitted
/// writes pass.
#[test]
fn plain_statements_of_any_size_are_analyzed() {
    let mut world = World::new();
    let mut wire = world.hostile();
    // A little longer than the parsers' limit of 4 MiB. Longer texts would cost the server more, but not the proxy.
    let list = vec!["123456"; 700_000].join(",");
    let rows = vec!["(1)"; 1_100_000].join(",");
    let (sum, deep) = (vec!["1"; 64_000].join("+"), format!("{}1{}", "(".repeat(64_000), ")".repeat(64_000)));
    let texts = vec![
        (format!("SELECT count(*) FROM jobs WHERE n IN ({list})"), ""),
        (format!("DELETE FROM free WHERE n IN ({list})"), ""),
        (format!("INSERT INTO free VALUES {rows}"), ""),
        (format!("INSERT INTO free VALUES {rows} RETURNING 1"), ""),
        (format!("DELETE FROM jobs WHERE n IN ({list})"), "LF001"),
        (format!("INSERT INTO jobs VALUES {rows} ON CONFLICT DO NOTHING"), "LF001"),
        // The server's own limits: memory of its grammar, or its stack.
        (format!("SELECT {deep} FROM jobs"), "42601"),
        (format!("SELECT {sum} FROM jobs"), "54001"),
        (format!("UPDATE jobs SET n = 1 WHERE n IN ({list})"), "LF001"),
        (format!("SELECT run_tick() WHERE 1 IN ({list})"), "LF004"),
        (format!("SELECT 1 FROM jobs WHERE n IN ({list}) FOR UPDATE"), "LF004"),
    ];
    for (text, expected) in share(texts, 8) {
        let started = Instant::now();
        let frames = wire.query(&text);
        assert_eq!(codes(&frames).join(" "), expected, "{}: {frames:?}", &text[..40]);
        let frames = wire.exchange(&[parse("", &text, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat());
        assert_eq!(codes(&frames).join(" "), expected, "{}, extended: {frames:?}", &text[..40]);
        println!("{}: {} bytes, {:?}", &text[..40], text.len(), started.elapsed());
        world.is_unharmed();
    }
    drop(wire);
    world.ends_well(ALLOWED);
}
