//! Within a transaction, a write to the same resource under another token is LF003; other writes are not.

use super::MODES;
use crate::support::fenced::{Fenced, code_in, ok};
use crate::support::message::{sync, unnamed};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE bills (n int); \
    CREATE FUNCTION become(token text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('lease.fence', token, false) $$";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n  - {name: billing, tables: [public.bills]}\n";

const JOB: &str = "INSERT INTO jobs VALUES (1)";
const BILL: &str = "INSERT INTO bills VALUES (1)";

/// Statements, each with its SQLSTATE. The session starts with token `LOW`.
type Scenario = &'static [(&'static str, &'static str)];

const SCENARIOS: &[Scenario] = &[
    // Ways to set the token.
    &[("BEGIN", ""), (JOB, ""), ("SET lease.fence = HIGH", ""), (JOB, "LF003"), (JOB, "25P02"), ("COMMIT", "")],
    &[("BEGIN", ""), (JOB, ""), ("SET LOCAL lease.fence = HIGH", ""), (JOB, "LF003"), ("ROLLBACK", ""), (JOB, "")],
    &[("BEGIN", ""), (JOB, ""), ("SELECT set_config('lease.fence', 'HIGH', false)", ""), (JOB, "LF003")],
    &[("BEGIN", ""), (JOB, ""), ("SELECT become('HIGH')", ""), (JOB, "LF003")],
    &[("BEGIN", ""), ("SET lease.fence = HIGH", ""), (JOB, ""), ("SET lease.fence = LOW", ""), (JOB, "LF003")],
    &[("BEGIN", ""), ("SET LOCAL lease.fence = HIGH", ""), (JOB, ""), ("RESET lease.fence", ""), (JOB, "LF002")],
    &[
        ("BEGIN", ""),
        (JOB, ""),
        ("SET lease.fence = HIGH", ""),
        ("DELETE FROM jobs", "LF003"),
        ("ROLLBACK", ""),
        ("PREPARE p AS INSERT INTO jobs VALUES (1)", ""),
        ("BEGIN", ""),
        ("EXECUTE p", ""),
        ("SET lease.fence = HIGH", ""),
        ("EXECUTE p", "LF003"),
    ],
    // No second write in the transaction, or a write after it.
    &[("BEGIN", ""), (JOB, ""), ("SET LOCAL lease.fence = HIGH", ""), ("SELECT 1", ""), ("COMMIT", ""), (JOB, "")],
    &[("BEGIN", ""), (JOB, ""), ("SET lease.fence = HIGH", ""), ("COMMIT", ""), (JOB, "")],
    &[("BEGIN", ""), (JOB, ""), ("COMMIT AND CHAIN", ""), ("SET lease.fence = HIGH", ""), (JOB, ""), ("COMMIT", "")],
    &[("BEGIN", ""), (JOB, ""), ("ROLLBACK AND CHAIN", ""), ("SET lease.fence = HIGH", ""), (JOB, ""), ("COMMIT", "")],
    &[(JOB, ""), ("SET lease.fence = HIGH", ""), ("BEGIN", ""), (JOB, ""), ("COMMIT", "")],
    // Savepoints.
    &[
        ("BEGIN", ""),
        (JOB, ""),
        ("SAVEPOINT a", ""),
        ("SET lease.fence = HIGH", ""),
        (JOB, "LF003"),
        ("ROLLBACK TO a", ""),
        (JOB, ""),
        ("COMMIT", ""),
    ],
    &[
        ("BEGIN", ""),
        ("SAVEPOINT a", ""),
        ("SET lease.fence = HIGH", ""),
        ("ROLLBACK TO a", ""),
        (JOB, ""),
        ("COMMIT", ""),
    ],
    // The first write is undone, but its locks and admission may remain, so the second write is rejected.
    &[
        ("BEGIN", ""),
        ("SAVEPOINT a", ""),
        (JOB, ""),
        ("ROLLBACK TO a", ""),
        ("SET lease.fence = HIGH", ""),
        (JOB, "LF003"),
    ],
    // Each resource has its own token.
    &[
        ("SET lease.fence = 'scheduler=LOW, billing=LOW'", ""),
        ("BEGIN", ""),
        (JOB, ""),
        ("SET lease.fence = 'scheduler=LOW, billing=HIGH'", ""),
        (JOB, ""),
        (BILL, ""),
        ("COMMIT", ""),
    ],
    &[
        ("BEGIN", ""),
        (JOB, ""),
        ("SET lease.fence = 'scheduler=HIGH, billing=HIGH'", ""),
        (BILL, ""),
        (JOB, "LF003"),
        ("COMMIT", ""),
        (JOB, ""),
    ],
    &[("BEGIN", ""), (JOB, ""), ("SET lease.fence = 'scheduler=LOW'", ""), (JOB, ""), (BILL, "LF002")],
    &[
        ("SET lease.fence = 'scheduler=LOW, billing=HIGH'", ""),
        ("WITH j AS (INSERT INTO jobs VALUES (1)) INSERT INTO bills VALUES (1)", ""),
        ("BEGIN", ""),
        (JOB, ""),
        ("SET LOCAL lease.fence = HIGH", ""),
        ("WITH j AS (INSERT INTO jobs VALUES (1)) INSERT INTO bills VALUES (1)", "LF003"),
    ],
];

#[test]
fn one_by_one() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut low = 1;
    for scenario in SCENARIOS {
        for (mode, message) in MODES {
            for ahead in [false, true] {
                let mut wire = world.holder(low);
                let texts: Vec<String> = scenario.iter().map(|(text, _)| with_tokens(text, low)).collect();
                let messages: Vec<Vec<u8>> = texts.iter().map(|text| message(text)).collect();
                let replies: Vec<_> = if ahead {
                    wire.send(&messages.concat());
                    messages.iter().map(|_| wire.read_until_ready()).collect()
                } else {
                    messages.iter().map(|message| wire.exchange(message)).collect()
                };
                let codes: Vec<String> = replies.iter().map(|frames| code_in(frames)).collect();
                let expected: Vec<&str> = scenario.iter().map(|(_, code)| *code).collect();
                assert_eq!(codes, expected, "{texts:?}, {mode}, ahead: {ahead}");
                low += 2;
            }
        }
    }
}

