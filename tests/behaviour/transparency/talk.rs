//! Random sessions: a sequence of conversations. Each keeps the session usable.

use super::session::{Session, Step, Then};
use super::sql::{self, Scope};
use super::{copy, pipeline};
use crate::support::message::{self, query};
use fencegate_testing::dice::Dice;

/// Every session holds this token, so its writes to a fenced table are judged and admitted.
pub const TOKEN: &str = "-c lease.fence=7";

const READY: Then = Then::Until(b"Z");

pub fn session(seed: u64, scope: Scope) -> Session {
    let mut dice = Dice::new(seed);
    let clients = vec![parameters(&mut dice), vec![("options", TOKEN.to_owned())]];
    let mut steps = Vec::new();
    for _ in 0..dice.between(10, 40) {
        steps.extend(conversation(&mut dice, scope));
    }
    if dice.chance(10) {
        let tag = *dice.pick(b"zZ\x00\xff1pvR");
        steps.push(Step::new(&mut dice, vec![query("SELECT 1"), message::tagged(tag, b"body")], Then::End));
    }
    Session { seed, clients, steps }
}

fn parameters(dice: &mut Dice) -> Vec<(&'static str, String)> {
    let all = [
        ("client_encoding", "LATIN1"),
        ("client_encoding", "UTF8"),
        ("client_encoding", "no such"),
        ("DateStyle", "SQL, DMY"),
        ("TimeZone", "Asia/Tokyo"),
        ("application_name", "tëst"),
        ("standard_conforming_strings", "off"),
        ("search_path", "pg_catalog, public"),
        ("extra_float_digits", "2"),
        ("bytea_output", "escape"),
        ("my.own", "value"),
        ("replication", "false"),
    ];
    let mut chosen = vec![("options", TOKEN.to_owned())];
    for (name, value) in all {
        if dice.chance(if value == "no such" { 2 } else { 10 }) {
            chosen.push((name, value.to_owned()));
        }
    }
    chosen
}

fn conversation(dice: &mut Dice, scope: Scope) -> Vec<Step> {
    match dice.below(100) {
        0..32 => vec![simple(dice, scope)],
        32..52 => pipeline::statement(dice, scope),
        52..68 => vec![pipeline::storm(dice, scope)],
        68..76 => pipeline::step_by_step(dice, scope),
        76..84 => copy::conversation(dice),
        84..87 => cancel(dice),
        87..89 => timeout(dice),
        89..92 => notification(dice),
        92..95 => vec![pipeline::damaged(dice)],
        95..97 => vec![encoded(dice)],
        97..99 if scope == Scope::Everything => vec![function_call(dice)],
        _ => vec![Step::new(dice, vec![query("ROLLBACK")], READY), Step::new(dice, vec![query("RESET ALL")], READY)],
    }
}

/// Text that may change the token. A later write to a fenced table in the same string would be refused.
const CALLS: [&str; 15] = [
    "say(",
    "cursors()",
    "deep(",
    "set_config(",
    "twice(",
    "lo_put(",
    "DO ",
    "CALL ",
    "EXECUTE ",
    "FETCH ",
    "MOVE ",
    "COMMIT",
    "ROLLBACK",
    "END",
    "ABORT",
];

/// A simple query with one or several statements.
fn simple(dice: &mut Dice, scope: Scope) -> Step {
    let count = if dice.chance(75) { 1 } else { dice.between(2, 7) };
    let mut statements: Vec<String> = (0..count).map(|_| sql::statement(dice, scope)).collect();
    if let Some(first) = statements.iter().position(|text| CALLS.iter().any(|call| text.contains(call))) {
        let mut number = 0..;
        statements.retain(|text| number.next() <= Some(first) || !text.contains("ledger"));
    }
    Step::new(dice, vec![query(&statements.join(";\n"))], READY)
}

/// Leaves the session without a pending message, an open transaction or a timeout.
fn calm(dice: &mut Dice) -> Vec<Step> {
    let reset = "SET statement_timeout = 0; SET client_min_messages = notice";
    vec![
        Step::new(dice, Vec::new(), Then::Settled),
        Step::new(dice, vec![query("ROLLBACK")], READY),
        Step::new(dice, vec![query(reset)], READY),
    ]
}

