//! Long and deeply nested reads by object-relational mappers work as without a proxy.

use crate::support::Wire;
use crate::support::fenced::Fenced;
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::server::SUPERUSER;
use crate::support::wire::{Frame, error_in};

const SCHEMA: &str = "CREATE TABLE ledger (id int);
    CREATE TABLE read (id int, label text, at timestamptz, payload jsonb, amount numeric);
    INSERT INTO read VALUES (1, 'one', '2026-01-01', '{}', 1), (2, 'for you', '2026-01-02', NULL, 2);
    CREATE FUNCTION own(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'";
const POLICIES: &str = "version: 1\nresources:\n  - {name: ledger, tables: [public.ledger]}\n";

const ARMS: usize = 1_000;

/// An arm of `qs1.union(*others)` in Django.
const ARM: &str = "SELECT \"read\".\"id\" AS \"col1\", UPPER(\"read\".\"label\") AS \"col2\", \
    (\"read\".\"at\" AT TIME ZONE 'UTC')::date AS \"col3\" FROM \"read\" WHERE \"read\".\"id\" = 1";

fn arms(arm: &str, between: &str) -> String {
    vec![arm; ARMS].join(between)
}

/// Query strings, each with its kind.
fn reads() -> Vec<(&'static str, String)> {
    let union = arms(&format!("({ARM})"), " UNION ALL ");
    let called = union.replace("UPPER(", "own(").replace("\"label\"", "\"id\"");
    let nested = |operation: &str| "(".repeat(ARMS - 1) + ARM + &format!(" {operation} {ARM})").repeat(ARMS - 1);
    let wide: Vec<String> = (0..40).map(|n| format!("\"read\".\"id\" AS \"column_{n}\"")).collect();
    let wide = format!("(SELECT {} FROM \"read\")", wide.join(", "));
    let any = |open: &str, inner: &str, close: &str| open.repeat(ARMS) + inner + &close.repeat(ARMS);
    let select = |condition: &str| format!("SELECT id, own(id) FROM read WHERE {condition} AND label <> 'config'");
    let whens: String = (0..ARMS).map(|n| format!(" WHEN id = {n} THEN own({n})")).collect();
    let numbers: Vec<String> = (0..ARMS).map(|n| n.to_string()).collect();
    vec![
        ("UNION ALL in parentheses", union.clone()),
        ("UNION ALL without them", arms(ARM, " UNION ALL ")),
        ("UNION ALL that calls a function", called.clone()),
        ("UNION ALL of many columns", vec![wide.as_str(); ARMS].join(" UNION ALL ")),
        ("UNION with a string", format!("{union} UNION SELECT 1, 'for config', NULL ORDER BY 1")),
        ("EXCEPT", arms(&format!("({ARM})"), " EXCEPT ")),
        ("INTERSECT", arms(&format!("({ARM})"), " INTERSECT ")),
        ("EXPLAIN", format!("EXPLAIN (COSTS off) {union}")),
        ("EXPLAIN of a call", format!("EXPLAIN (COSTS off) {called}")),
        ("a cursor", format!("DECLARE django_1 NO SCROLL CURSOR WITH HOLD FOR {union}")),
        ("a cursor over calls", format!("DECLARE django_2 CURSOR FOR {called}; FETCH 2 FROM django_2")),
        ("WITH", format!("WITH x AS ({union}) SELECT count(*) FROM x")),
        ("a subquery", format!("SELECT count(*) FROM ({called}) x")),
        (
            "COUNT over a locked subquery",
            format!("SELECT id FROM read WHERE id IN (SELECT col1 FROM ({called}) x) FOR UPDATE"),
        ),
        ("nested UNION", nested("UNION")),
        ("nested EXCEPT", nested("EXCEPT")),
        ("nested OR", select(&any("(", "id = 0", " OR id = 1)"))),
        ("nested AND and OR", select(&any("((", "id = 1", " OR id = 2) AND id > 0)"))),
        ("flat OR", select(&format!("({})", arms("(id = 1 AND label = 'one')", " OR ")))),
        ("NOT", select(&any("NOT (", "id = 1", ")"))),
        ("sums in parentheses", format!("SELECT own({}) FROM read", any("(", "id", " + 1)"))),
        ("a concatenation", format!("SELECT own(id), {} FROM read", arms("label", " || "))),
        ("COALESCE", format!("SELECT own(id), {} FROM read", any("COALESCE(NULL, ", "label", ")"))),
        ("CASE of many branches", format!("SELECT CASE{whens} ELSE own(0) END FROM read")),
        ("nested CASE", format!("SELECT own(id), {} FROM read", any("CASE WHEN id = 0 THEN 0 ELSE ", "id", " END"))),
        ("an IN list", select(&format!("id IN ({})", numbers.join(", ")))),
        ("VALUES", format!("SELECT own(v) FROM (VALUES ({})) x(v)", numbers.join("), ("))),
    ]
}

/// The error, if any, and the types of all messages.
fn answer(frames: &[Frame]) -> (Option<String>, Vec<u8>) {
    let error = error_in(frames).map(|error| format!("{} {}", error.code(), error.message()));
    (error, frames.iter().map(|frame| frame.tag).collect())
}

#[test]
fn reads_of_a_thousand_arms_pass() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut direct = Wire::login(&world.postgres.address(), SUPERUSER, "postgres");
    let mut proxied = world.login();
    for (number, (what, text)) in reads().into_iter().enumerate() {
        let simple = |wire: &mut Wire| {
            wire.query("BEGIN");
            let frames = wire.query(&text);
            wire.query("ROLLBACK");
            answer(&frames)
        };
        assert_eq!(simple(&mut proxied), simple(&mut direct), "{what}");
        // Parse messages use the same parser, so some of the texts suffice.
        if number % 5 != 0 {
            continue;
        }
        let extended = |wire: &mut Wire| {
            wire.query("BEGIN");
            let frames =
                wire.exchange(&[parse("", &text, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat());
            wire.query("ROLLBACK");
            answer(&frames)
        };
        assert_eq!(extended(&mut proxied), extended(&mut direct), "{what}, extended");
    }
}

/// The reads pass because the proxy can parse them, not because they are long.
#[test]
fn writes_within_a_thousand_arms_need_their_token() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut session = world.login();
    for (number, (what, query)) in reads().into_iter().enumerate() {
        if !query.starts_with(['(', 'S']) {
            continue;
        }
        let text = match number % 3 {
            0 => format!("WITH w AS (INSERT INTO ledger VALUES (1) RETURNING id) {query}"),
            1 => format!("EXPLAIN ANALYZE WITH w AS (DELETE FROM ledger RETURNING id) {query}"),
            _ => format!("{query}; INSERT INTO ledger VALUES (1)"),
        };
        let error = error_in(&session.query(&text)).unwrap_or_else(|| panic!("{what}"));
        assert!(["LF002", "LF004"].contains(&error.code()), "{what}: {error:?}");
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM ledger"), "0");
}
