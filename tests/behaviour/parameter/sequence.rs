//! Random sequences of statements that set `lease.fence` in every way that PostgreSQL offers, and the messages that
//! send them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt;

/// The actions of one session.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub startup: Startup,
    pub steps: Vec<Step>,
    /// Number of steps that are repeated in a separate session, to be probed there.
    pub again: Option<usize>,
}

/// Source of the value at startup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Startup {
    Nowhere,
    Parameter(&'static str),
    Options(&'static str),
    Role,
    Database,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub action: Action,
    pub probe: Probe,
}

/// Statements, and how they are sent.
#[derive(Clone, Debug)]
pub enum Action {
    /// One string.
    Simple(Vec<String>),
    /// One simple query after the other, without waiting.
    Queries(Vec<String>),
    /// Parse, Bind, Execute and Sync for each.
    Extended(Vec<String>),
    /// Like `Extended`, with one Sync for all.
    Pipeline(Vec<String>),
    /// Like `Pipeline`, but the last statement is a simple query before the Sync.
    PipelineThenSimple(Vec<String>),
    /// Creates the prepared statement `s`, or fails if it exists.
    Parse(String),
    /// Runs the prepared statement `s`.
    Run,
    Close,
    /// Creates the portal `p`.
    Bind(String),
    /// Runs the portal `p` for one row.
    Execute,
}

/// How to find out which value the proxy would enforce.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Probe {
    /// No probe, because querying the server would correct the proxy's value.
    No,
    After {
        ahead: bool,
        extended: bool,
    },
    /// In the same string or pipeline.
    Within,
}

pub fn sequences() -> impl Strategy<Value = Sequence> {
    let again = prop_oneof![7 => Just(None), 1 => (1..30usize).prop_map(Some)];
    let steps = prop_oneof![3 => vec(step(text().boxed()), 1..=30), 1 => vec(step(calm_text().boxed()), 1..=30)];
    (startup(), steps, again).prop_map(|(startup, mut steps, again)| {
        let last = steps.last_mut().expect("a step");
        if last.probe == Probe::No {
            last.probe = Probe::After { ahead: false, extended: false };
        }
        Sequence { startup, steps, again }
    })
}

fn startup() -> impl Strategy<Value = Startup> {
    use Startup::{Database, Nowhere, Options, Parameter, Role};
    select(vec![
        Nowhere,
        Parameter("5"),
        Options("-c lease.fence=6"),
        Parameter("scheduler=7, shard/3=8"),
        Options(r"-c lease.fence=shard/3=9,\ scheduler=10"),
        Role,
        Database,
    ])
}

fn step(text: BoxedStrategy<String>) -> impl Strategy<Value = Step> {
    (action(text), probe()).prop_map(|(action, probe)| Step { action, probe })
}

fn probe() -> impl Strategy<Value = Probe> {
    prop_oneof![
        6 => Just(Probe::No),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(ahead, extended)| Probe::After { ahead, extended }),
        1 => Just(Probe::Within),
    ]
}

fn action(text: BoxedStrategy<String>) -> impl Strategy<Value = Action> {
    let texts = vec(text.clone(), 2..=4);
    prop_oneof![
        6 => text.clone().prop_map(|text| Action::Simple(vec![text])),
        2 => texts.clone().prop_map(Action::Simple),
        2 => texts.clone().prop_map(Action::Queries),
        4 => text.clone().prop_map(|text| Action::Extended(vec![text])),
        1 => texts.clone().prop_map(Action::Extended),
        2 => texts.clone().prop_map(Action::Pipeline),
        1 => texts.clone().prop_map(Action::PipelineThenSimple),
        1 => text.clone().prop_map(Action::Parse),
        1 => Just(Action::Run),
        1 => Just(Action::Close),
        1 => text.clone().prop_map(Action::Bind),
        1 => Just(Action::Execute),
    ]
}

/// Each `?` stands for a value.
fn text() -> impl Strategy<Value = String> {
    let template = prop_oneof![
        4 => select(SETS),
        2 => select(CALLS),
        4 => select(TRANSACTIONS),
        2 => select(PREPARED),
        1 => select(CODE),
        1 => select(OTHERS),
    ];
    (template, select(VALUES), select(VALUES))
        .prop_map(|(template, one, two)| template.replacen('?', one, 1).replace('?', two))
}

