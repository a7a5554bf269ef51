//! Statements whose text does not show what they write: the effect of each setting of `opaque`.

mod strings;

use crate::support::fenced::{Fenced, code, code_in, ok, value};
use crate::support::message::{
    bind_text, copy_done, execute, flush, function_call, parse, query, sync, tagged, unnamed,
};
use crate::support::programs;
use crate::support::proxy::fencegate;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Frame, Options, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE bills (n int); \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'; \
    CREATE PROCEDURE work() LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'";
const ONE: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const TWO: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n  - {name: billing, tables: [public.bills]}\n";

const DO: &str = "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$";
const COUNT: &str = "SELECT count(*) FROM jobs";

/// Statements that the proxy cannot analyze, and the reply of a server that runs them.
type Opaque = fn(&mut Wire, &Fenced) -> Vec<Frame>;
const OPAQUE: &[(&str, Opaque, &str)] = &[
    ("DO", |wire, _| wire.query(DO), ""),
    ("CALL", |wire, _| wire.query("CALL work()"), ""),
    ("a fast-path call", call, ""),
    ("EXECUTE of an unknown name", |wire, _| wire.query("EXECUTE nobody_made_it"), "26000"),
    ("EXPLAIN ANALYZE EXECUTE", |wire, _| wire.query("EXPLAIN ANALYZE EXECUTE nobody_made_it"), "26000"),
    ("Bind of an unknown name", bind_unknown, "26000"),
    ("a long statement", |wire, _| wire.query(&format!("SELECT '{}'", "x".repeat(17 << 20))), ""),
];

fn call(wire: &mut Wire, world: &Fenced) -> Vec<Frame> {
    let run_tick = world.postgres.value("SELECT oid FROM pg_proc WHERE proname = 'run_tick'").parse().unwrap();
    wire.exchange(&function_call(run_tick, &[]))
}

fn bind_unknown(wire: &mut Wire, _: &Fenced) -> Vec<Frame> {
    wire.exchange(&[bind_text("", "nobody made it", &[]), execute("", 0), sync()].concat())
}

/// Sessions that the current leader with token 47 could encounter.
const SESSIONS: [&str; 4] =
    ["RESET lease.fence", "SET lease.fence = 46", "SET lease.fence = 47", "SET lease.fence = 48"];

#[test]
fn statements_that_each_setting_allows() {
    // One result for each of the sessions. None: the server's answer.
    let settings = [
        ("", [Some("LF004"); 4]),
        ("opaque: reject\n", [Some("LF004"); 4]),
        ("opaque: require_token\n", [Some("LF002"), Some("LF001"), None, Some("LF004")]),
        ("opaque: allow\n", [None; 4]),
    ];
    for (setting, expected) in settings {
        let world = Fenced::start(SCHEMA, &(ONE.to_owned() + setting));
        ok(&mut world.holder(47), "DELETE FROM jobs");
        for (session, expected) in SESSIONS.iter().zip(expected) {
            for (name, send, answer) in OPAQUE {
                let mut wire = world.login();
                ok(&mut wire, session);
                let what = format!("{setting}{session}: {name}");
                // The server detects the unknown name before it runs anything.
                let expected = if *name == "Bind of an unknown name" { *answer } else { expected.unwrap_or(*answer) };
                assert_eq!(code_in(&send(&mut wire, &world)), expected, "{what}");
                assert_eq!(value(&mut wire, "SELECT 'goes on'").as_deref(), Some("goes on"), "{what}");
            }
        }
        let passing = expected.iter().filter(|expected| expected.is_none()).count();
        assert_eq!(world.postgres.value(COUNT), (3 * passing).to_string(), "{setting}");
        assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47", "{setting}");
    }
}

