//! The state of the session when the rejected statement arrives.

use crate::rejections::conversation::Step;
use crate::support::message::{bind_text, execute, flush, parse, query, sync, unnamed};

pub const NOTE: &str = "INSERT INTO notes VALUES ('kept?')";
const COPY_IN: &str = "COPY notes FROM STDIN";

/// A state, and the steps to enter and leave it.
pub struct State {
    pub name: &'static str,
    pub enter: fn() -> Vec<Step>,
    /// Runs before the rejected statement, in the same string or pipeline.
    pub prefix: &'static [&'static str],
    pub leave: fn() -> Vec<Step>,
    /// A transaction block is open.
    pub is_block: bool,
    /// The transaction has failed: the server refuses every statement until it ends.
    pub failed: bool,
    /// The server reads COPY data and ends the session if another message arrives.
    pub copying: bool,
}

const IDLE: State = State {
    name: "idle",
    enter: Vec::new,
    prefix: &[],
    leave: Vec::new,
    is_block: false,
    failed: false,
    copying: false,
};

pub const FAILED: State = State {
    name: "a failed transaction",
    enter: || queries(&["BEGIN", NOTE, "SELECT nonsense"]),
    leave: || queries(&["SELECT 'refused'"]),
    is_block: true,
    failed: true,
    ..IDLE
};

pub const STATES: &[State] = &[
    IDLE,
    State { name: "an implicit transaction", prefix: &[NOTE], ..IDLE },
    State {
        name: "an explicit transaction",
        enter: || queries(&["BEGIN", NOTE]),
        leave: || queries(&["SELECT 'refused'", NOTE]),
        is_block: true,
        ..IDLE
    },
    State {
        name: "after a savepoint",
        enter: || queries(&["BEGIN", "INSERT INTO notes VALUES ('kept')", "SAVEPOINT a", NOTE]),
        leave: || queries(&["SELECT 'refused'", "ROLLBACK TO a", "SELECT 'goes on'", NOTE]),
        is_block: true,
        ..IDLE
    },
    FAILED,
    State {
        name: "a cursor by DECLARE",
        enter: || queries(&["BEGIN", NOTE, "DECLARE c CURSOR FOR VALUES (1), (2)"]),
        leave: || queries(&["FETCH 1 FROM c"]),
        is_block: true,
        ..IDLE
    },
    State { name: "a cursor by Bind", enter: bind_cursor, leave: resume_cursor, is_block: true, ..IDLE },
    State {
        name: "during COPY FROM by Query",
        enter: || vec![Step::Until(query(COPY_IN), b'G')],
        copying: true,
        ..IDLE
    },
    State {
        name: "during COPY FROM by Execute",
        enter: || vec![Step::Until([unnamed(COPY_IN, &[]), flush()].concat(), b'G')],
        copying: true,
        ..IDLE
    },
    State { name: "right after COPY FROM", prefix: &[COPY_IN], ..IDLE },
    State { name: "right after COPY TO", prefix: &["COPY (SELECT 'out') TO STDOUT"], ..IDLE },
];

fn queries(texts: &[&str]) -> Vec<Step> {
    texts.iter().map(|text| Step::Ready(query(text), 1)).collect()
}

fn bind_cursor() -> Vec<Step> {
    let rows = parse("rows", "VALUES (1), (2), (3)", &[]);
    let start = [rows, bind_text("cursor", "rows", &[]), execute("cursor", 1), sync()].concat();
    vec![Step::Ready(query("BEGIN"), 1), Step::Ready(start, 1)]
}

fn resume_cursor() -> Vec<Step> {
    vec![Step::Ready([execute("cursor", 1), sync()].concat(), 1)]
}