/// Like [`text`], but few statements fail: for transactions with many savepoints.
fn calm_text() -> impl Strategy<Value = String> {
    (prop_oneof![select(CALM), select(SAVEPOINTS)], 40..60u32)
        .prop_map(|(template, token): (&str, u32)| template.replace('?', &token.to_string()))
}

const CALM: &[&str] = &[
    "SET lease.fence = ?",
    "SET LOCAL lease.fence = ?",
    "SET lease.fence = 'scheduler=?'",
    "SELECT set_config('lease.fence', '?', true)",
    "SELECT become('?')",
    "RESET lease.fence",
    "SELECT 1",
];

const SAVEPOINTS: &[&str] = &[
    "BEGIN",
    "SAVEPOINT a",
    "SAVEPOINT a",
    "SAVEPOINT b",
    "RELEASE a",
    "ROLLBACK TO a",
    "ROLLBACK TO a",
    "ROLLBACK TO b",
    "COMMIT",
];

const VALUES: &[&str] = &["47", "48", "49", "scheduler=50, shard/3=51", "shard/3=52", "", "0", "x"];

const SETS: &[&str] = &[
    "SET lease.fence = '?'",
    "SET LOCAL lease.fence = '?'",
    "SET SESSION \"Lease.FENCE\" TO '?'",
    "SET lease.fence = 47",
    "SET lease.fence = 1, 2",
    "SET lease.fence TO DEFAULT",
    "SET LOCAL lease.fence TO DEFAULT",
    "SET lease.fence FROM CURRENT",
    "SET LOCAL lease.fence FROM CURRENT",
    "RESET lease.fence",
    "RESET ALL",
    "DISCARD ALL",
    "SELECT set_config('lease.fence', '?', false)",
    "SELECT set_config('lease.fence', '?', true)",
    "SELECT pg_catalog.set_config('Lease.Fence', '?', false) AS was",
    "SELECT set_config('lease.fence', NULL, false)",
    "SELECT set_config('lease.fence', '?', NULL)",
    "SELECT set_config('lease.fence', '?', false) LIMIT 0",
    "SELECT set_config('lease.fence', '?', false) WHERE false",
    "SELECT set_config('lease.fence', '?', false), set_config('lease.fence', '?', true)",
    "SELECT set_config('TimeZone', 'UTC', false)",
    "SELECT set_config('TimeZone', become('?'), false)",
];

const CALLS: &[&str] = &[
    "SELECT set_config('lease.' || 'fence', '?', false)",
    "SELECT become('?')",
    "SELECT become('?') FROM generate_series(1, 3)",
    "SELECT become_locally('?')",
    "SELECT become_by_set('?')",
    "SELECT for_a_while()",
    "SELECT for_a_while_and_then('?')",
    "SELECT in_vain('?')",
    "SELECT become('?'), 1/(random()*0)::int",
    "INSERT INTO free SELECT become('?')",
    "INSERT INTO free VALUES ('a') RETURNING become('?')",
    "INSERT INTO free SELECT set_config('lease.fence', '?', false)",
    "WITH it AS (SELECT become('?') AS t) SELECT t FROM it",
    "SELECT 1 WHERE become('?') = 'nothing'",
    "SELECT 1 ORDER BY become('?')",
    "COPY (SELECT become('?')) TO STDOUT",
    "COPY (SELECT set_config('lease.fence', '?', false)) TO STDOUT",
    "EXPLAIN ANALYZE SELECT become('?')",
    "EXPLAIN ANALYZE SELECT set_config('lease.fence', '?', false)",
    "EXPLAIN SELECT set_config('lease.fence', '?', false)",
    "EXPLAIN SELECT as_if_constant('?')",
    "SELECT as_if_constant('?')",
    "CREATE TEMP TABLE IF NOT EXISTS made AS SELECT set_config('lease.fence', '?', false)",
    "CREATE TEMP TABLE IF NOT EXISTS made AS SELECT set_config('lease.fence', '?', false) WITH NO DATA",
    "CREATE TEMP TABLE IF NOT EXISTS empty AS SELECT 1; ALTER TABLE empty ADD COLUMN c text DEFAULT become('?')",
    "DROP TABLE made",
    "DECLARE c CURSOR FOR SELECT become('?')",
    "DECLARE c CURSOR FOR SELECT set_config('lease.fence', '?', false)",
    "DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT become('?')",
    "DECLARE c CURSOR WITH HOLD FOR SELECT set_config('lease.fence', '?', false)",
    "FETCH c",
    "FETCH c",
    "MOVE ALL IN c",
    "CLOSE c",
    "FETCH p",
];