/// The role that logged in counts, regardless of SET ROLE.
#[test]
fn a_role_may_have_a_setting_of_its_own() {
    let policies = ONE.to_owned() + "opaque_roles: {legacy: allow, Strict: reject}\n";
    let roles = "CREATE ROLE legacy LOGIN SUPERUSER; CREATE ROLE strict LOGIN SUPERUSER";
    let world = Fenced::start(&format!("{SCHEMA}; {roles}"), &policies);
    for (role, expected) in [("legacy", ""), ("strict", "LF004"), ("postgres", "LF004")] {
        assert_eq!(code(&mut world.login_as(role), DO), expected, "{role}");
    }
    let mut wire = world.login();
    ok(&mut wire, "SET ROLE legacy");
    let error = wire.rows(DO).unwrap_err();
    assert_eq!(error.code(), "LF004");
    assert!(error.hint().contains("fencegate guard install") && error.hint().contains("opaque_roles"), "{error:?}");
    // Visible writes are fenced for this role as for others.
    assert_eq!(code(&mut world.login_as("legacy"), "INSERT INTO jobs VALUES (1)"), "LF002");
    let control = world.postgres.control_url() + "postgres";
    let folder = world.proxy.policies().display().to_string();
    programs::run(fencegate().args(["guard", "install", "--control", &control, "--policies", &folder]));
    // With the guard, its opaque statements are fenced as well.
    assert_eq!(code(&mut world.login_as("legacy"), DO), "LF002");
}

#[test]
fn a_database_in_which_nothing_is_fenced() {
    for setting in ["opaque: reject\n", "opaque: require_token\n", "opaque: allow\n"] {
        let world = Fenced::start(&SCHEMA.replace("jobs", "other"), &(ONE.to_owned() + setting));
        for session in SESSIONS {
            for (name, send, answer) in OPAQUE {
                let mut wire = world.login();
                ok(&mut wire, session);
                assert_eq!(
                    code_in(&send(&mut wire, &world)).replace("42P01", ""),
                    *answer,
                    "{setting}{session}: {name}"
                );
            }
        }
        assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch"), "0");
    }
}

#[test]
fn a_transaction_where_nothing_is_fenced() {
    let world = Fenced::start("CREATE TABLE other (n int)", ONE);
    let mut wire = world.login();
    // If the first DO created a fenced table, it could have written that table as well, so rejecting the second gains
    // nothing.
    for sql in ["BEGIN", "DO $$ BEGIN END $$", "CREATE TABLE another (n int)", "DO $$ BEGIN END $$", "COMMIT"] {
        ok(&mut wire, sql);
    }
    ok(&mut wire, "BEGIN; CREATE TABLE jobs (n int)");
    assert_eq!(code(&mut wire, DO), "LF004", "a table of that name is fenced");
}

#[test]
fn a_token_that_is_not_yet_in_force() {
    let world = Fenced::start(SCHEMA, &(ONE.to_owned() + "opaque: require_token\n"));
    let mut wire = world.holder(47);
    let error = wire.rows(DO).unwrap_err();
    assert_eq!((error.code(), error.detail()), ("LF004", "resource=scheduler presented=47"));
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.epoch"), "0");
    // As the hint recommends.
    ok(&mut wire, "BEGIN; LOCK TABLE jobs IN ROW EXCLUSIVE MODE; COMMIT");
    ok(&mut wire, DO);
    let error = world.holder(48).rows(DO).unwrap_err();
    assert_eq!((error.code(), error.detail()), ("LF004", "resource=scheduler presented=48 highest=47"));
    // Within one string, earlier statements count.
    assert_eq!(code(&mut world.holder(48), &format!("{DO}; DELETE FROM jobs")), "LF004");
    ok(&mut world.holder(48), &format!("DELETE FROM jobs; {DO}"));
    assert_eq!(code(&mut wire, DO), "LF001");
    assert_eq!(world.postgres.value(COUNT), "1");
}

/// An opaque statement may write every resource.
#[test]
fn every_resource_needs_its_token() {
    let world = Fenced::start(SCHEMA, &(TWO.to_owned() + "opaque: require_token\n"));
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 'scheduler=47, billing=7'; DELETE FROM jobs; DELETE FROM bills");
    ok(&mut wire, DO);
    ok(&mut wire, "SET lease.fence = 'scheduler=47'");
    let error = wire.rows(DO).unwrap_err();
    assert_eq!((error.code(), error.detail()), ("LF002", "resource=billing"));
    ok(&mut wire, "SET lease.fence = 'scheduler=47, billing=6'");
    let error = wire.rows(DO).unwrap_err();
    assert_eq!((error.code(), error.detail()), ("LF001", "resource=billing presented=6 highest=7"));
    // A resource without a table in this database does not count.
    ok(&mut wire, "SET lease.fence = 'billing=7'; DROP TABLE bills; SET lease.fence = 'scheduler=47'");
    ok(&mut wire, DO);
    assert_eq!(world.postgres.value(COUNT), "2");
}

