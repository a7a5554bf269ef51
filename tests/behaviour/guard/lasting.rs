//! The proxy does not resend a query whose text calls a function with an effect that survives an error.

use super::world::World;
use crate::support::fenced::{code_in, ok, value};
use crate::support::postgres::SUPERUSER;
use crate::support::{Options, Postgres, Release, Wire, message};
use fencegate_statement::FunctionName;

/// Separate statements, because the slot must be created in a transaction without writes.
const SCHEMA: [&str; 3] = [
    "SELECT pg_create_logical_replication_slot('messages', 'test_decoding')",
    "CREATE SEQUENCE drawn",
    "CREATE SEQUENCE moved",
];
/// A statement to run first, the query, and a query whose result shows that it ran once.
const ONCE: [(&str, &str, &str, &str); 5] = [
    (
        "SELECT pg_advisory_lock(1), pg_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1), unnamed()",
        "SELECT pg_advisory_unlock(1)",
        "t",
    ),
    (
        "SELECT 1",
        "SELECT pg_try_advisory_lock(2), unnamed()",
        "SELECT pg_advisory_unlock(2) AND NOT pg_advisory_unlock(2)",
        "t",
    ),
    ("SELECT setval('drawn', 10)", "SELECT nextval('drawn'), unnamed()", "SELECT last_value FROM drawn", "11"),
    (
        "SELECT setval('moved', 10)",
        "SELECT pg_catalog.setval('moved', last_value + 1), unnamed() FROM moved",
        "SELECT last_value FROM moved",
        "11",
    ),
    (
        "SELECT pg_replication_slot_advance('messages', pg_current_wal_lsn())",
        "SELECT pg_logical_emit_message(false, 'a', 'b'), unnamed()",
        "SELECT count(*) FROM pg_logical_slot_peek_changes('messages', NULL, NULL) WHERE data LIKE 'message: transactional: 0%'",
        "1",
    ),
];

fn extended(sql: &str) -> Vec<u8> {
    [message::parse("", sql, &[]), message::bind_text("", "", &[]), message::execute("", 0), message::sync()].concat()
}

#[test]
fn a_query_whose_text_shows_a_lasting_effect_runs_once() {
    let world = World::start("a_query_whose_text_shows_a_lasting_effect_runs_once");
    for sql in SCHEMA {
        world.postgres.sql(sql);
    }
    let ways: [fn(&str) -> Vec<u8>; 2] = [message::query, extended];
    let mut token = 5;
    for way in ways {
        for (before, sql, shows, once) in ONCE {
            token += 1;
            let mut leader = world.session(token);
            ok(&mut leader, before);
            assert_eq!(code_in(&leader.exchange(&way(sql))), "LF004", "{sql}");
            assert_eq!(value(&mut leader, shows).as_deref(), Some(once), "{sql}");
            // The token is in force now.
            assert_eq!(code_in(&leader.exchange(&way(sql))), "", "{sql}");
            ok(&mut leader, "SELECT pg_advisory_unlock_all()");
        }
    }
}

/// All traces that a function of PostgreSQL could leave, as one text.
const TRACES: &str = "SELECT concat_ws(' ',
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
    (SELECT last_value || is_called::text FROM drawn),
    (SELECT count(*) FROM pg_replication_slots),
    (SELECT count(*) FROM pg_logical_slot_peek_changes('messages', NULL, NULL) WHERE data LIKE 'message: transactional: 0%'),
    (SELECT count(*) FROM pg_replication_origin),
    (SELECT count(*) FROM pg_largeobject_metadata),
    (SELECT count(*) FROM pg_prepared_xacts),
    (SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()),
    pg_conf_load_time(),
    (SELECT string_agg(file, ',' ORDER BY file) FROM pg_ls_dir('.') AS file WHERE file LIKE 'drawn%'))";

/// A call of each volatile function, with meaningful arguments where possible.
const CALLS: &str = "SELECT proname, format('pg_catalog.%I(%s)', proname, (SELECT string_agg(
    CASE type::regtype::text WHEN 'regclass' THEN '''drawn''' WHEN 'text' THEN '''drawn''' WHEN 'name' THEN '''drawn'''
        WHEN 'oid' THEN '4711' WHEN 'integer' THEN '1' WHEN 'bigint' THEN '1' WHEN 'boolean' THEN 'true'
        WHEN 'double precision' THEN '0' WHEN 'interval' THEN '''0''' WHEN 'tid' THEN '''(0,1)'''
        WHEN 'timestamp with time zone' THEN 'now()' ELSE 'NULL' END || '::' || type::regtype, ', ' ORDER BY number)
    FROM unnest(proargtypes) WITH ORDINALITY AS argument(type, number)))
    FROM pg_proc WHERE provolatile = 'v' AND prokind = 'f' AND oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace
    AND NOT 'internal'::regtype = ANY (proargtypes)
    AND prorettype NOT IN ('internal'::regtype, 'trigger'::regtype, 'event_trigger'::regtype, 'language_handler'::regtype)";

/// Compares the traces before and after a call in a transaction that is rolled back.
fn leaves_something(postgres: &Postgres, session: &mut Wire, call: &str) -> bool {
    let before = postgres.value(TRACES);
    ok(session, "BEGIN");
    // The call may fail. Only its traces matter.
    session.query(&format!("SELECT {call}"));
    ok(session, "ROLLBACK");
    // Decoding reads only flushed WAL, and nothing else flushes a message of an aborted transaction.
    postgres.sql("SELECT pg_logical_emit_message(true, 'flush', '')");
    before != postgres.value(TRACES)
}

fn volatile_functions(release: Release) {
    let postgres = Postgres::start(Options::default().release(release));
    for sql in SCHEMA {
        postgres.sql(sql);
    }
    postgres.sql("SELECT lo_create(4711)");
    let mut session = Wire::login(&postgres.socket(), SUPERUSER, "postgres");
    let survives = |name: &str| FunctionName { schema: None, name: name.to_owned() }.survives_error();
    let calls = postgres.sql(CALLS);
    let calls = calls.iter().map(|row| (row[0].as_deref().unwrap(), row[1].as_deref().unwrap()));
    let (listed, others): (Vec<_>, Vec<_>) = calls.partition(|(name, _)| survives(name));
    assert!(listed.len() > 100 && others.len() > 50, "{} and {}", listed.len(), others.len());
    // Once without a lock that the function could release, and once with one.
    for before in ["SELECT 1", "SELECT pg_advisory_lock(1)"] {
        ok(&mut session, before);
        for (name, call) in &others {
            assert!(!leaves_something(&postgres, &mut session, call), "{name} survives an error, and is not listed");
        }
    }
    for call in [
        "pg_advisory_unlock(1)",
        "pg_advisory_lock(2)",
        "nextval('drawn')",
        "setval('drawn', 77)",
        "pg_create_physical_replication_slot('more')",
        "pg_logical_emit_message(false, 'a', 'b')",
        "lo_export(4711, 'drawn')",
        "pg_stat_reset()",
    ] {
        assert!(leaves_something(&postgres, &mut session, call), "the traces do not show {call}");
        assert!(survives(call.split('(').next().unwrap()), "{call}");
    }
}

#[test]
fn an_error_rolls_back_all_other_volatile_functions() {
    volatile_functions(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn an_error_rolls_back_all_other_volatile_functions_of_18() {
    volatile_functions(Release::Eighteen);
}