const TRANSACTIONS: &[&str] = &[
    "BEGIN",
    "BEGIN",
    "BEGIN",
    "COMMIT",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "ROLLBACK AND CHAIN",
    "SAVEPOINT a",
    "SAVEPOINT a",
    "SAVEPOINT b",
    "RELEASE a",
    "RELEASE b",
    "ROLLBACK TO a",
    "ROLLBACK TO a",
    "ROLLBACK TO \"b\"",
    "SELECT 1/0",
    "SELECT nonsense",
    "nonsense",
];

const PREPARED: &[&str] = &[
    "PREPARE p AS SELECT become($1)",
    "PREPARE p AS SELECT set_config('lease.fence', '?', false)",
    "PREPARE p AS SELECT $1",
    "EXECUTE p",
    "EXECUTE p('?')",
    "EXECUTE p(become('?'))",
    "EXPLAIN EXECUTE p('?')",
    "EXPLAIN ANALYZE EXECUTE p",
    "CREATE TEMP TABLE IF NOT EXISTS made AS EXECUTE p WITH NO DATA",
    "DEALLOCATE p",
    "DEALLOCATE ALL",
    "EXECUTE s",
    "DEALLOCATE s",
];

const CODE: &[&str] = &[
    "DO $$ BEGIN PERFORM set_config('lease.fence', '?', false); END $$",
    "DO $$ BEGIN SET LOCAL lease.fence = '?'; END $$",
    "DO $$ BEGIN SET lease.fence = '?'; COMMIT; SET LOCAL lease.fence = '?'; END $$",
    "DO $$ BEGIN SET lease.fence = '?'; COMMIT; SET lease.fence = '?'; RAISE 'no'; END $$",
    "DO $$ BEGIN SET lease.fence = '?'; ROLLBACK; END $$",
    "CALL work('?')",
];

const OTHERS: &[&str] = &[
    "SELECT 1",
    "SELECT * FROM free LIMIT 1",
    "",
    "SHOW lease.fence",
    "SET ROLE leader",
    "RESET ROLE",
    "SET SESSION AUTHORIZATION leader",
    "RESET SESSION AUTHORIZATION",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "ALTER ROLE unused SET lease.fence = '?'",
    "ALTER ROLE unused IN DATABASE postgres SET lease.fence FROM CURRENT",
    "SET standard_conforming_strings = off",
    "RESET standard_conforming_strings",
    "SELECT set_config('standard_conforming_strings', 'off', true)",
    r"SELECT '\', set_config('lease.fence', '?', false), '\'",
];

/// As a user would type it.
impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "startup: {:?}", self.startup)?;
        for Step { action, probe } in &self.steps {
            match action {
                Action::Simple(texts) => write!(f, "simple: {}", texts.join("; ")),
                Action::Queries(texts) => write!(f, "queries without waiting: {}", texts.join(" | ")),
                Action::Extended(texts) => write!(f, "extended: {}", texts.join(" | ")),
                Action::Pipeline(texts) => write!(f, "pipeline: {}", texts.join(" | ")),
                Action::PipelineThenSimple(texts) => write!(f, "pipeline, then simple: {}", texts.join(" | ")),
                Action::Parse(text) => write!(f, "Parse s: {text}"),
                Action::Run => write!(f, "Bind and Execute s"),
                Action::Close => write!(f, "Close s"),
                Action::Bind(text) => write!(f, "Bind p: {text}"),
                Action::Execute => write!(f, "Execute p for one row"),
            }?;
            match probe {
                Probe::No => writeln!(f),
                probe => writeln!(f, "    -- probed: {probe:?}"),
            }?;
        }
        write!(f, "the first steps again: {:?}", self.again)
    }
}