#[test]
fn fences_that_observe_or_allow_sessions_without_a_token() {
    for lenient in ["on_missing: allow", "mode: observe"] {
        let billing = "{name: billing, tables: [public.bills]";
        let policies = TWO.replace(billing, &format!("{billing}, {lenient}"));
        let world = Fenced::start(SCHEMA, &(policies + "opaque: require_token\n"));
        let mut wire = world.login();
        ok(&mut wire, "SET lease.fence = 'scheduler=47'; DELETE FROM jobs");
        ok(&mut wire, DO);
    }
}

/// A session that ran an opaque statement may have written, regardless of its text. The next token terminates it.
#[test]
fn writes_of_opaque_statements_are_drained() {
    let world = Fenced::start(SCHEMA, &(ONE.to_owned() + "opaque: require_token\n"));
    let mut wire = world.holder(47);
    ok(&mut wire, "DELETE FROM jobs");
    ok(&mut wire, "BEGIN");
    ok(&mut wire, DO);
    ok(&mut world.holder(48), "DELETE FROM jobs");
    let error = wire.rows("COMMIT").unwrap_err();
    assert_eq!((error.code(), error.severity()), ("LF001", "FATAL"));
    assert_eq!(error.detail(), "resource=scheduler presented=47 highest=48 outcome=rolled_back");
    assert_eq!(world.postgres.value(COUNT), "0");

    let mut wire = world.holder(48);
    ok(&mut wire, "BEGIN");
    ok(&mut wire, DO);
    ok(&mut wire, "SET lease.fence = 49");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF003");
}

/// A replication command whose answer is compared with the server's.
const REPLICATION: &str = "IDENTIFY_SYSTEM";

fn replicate(world: &Fenced, proxied: bool, mode: &str, database: &str) -> (Wire, Vec<Frame>) {
    let address = if proxied { world.proxy.address() } else { world.postgres.address() };
    let mut wire = Wire::connect(&address).unwrap();
    let frames = wire.start(&[("user", "postgres"), ("database", database), ("replication", mode)], "");
    (wire, frames)
}

#[test]
fn logical_replication() {
    for (setting, fenced) in [("reject", true), ("reject", false), ("require_token", true), ("allow", true)] {
        let schema = if fenced { "CREATE TABLE jobs (n int)" } else { "CREATE TABLE other (n int)" };
        let world = Fenced::start(schema, &format!("{ONE}opaque: {setting}\n"));
        // The proxy must have read the catalog to know that nothing is fenced.
        let mut session = Wire::login(&world.proxy.address(), "postgres", "postgres");
        ok(&mut session, "SELECT 1");
        if !fenced {
            wait_until("the catalog is read", DEADLINE, || world.proxy.log().contains("fenced_table_missing"));
        }
        let (mut wire, frames) = replicate(&world, true, "database", "postgres");
        if setting == "reject" && fenced {
            let error = error_in(&frames).unwrap();
            assert_eq!((error.severity(), error.code()), ("FATAL", "LF004"));
            continue;
        }
        if setting == "require_token" {
            assert_eq!(code(&mut wire, REPLICATION), "LF002");
            // SQL is judged as in other sessions, and the proxy queries the parameter's value.
            ok(&mut wire, "SELECT set_config('lease.' || 'fence', '47', false)");
            assert_eq!(code(&mut wire, REPLICATION), "LF004");
            ok(&mut wire, "DELETE FROM jobs");
        }
        stream_a_change(&world, &mut wire, if fenced { "jobs" } else { "other" });
    }
}