/// The proxy judges a string before the server runs it, so it cannot know whether a COMMIT in the string succeeds.
#[test]
fn in_one_message() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let statements: &[&[&str]] = &[
        &[JOB, "SET lease.fence = HIGH", JOB],
        &[JOB, "SET LOCAL lease.fence = HIGH", JOB],
        &[JOB, "SELECT set_config('lease.fence', 'HIGH', true)", JOB],
        &["BEGIN", JOB, "SET lease.fence = HIGH", JOB, "COMMIT"],
    ];
    let mut low = 1;
    for texts in statements {
        let texts: Vec<String> = texts.iter().map(|text| with_tokens(text, low)).collect();
        let mut wire = world.holder(low);
        assert_eq!(code_in(&wire.query(&texts.join("; "))), "LF003", "{texts:?}");
        wire.query("ROLLBACK");
        let pipeline: Vec<u8> = texts.iter().flat_map(|text| unnamed(text, &[])).chain(sync()).collect();
        assert_eq!(code_in(&wire.exchange(&pipeline)), "LF003", "{texts:?}");
        wire.query("ROLLBACK");
        assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0", "{texts:?}");
        ok(&mut wire, JOB);
        ok(&mut wire, "DELETE FROM jobs");
        low += 2;
    }
    let mut wire = world.holder(low);
    let text = with_tokens(&format!("{JOB}; COMMIT; SET lease.fence = HIGH; {JOB}"), low);
    assert_eq!(code_in(&wire.query(&text)), "LF003");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "1");
}

fn with_tokens(text: &str, low: i64) -> String {
    text.replace("LOW", &low.to_string()).replace("HIGH", &(low + 1).to_string())
}

/// Each Sync ends a transaction. Drivers send the next one before the reply.
#[test]
fn the_writes_of_an_earlier_pipeline_count_no_longer() {
    let fenced = Fenced::start(&format!("{SCHEMA}; CREATE TABLE free (n int)"), POLICIES);
    let mut leader = fenced.holder(7);
    let second = ["INSERT INTO free VALUES (1)", "SET lease.fence = 8", JOB].map(|sql| unnamed(sql, &[])).concat();
    leader.send(&[unnamed(JOB, &[]), sync(), second, sync()].concat());
    for _ in 0..2 {
        let frames = leader.read_until_ready();
        assert_eq!(code_in(&frames), "", "{frames:?}");
    }
}
