//! However `lease.fence` is set, the proxy enforces the value that the server reports.

mod alone;
mod prepared;
mod sequence;
mod sequences;
mod startup;
mod two_tokens;

use crate::support::fenced::{Fenced, ok, value};
use crate::support::message::{self, query, sync, unnamed};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Frame, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (t text); CREATE ROLE leader LOGIN; CREATE ROLE odd LOGIN; \
    GRANT ALL ON jobs, free TO leader, odd; ALTER ROLE leader SET lease.fence = '31'; ALTER ROLE odd SET lease.fence = 'no token'; \
    CREATE FUNCTION become(token text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('lease.fence', token, false) $$; \
    CREATE FUNCTION become_by_set(token text) RETURNS text LANGUAGE plpgsql AS \
        $$ BEGIN EXECUTE format('SET lease.fence = %L', token); RETURN token; END $$; \
    CREATE FUNCTION for_a_while() RETURNS text LANGUAGE sql SET lease.fence = '99' AS $$ SELECT current_setting('lease.fence') $$";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
/// No session holds the highest token, so the error names the presented one.
const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const SETTING: &str = "SELECT current_setting('lease.fence', true)";

fn start() -> Fenced {
    let world = Fenced::start(SCHEMA, POLICIES);
    ok(&mut world.holder(i64::MAX), "DELETE FROM jobs");
    world
}

fn start_session(world: &Fenced, parameters: &[(&str, &str)]) -> (Wire, Vec<Frame>) {
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let who = [("user", "postgres"), ("database", "postgres")];
    // A user in `parameters` replaces the default.
    let user = parameters.iter().find(|(name, _)| *name == "user").unwrap_or(&who[0]);
    let others = parameters.iter().filter(|(name, _)| *name != "user");
    let parameters: Vec<_> = [user, &who[1]].into_iter().chain(others).copied().collect();
    let frames = wire.start(&parameters, "");
    (wire, frames)
}

/// The presented token according to the write's error; empty for none.
fn presented(frames: &[Frame]) -> String {
    let error = error_in(frames).expect("the write is rejected");
    match error.code() {
        "LF001" => error.detail().split(' ').find_map(|item| item.strip_prefix("presented=")).unwrap().to_owned(),
        "LF002" => String::new(),
        _ => format!("{} {}", error.code(), error.message()),
    }
}

const STARTUP: &str = "5";

/// Statements, sent one by one, and the resulting value in a session that began with token 5.
const SCENARIOS: &[(&[&str], &str)] = &[
    (&[], STARTUP),
    (&["SET lease.fence = 47"], "47"),
    (&["SET SESSION Lease.FENCE TO '47'"], "47"),
    (&["SET \"lease.fence\" TO '47'"], "47"),
    (&["/* first */ SET -- then\n lease.fence = +0047"], "47"),
    (&["SET lease.fence = ''"], ""),
    (&["SET lease.fence = 'scheduler=47, shard/3=55'"], "scheduler=47, shard/3=55"),
    (&["SET LOCAL lease.fence = 'scheduler=47'"], STARTUP),
    (&["SET lease.fence = 'shard/3=55'"], "shard/3=55"),
    (&["SET lease.fence = 'scheduler=47, scheduler=48'"], STARTUP),
    (&["SET lease.fence = 'scheduler'"], STARTUP),
    (&["SET lease.fence = 47", "SET lease.fence FROM CURRENT"], "47"),
    (&["SET lease.fence = 'x'"], STARTUP),
    (&["SET lease.fence = 0"], STARTUP),
    (&["SET lease.fence = -1"], STARTUP),
    (&["SET lease.fence = 1.5"], STARTUP),
    (&["SET lease.fence = on"], STARTUP),
    (&["SET lease.fence = 1, 2"], STARTUP),
    (&["SET LOCAL lease.fence = 47"], STARTUP),
    (&["SET lease.fence = 47", "RESET lease.fence"], STARTUP),
    (&["SET lease.fence = 47", "SET lease.fence TO DEFAULT"], STARTUP),
    (&["SET lease.fence = 47", "RESET ALL"], STARTUP),
    (&["SET lease.fence = 47", "DISCARD ALL"], STARTUP),
    (&["SET lease.fence = 47", "DISCARD PLANS"], "47"),
    (&["SET lease.fence = 47; SELECT nonsense"], STARTUP),
    (&["SET lease.fence = 47; COMMIT; SET lease.fence = 48; SELECT nonsense"], "47"),
    // Transactions.
    (&["BEGIN", "SET lease.fence = 47"], "47"),
    (&["BEGIN", "SET lease.fence = 47", "COMMIT"], "47"),
    (&["BEGIN", "SET lease.fence = 47", "ROLLBACK"], STARTUP),
    (&["BEGIN", "SET lease.fence = 47", "SELECT nonsense", "COMMIT"], STARTUP),
    (&["BEGIN", "SET LOCAL lease.fence = 47"], "47"),
    (&["BEGIN", "SET LOCAL lease.fence = 47", "COMMIT"], STARTUP),
    (&["BEGIN", "SET LOCAL lease.fence = 47", "SET lease.fence = 48", "COMMIT"], "48"),
    (&["BEGIN", "SET lease.fence = 48", "SET LOCAL lease.fence = 47", "COMMIT"], "48"),
    (&["BEGIN", "SET LOCAL lease.fence = 47", "RESET lease.fence"], STARTUP),
    (&["SET lease.fence = 47", "BEGIN", "SET LOCAL lease.fence TO DEFAULT", "RESET ALL", "COMMIT"], "47"),
    (&["SET lease.fence = 47", "BEGIN", "SET LOCAL lease.fence = 48", "RESET ALL", "COMMIT"], STARTUP),
    (&["BEGIN", "SET lease.fence = 47", "COMMIT AND CHAIN", "SET lease.fence = 48", "ROLLBACK"], "47"),
    (&["BEGIN", "SET lease.fence = 47", "ROLLBACK AND CHAIN"], STARTUP),
    (&["BEGIN", "SET lease.fence = 47", "PREPARE TRANSACTION 'a'", "ROLLBACK PREPARED 'a'"], "47"),
    (&["BEGIN", "SET lease.fence = 47", "SELECT nonsense", "PREPARE TRANSACTION 'a'"], STARTUP),
    (
        &[
            "BEGIN",
            "SET lease.fence = 46",
            "SET LOCAL lease.fence = 47",
            "SET LOCAL lease.fence FROM CURRENT",
            "COMMIT",
        ],
        "46",
    ),
    (&["SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"], STARTUP),
    // Savepoints.
    (&["BEGIN", "SAVEPOINT a", "SET lease.fence = 47", "ROLLBACK TO a"], STARTUP),
    (&["BEGIN", "SAVEPOINT a", "SET lease.fence = 47", "SELECT nonsense", "ROLLBACK TO a"], STARTUP),
    (&["BEGIN", "SAVEPOINT a", "SET lease.fence = 47", "RELEASE a"], "47"),
    (&["BEGIN", "SAVEPOINT a", "SET lease.fence = 47", "RELEASE a", "ROLLBACK"], STARTUP),
    (&["BEGIN", "SET lease.fence = 6", "SAVEPOINT a", "SET LOCAL lease.fence = 47", "ROLLBACK TO a", "COMMIT"], "6"),
    (&["BEGIN", "SAVEPOINT a", "SET lease.fence = 47", "SAVEPOINT a", "SET lease.fence = 48", "ROLLBACK TO a"], "47"),
    (
        &[
            "BEGIN",
            "SAVEPOINT a",
            "SET lease.fence = 47",
            "SAVEPOINT b",
            "SET lease.fence = 48",
            "RELEASE b",
            "ROLLBACK TO \"a\"",
        ],
        STARTUP,
    ),
    (&["BEGIN", "SAVEPOINT a", "SELECT nonsense", "SET lease.fence = 47", "ROLLBACK TO a"], STARTUP),
    (
        &[
            "BEGIN",
            "SET lease.fence = 46",
            "SAVEPOINT a",
            "SELECT nonsense",
            "SET lease.fence = 47",
            "ROLLBACK TO a",
            "COMMIT",
        ],
        "46",
    ),
    // Set by a function.
    (&["SELECT set_config('lease.fence', '47', false)"], "47"),
    (&["SELECT set_config('lease.fence', '47', true)"], STARTUP),
    (&["SELECT set_config('lease.fence', 'scheduler=47, shard/3=55', false)"], "scheduler=47, shard/3=55"),
    (&["SELECT set_config('lease.fence', '47', false)", "SELECT set_config('lease.fence', NULL, false)"], STARTUP),
    (&["SELECT set_config('lease.fence', 'x', false)"], STARTUP),
    (&["SELECT set_config('TimeZone', '47', false)"], STARTUP),
    // Set in a way that the text does not show.
    (&["SELECT set_config('lease.' || 'fence', '4' || '7', false)"], "47"),
    (&["BEGIN", "SELECT set_config('lease.fence', '47', true)"], "47"),
    (&["BEGIN", "SELECT set_config('lease.fence', '47', true)", "COMMIT"], STARTUP),
    (&["BEGIN", "SELECT set_config('lease.fence', '47', false)", "ROLLBACK"], STARTUP),
    (&["BEGIN", "SAVEPOINT a", "SELECT set_config('lease.fence', '47', false)", "ROLLBACK TO a", "COMMIT"], STARTUP),
    (&["BEGIN", "SELECT become('47')", "SAVEPOINT a", "SET lease.fence = 48", "ROLLBACK TO a", "COMMIT"], "47"),
    (&["SELECT become('47')"], "47"),
    (&["SELECT become('47')", "SET lease.fence = 48"], "48"),
    (&["SELECT become('47')", "RESET lease.fence"], STARTUP),
    (&["SELECT become_by_set('47')"], "47"),
    (&["BEGIN", "SELECT become_by_set('47')", "ROLLBACK"], STARTUP),
    (&["SELECT for_a_while()"], STARTUP),
    (
        &[
            "SET lease.fence = 46",
            "CREATE FUNCTION pg_temp.held() RETURNS text LANGUAGE sql SET lease.fence FROM CURRENT AS 'SELECT 1::text'",
            "SET lease.fence = 47",
            "SELECT pg_temp.held()",
        ],
        "47",
    ),
    (&["SELECT become('47'), 1/(random()*0)::int"], STARTUP),
    (&["INSERT INTO free SELECT become('47')"], "47"),
    (&["INSERT INTO free VALUES ('a') RETURNING become('47')"], "47"),
    (&["WITH it AS (SELECT become('47') AS t) SELECT t FROM it"], "47"),
    (&["SELECT 1 ORDER BY become('47')"], "47"),
    (&["EXPLAIN ANALYZE SELECT become('47')"], "47"),
    (&["COPY (SELECT become('47')) TO STDOUT"], "47"),
    (&["CREATE TEMP TABLE t AS SELECT become('47')"], "47"),
    (&["PREPARE p AS SELECT become($1)", "EXECUTE p('47')"], "47"),
    (&["PREPARE p AS SELECT $1::text", "EXECUTE p(become('47'))"], "47"),
    (&["BEGIN", "DECLARE c CURSOR FOR SELECT become('47')", "FETCH c"], "47"),
    (&["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT become('47')", "COMMIT"], "47"),
    (&["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT become('47')", "SET lease.fence = 5", "COMMIT"], "47"),
    (&["BEGIN", "SET LOCAL lease.fence = 47", "SET lease.fence FROM CURRENT", "COMMIT"], "47"),
];

/// The token for the resource, in either form of the value.
fn token_in(value: &str) -> &str {
    if !value.contains('=') {
        return value;
    }
    value.split(", ").find_map(|item| item.strip_prefix("scheduler=")).unwrap_or_default()
}

type Message = fn(&str) -> Vec<u8>;

/// Ways to send the statements and the write.
const MODES: [(&str, Message); 2] = [("simple", query), ("extended", |text| [unnamed(text, &[]), sync()].concat())];

#[test]
fn every_way_to_set_it() {
    let world = start();
    for (statements, expected) in SCENARIOS {
        for (mode, message) in MODES {
            // The extended protocol takes one statement at a time.
            if mode == "extended" && statements.iter().any(|text| text.contains(';')) {
                continue;
            }
            let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
            statements.iter().for_each(|text| drop(wire.exchange(&message(text))));
            let what = format!("{statements:?}, {mode}");
            assert_eq!(value(&mut wire, SETTING).unwrap_or_default().trim(), *expected, "{what}: the server");
            let token = token_in(expected);
            assert_eq!(presented(&wire.exchange(&message(WRITE))), token, "{what}: the proxy");

            // The same without waiting for answers.
            let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
            let texts: Vec<&str> = statements.iter().copied().chain([WRITE]).collect();
            wire.send(&texts.iter().flat_map(|text| message(text)).collect::<Vec<_>>());
            let last = texts.iter().map(|_| wire.read_until_ready()).last().unwrap();
            assert_eq!(presented(&last), token, "{what}: ahead");
        }
    }
}

#[test]
fn within_one_batch() {
    let world = start();
    let cases = [
        (vec!["SET lease.fence = 47"], "47"),
        (vec!["SET LOCAL lease.fence = 47"], "47"),
        (vec!["SELECT become('47')"], "47"),
        (vec!["SELECT set_config('lease.fence', '47', true)"], "47"),
        (vec!["BEGIN", "SELECT become('47')", "SAVEPOINT a", "SET lease.fence = 48", "ROLLBACK TO a"], "47"),
    ];
    for (statements, within) in cases {
        let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
        let batch: Vec<u8> =
            statements.iter().chain(&[WRITE]).flat_map(|text| unnamed(text, &[])).chain(sync()).collect();
        assert_eq!(presented(&wire.exchange(&batch)), within, "{statements:?}");
        // The failed write aborted the transaction.
        wire.query("ROLLBACK");
        assert_eq!(value(&mut wire, SETTING).as_deref(), Some(STARTUP), "{statements:?}");
        assert_eq!(presented(&wire.query(WRITE)), STARTUP, "{statements:?}");
    }
    for (text, within) in [
        ("SELECT set_config('lease.fence', '47', true)", "47"),
        ("SELECT set_config('TimeZone', 'UTC', false)", STARTUP),
    ] {
        let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
        assert_eq!(presented(&wire.query(&format!("{text}; {WRITE}"))), within, "{text}");
        assert_eq!(presented(&wire.query(WRITE)), STARTUP, "{text}");
    }
    // Outside a transaction block, the server answers PREPARE TRANSACTION with ROLLBACK, but commits.
    let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
    wire.exchange(&[unnamed("SET lease.fence = 47", &[]), unnamed("PREPARE TRANSACTION 'a'", &[]), sync()].concat());
    assert_eq!(presented(&wire.query(WRITE)), "47");
    let cases = [("SET LOCAL lease.fence = 47", STARTUP), ("SELECT set_config('lease.fence', '47', true)", STARTUP)];
    for (statement, after) in cases.iter().chain(&[("SELECT become('47')", "47")]) {
        let mut wire = start_session(&world, &[("lease.fence", STARTUP)]).0;
        wire.exchange(&[unnamed(statement, &[]), unnamed("SELECT 1", &[]), sync()].concat());
        assert_eq!(presented(&wire.exchange(&[unnamed(WRITE, &[]), sync()].concat())), *after, "{statement}");
    }
}

#[test]
fn a_list_for_two_resources() {
    let policies = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n  - {name: shard/3, tables: [public.free]}\n";
    let world = Fenced::start(SCHEMA, policies);
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 'scheduler=47, shard/3=55'");
    ok(&mut wire, "INSERT INTO jobs VALUES (1); INSERT INTO free VALUES ('a')");
    let epochs = "SELECT string_agg(resource || '=' || token, ' ' ORDER BY resource) FROM fencegate_state.epoch";
    assert_eq!(world.postgres.value(epochs), "scheduler=47 shard/3=55");
    assert_eq!(value(&mut wire, "SELECT fencegate.token('shard/3')").as_deref(), Some("55"));
    ok(&mut wire, "SET lease.fence = 'shard/3=55'");
    assert_eq!(wire.rows(WRITE).unwrap_err().code(), "LF002");
    ok(&mut wire, "INSERT INTO free VALUES ('b')");
}

/// The server must answer or refuse the proxy's query for the value. Here, a lock on the catalog delays the query until
/// the cancel request arrives.
#[test]
fn a_cancel_during_the_query_for_the_value() {
    let world = start();
    for (mode, message) in MODES {
        for transaction in [false, true] {
            let what = format!("{mode}, transaction: {transaction}");
            let (mut wire, greeting) = start_session(&world, &[("application_name", "questioned")]);
            let key = greeting.iter().find(|frame| frame.tag == b'K').unwrap().body.clone();
            let process = value(&mut wire, "SELECT pg_backend_pid()").unwrap();
            if transaction {
                ok(&mut wire, "BEGIN");
            }
            ok(&mut wire, "SELECT become('47')");
            let mut locker = Wire::login(&world.postgres.address(), "postgres", "postgres");
            // Makes every session look up the function again.
            ok(&mut locker, "ALTER FUNCTION current_setting(text, bool) COST 1");
            // Counts only this process, because control connections may wait for the lock as well.
            let waiting = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = {process}");
            ok(&mut locker, "BEGIN");
            ok(&mut locker, &waiting);
            ok(&mut locker, "LOCK pg_proc");
            wire.send(&message(WRITE));
            wait_until("the query waits", DEADLINE, || value(&mut locker, &waiting).as_deref() != Some("0"));
            let mut cancel = Wire::connect(&world.proxy.address()).unwrap();
            cancel.send(&message::cancel_request(&key));
            cancel.read_to_end();
            let frames = wire.read_until_ready();
            ok(&mut locker, "ROLLBACK");
            assert_eq!(error_in(&frames).unwrap().code(), "57014", "{what}: {frames:?}");
            assert_eq!(frames.iter().filter(|frame| matches!(frame.tag, b'E' | b'Z')).count(), 2, "{what}: {frames:?}");
            wire.query("ROLLBACK");
            let expected = if transaction { "" } else { "47" };
            assert_eq!(presented(&wire.exchange(&message(WRITE))), expected, "{what}");
            assert_eq!(value(&mut wire, "SELECT count(*) FROM pg_prepared_statements").as_deref(), Some("0"), "{what}");
        }
    }
}