/// Creates a slot, reads a row's change from it, and continues.
fn stream_a_change(world: &Fenced, wire: &mut Wire, table: &str) {
    ok(wire, REPLICATION);
    ok(wire, "CREATE_REPLICATION_SLOT changes TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT");
    world.postgres.sql(&format!("INSERT INTO {table} VALUES (4711)"));
    wire.send(&query("START_REPLICATION SLOT changes LOGICAL 0/0"));
    wire.read_until(b'W');
    let mut seen = String::new();
    while !seen.contains("4711") {
        let frame = wire.frame().expect("the change");
        assert_eq!(frame.tag, b'd', "{frame:?}");
        seen = String::from_utf8_lossy(&frame.body).into_owned();
    }
    let frames = wire.exchange(&copy_done());
    assert_eq!(error_in(&frames), None);
    ok(wire, REPLICATION);
}

/// The server combines repeated `replication` parameters: `database` followed by `true` is a session with SQL. A proxy
/// that used only the last value would take it for a session without SQL.
#[test]
fn the_kind_of_session_is_stated_once() {
    let server = Options::default().hba("host replication all 127.0.0.1/32 trust");
    let world = Fenced::start_with(server, SCHEMA, &ProxyOptions::default().policies(ONE));
    let values = ["database", "true", "t", "ON", "1", "false", "off", "no", "0"];
    for (first, second) in values.iter().flat_map(|first| values.map(|second| (*first, second))) {
        let twice = [("user", "postgres"), ("database", "postgres"), ("replication", first), ("replication", second)];
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        let error = error_in(&wire.start(&twice, ""));
        assert_ne!(error, None, "{first}, {second}");
        assert!(error.unwrap().message().contains("replication"), "{first}, {second}");
    }
    for name in ["user", "database"] {
        let twice = [("user", "postgres"), ("database", "postgres"), (name, "template1")];
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        let error = error_in(&wire.start(&twice, "")).unwrap();
        assert_eq!((error.severity(), error.code()), ("FATAL", "08P01"), "{name}");
    }
    // The proxy reads every spelling of the value as the server does.
    for (value, expected) in [("t", "0A000"), ("TRU", "0A000"), ("of", "LF002"), ("N", "LF002"), ("database", "LF004")]
    {
        let (mut wire, frames) = replicate(&world, true, value, "postgres");
        let code = error_in(&frames).map(|error| error.code().to_owned());
        assert_eq!(code.unwrap_or_else(|| code_in(&wire.query("DELETE FROM jobs"))), expected, "{value}");
    }
}

/// A superuser may write the catalog itself, for example to rename a table or remove its trigger.
#[test]
fn a_write_to_the_catalog() {
    let world = Fenced::start(SCHEMA, &(ONE.to_owned() + "opaque: reject\n"));
    let statements = [
        "UPDATE pg_class SET relname = 'other' WHERE relname = 'jobs'",
        "UPDATE pg_catalog.pg_class SET relname = 'other' WHERE relname = 'jobs'",
        "UPDATE ONLY \"pg_class\" AS c SET relname = 'other' WHERE c.relname = 'jobs'",
        "SET search_path = public, pg_catalog; UPDATE pg_class SET relname = 'other' WHERE relname = 'jobs'",
        "WITH u AS (UPDATE pg_class SET relname = 'other' WHERE relname = 'jobs' RETURNING 1) SELECT * FROM u",
        "DELETE FROM pg_trigger",
        "INSERT INTO pg_rewrite SELECT * FROM pg_rewrite",
        "INSERT INTO pg_inherits VALUES (1, 2, 3, false) ON CONFLICT DO NOTHING",
        "MERGE INTO pg_class c USING (SELECT 1) s ON c.relname = 'jobs' WHEN MATCHED THEN UPDATE SET relname = 'other'",
        "COPY pg_class FROM STDIN",
        "COPY pg_catalog.pg_class (relname) FROM STDIN",
        "PREPARE p AS UPDATE pg_class SET relname = 'other' WHERE relname = 'jobs'; EXECUTE p",
        "EXPLAIN ANALYZE UPDATE pg_class SET relname = 'other' WHERE relname = 'jobs'",
        "SET allow_system_table_mods = on; TRUNCATE pg_trigger",
        "SET allow_system_table_mods = on; ALTER TABLE pg_class RENAME TO pg_klass",
        "SET allow_system_table_mods = on; DROP TABLE pg_depend",
        "UPDATE pg_proc SET prosrc = '' WHERE proname = 'run_tick'",
        "UPDATE pg_authid SET rolsuper = true",
        "UPDATE pg_toast.pg_toast_1255 SET chunk_seq = 1",
        "UPDATE fencegate_state.epoch SET token = 1",
        "DELETE FROM fencegate_state.admission",
    ];
    for statement in statements {
        let mut wire = world.login();
        assert_eq!(code(&mut wire, &format!("BEGIN; {statement}")), "LF004", "{statement}");
        ok(&mut wire, "ROLLBACK");
    }
    let mut wire = world.login();
    for statement in [
        "SELECT 1 FROM pg_class FOR UPDATE",
        "LOCK TABLE pg_class",
        "UPDATE pg_settings SET setting = '5MB' WHERE name = 'work_mem'",
    ] {
        ok(&mut wire, &format!("BEGIN; {statement}; COMMIT"));
    }
    ok(&mut wire, "CREATE TABLE public.pg_mine (n int)");
    ok(&mut wire, "INSERT INTO public.pg_mine VALUES (1)");
    assert_eq!(world.postgres.value("SELECT count(*) FROM pg_class WHERE relname = 'jobs'"), "1");
}