fn cancel(dice: &mut Dice) -> Vec<Step> {
    let mut steps = calm(dice);
    let (sleep, cancelled) = match dice.below(4) {
        0 => (vec![query("SELECT pg_sleep(600)")], Then::Cancel(b"Z")),
        1 => (vec![query("BEGIN; SELECT 1; SELECT pg_sleep(600); SELECT 2")], Then::Cancel(b"Z")),
        2 => (vec![message::unnamed("SELECT pg_sleep(600)", &[]), message::sync()], Then::Cancel(b"Z")),
        _ => (vec![message::unnamed("SELECT pg_sleep(600)", &[]), message::flush()], Then::Cancel(b"E")),
    };
    steps.push(Step::new(dice, sleep, cancelled));
    steps.push(Step::new(dice, vec![query("SELECT 'after'")], Then::Settled));
    steps
}

fn timeout(dice: &mut Dice) -> Vec<Step> {
    let mut steps = calm(dice);
    // The server sends no answer before the timeout.
    let sleep = "BEGIN; SET LOCAL statement_timeout = 20; INSERT INTO work0 SELECT 1 FROM pg_sleep(600)";
    steps.push(Step::new(dice, vec![query(sleep)], READY));
    steps.push(Step::new(dice, vec![query("ROLLBACK")], READY));
    steps
}

/// One client listens, another notifies.
fn notification(dice: &mut Dice) -> Vec<Step> {
    let mut steps = calm(dice);
    steps.push(Step::new(dice, vec![query("UNLISTEN *; LISTEN between")], READY));
    let payload = "x".repeat(dice.below(7000));
    let mut notify = Step::new(dice, vec![query(&format!("NOTIFY between, '{payload}'"))], READY);
    notify.client = 1;
    steps.push(notify);
    steps.push(Step::new(dice, Vec::new(), Then::Until(b"A")));
    steps.push(Step::new(dice, vec![query("UNLISTEN *")], READY));
    steps
}

/// Text that is not UTF-8, or only claims to be.
fn encoded(dice: &mut Dice) -> Step {
    let encoding = dice.pick(&["LATIN1", "UTF8", "SQL_ASCII", "WIN1252"]);
    let texts: [&[u8]; 5] = [
        b"SELECT 'caf\xe9' AS \"na\xefve\"\0",
        b"SELECT 'caf\xe9', nothing\0",
        b"SELECT \xe9t\xe9 FROM wide -- \xff\0",
        b"SELEC\xe9 1\0",
        b"SELECT '\x80\x81', 1; SELECT say('notice', 'gar\xe7on'); SELECT 1 / 0\0",
    ];
    let text = dice.pick(&texts);
    let set = query(&format!("SET client_encoding = {encoding}"));
    Step::new(dice, vec![set, message::tagged(b'Q', text), query("SET client_encoding = UTF8")], Then::Settled)
}

/// Fast-path calls: of large objects, of an operator's function, and of a missing function.
fn function_call(dice: &mut Dice) -> Step {
    let number = |number: u32| number.to_be_bytes().to_vec();
    let object = number(4711 + dice.below(2) as u32);
    let length = dice.below(3000);
    let data = dice.bytes(length);
    let calls: [(u32, Vec<Vec<u8>>); 12] = [
        (715, vec![object.clone()]),
        (952, vec![object.clone(), number(0x0006_0000)]),
        (955, vec![number(0), data]),
        (954, vec![number(0), number(1000)]),
        (956, vec![number(0), number(0), number(0)]),
        (958, vec![number(0)]),
        (1004, vec![number(0), number(10)]),
        (953, vec![number(0)]),
        (964, vec![object]),
        (177, vec![number(1), number(2)]),
        (177, vec![number(1)]),
        (1, Vec::new()),
    ];
    let mut messages = vec![query("BEGIN")];
    for _ in 0..dice.between(1, 8) {
        let (function, arguments) = dice.pick(&calls);
        let arguments: Vec<_> = arguments.iter().map(|argument| Some(argument.as_slice())).collect();
        messages.push(message::function_call(*function, &arguments));
    }
    Step::new(dice, messages, Then::Settled)
}