/// Physical replication has no database and no SQL, so nothing is fenced, even if the role has the name of a fenced
/// database.
#[test]
fn physical_replication() {
    let server = Options::default().hba("host replication all 127.0.0.1/32 trust");
    let world = Fenced::start_with(server, SCHEMA, &ProxyOptions::default().policies(ONE));
    for command in [REPLICATION, "SHOW wal_segment_size", "SELECT 1"] {
        let [direct, proxied] = [false, true].map(|proxied| {
            let (mut wire, frames) = replicate(&world, proxied, "true", "postgres");
            assert_eq!(error_in(&frames), None);
            wire.query(command)
        });
        let tags = |frames: &[Frame]| frames.iter().map(|frame| frame.tag).collect::<Vec<_>>();
        assert_eq!(tags(&proxied), tags(&direct), "{command}");
        assert_eq!(code_in(&proxied), code_in(&direct), "{command}");
    }
}

#[test]
fn a_mistake_gets_the_servers_error() {
    let world = Fenced::start(SCHEMA, ONE);
    let mut wire = world.holder(47);
    ok(&mut wire, "DELETE FROM jobs");
    let position = |frames: &[Frame]| error_in(frames).unwrap().get('P').to_owned();
    for text in ["SELEC 1", "SELECT 1; SELEC 2", "DELETE FROM jobs nonsense here"] {
        let direct = Wire::login(&world.postgres.address(), "postgres", "postgres").query(text);
        let proxied = wire.query(text);
        assert_eq!((code_in(&proxied).as_str(), position(&proxied)), ("42601", position(&direct)), "{text}");
    }
    ok(&mut wire, "BEGIN");
    assert_eq!(code(&mut wire, "SELEC 1"), "42601");
    assert_eq!(code(&mut wire, "SELEC 1"), "42601");
    ok(&mut wire, "ROLLBACK");
    assert_eq!(code_in(&wire.exchange(&[parse("", "SELEC 1", &[]), sync()].concat())), "42601");
    let at_once = [parse("", "SELEC 1", &[]), bind_text("", "", &[]), execute("", 0), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&at_once)), "42601");
    assert!(!world.proxy.log().contains("write_rejected"));
    // A text that the server can read but the proxy cannot is rejected and counted.
    ok(&mut wire, "SET client_encoding = 'SJIS'");
    assert_eq!(code_in(&wire.query_bytes(b"DELETE FROM jobs -- \x82\xa0")), "LF004");
    assert_eq!(world.proxy.log().matches("write_rejected").count(), 1);
}

/// An observing fence does not report a syntax error, and neither is it counted for an exempt role.
#[test]
fn a_mistake_would_not_be_rejected() {
    let policies = ONE.replace("tables", "mode: observe, tables") + "exempt_roles: [migrator]\n";
    let world = Fenced::start(&format!("{SCHEMA}; CREATE ROLE migrator SUPERUSER LOGIN"), &policies);
    let told =
        |world: &Fenced| ["would_be_rejected", "exempt_write"].map(|event| world.proxy.log().matches(event).count());
    for user in ["postgres", "migrator"] {
        let mut wire = Wire::login(&world.proxy.address(), user, "postgres");
        for text in ["SELEC 1", "SELECT 1; SELEC 2"] {
            assert_eq!(code(&mut wire, text), "42601");
        }
        let at_once = [parse("", "SELEC 1", &[]), bind_text("", "", &[]), execute("", 0), sync()].concat();
        assert_eq!(code_in(&wire.exchange(&at_once)), "42601");
        // Sent without waiting.
        wire.send(&[query("SELEC 1"), query("SELEC 2"), query("SELECT 1")].concat());
        for expected in ["42601", "42601", ""] {
            assert_eq!(code_in(&wire.read_until_ready()), expected);
        }
    }
    assert_eq!(told(&world), [0, 0], "{}", world.proxy.log());
    // A text that the server can read but the proxy cannot counts, whatever its result.
    for (user, expected) in [("postgres", [3, 0]), ("migrator", [3, 3])] {
        let mut wire = Wire::login(&world.proxy.address(), user, "postgres");
        ok(&mut wire, "SET client_encoding = 'SJIS'");
        for (text, code) in [("DELETE FROM jobs -- ", ""), ("SELECT 1/0 -- ", "22012"), ("-- ", "")] {
            let frames = wire.query_bytes(&[text.as_bytes(), b"\x82\xa0"].concat());
            assert_eq!(code_in(&frames), code, "{text}");
        }
        assert_eq!(told(&world), expected, "{user}: {}", world.proxy.log());
    }
}

/// In a failed transaction, the server refuses all statements but the one that ends it. Such a text may contain that one.
#[test]
fn a_text_that_was_not_read_may_end_a_failed_transaction() {
    let fenced = Fenced::start(SCHEMA, ONE);
    let comment = format!("/*{}*/", "x".repeat(2 << 20));
    let long = query(&format!("ROLLBACK; INSERT INTO jobs VALUES (1); SELECT 1 {comment}"));
    // The server does not read the second byte of this character as a backslash.
    let encoded = tagged(b'Q', b"ROLLBACK; SELECT E'\x95\\'; INSERT INTO jobs VALUES (1); --'\0");
    let pipeline = [unnamed(&format!("ROLLBACK {comment}"), &[]), unnamed("INSERT INTO jobs VALUES (1)", &[])].concat();
    for (encoding, text) in [("UTF8", long), ("SJIS", encoded), ("UTF8", [pipeline, sync()].concat())] {
        let mut stranger = fenced.login();
        for sql in [&format!("SET client_encoding = {encoding}"), "BEGIN", "SELECT 1 / 0"] {
            stranger.query(sql);
        }
        let reply = stranger.exchange(&text);
        assert!(["25P02", "LF004"].contains(&code_in(&reply).as_str()), "{reply:?}");
        assert_eq!(fenced.postgres.value(COUNT), "0", "{reply:?}");
    }
}

/// The proxy cannot read the statement that ends the transaction. The answer to a later statement follows from its success.
#[test]
fn an_allowed_text_may_have_ended_a_failed_transaction() {
    let fenced = Fenced::start(SCHEMA, &format!("{ONE}opaque: allow\n"));
    let mut stranger = fenced.login();
    stranger.query("BEGIN");
    stranger.query("SELECT 1 / 0");
    stranger.send(&[unnamed(&format!("/*{}*/ ROLLBACK", "x".repeat(2 << 20)), &[]), flush()].concat());
    stranger.read_until(b'C');
    let reply = stranger.exchange(&[unnamed("INSERT INTO jobs VALUES (1)", &[]), sync()].concat());
    assert_eq!(code_in(&reply), "LF002");
    assert_eq!(fenced.postgres.value(COUNT), "0");
}
