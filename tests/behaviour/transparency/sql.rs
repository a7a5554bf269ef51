//! Statements in the style of SQLsmith: most are valid, many fail, and all have the same result on each server. They do
//! not depend on clocks, process IDs, transaction IDs or the physical order of rows.

use super::query::{query, text};
use super::values::{Type, value};
use fencegate_testing::dice::Dice;

/// The permitted content of statements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Includes statements that no proxy can judge by their text: DO, CALL, EXECUTE of an unknown name, CASCADE.
    Everything,
    /// Only statements that the proxy can judge.
    Judged,
}

pub fn statement(dice: &mut Dice, scope: Scope) -> String {
    match dice.below(100) {
        0..30 => query(dice, 2),
        30..44 => write(dice),
        44..52 => transaction(dice),
        52..60 => session_state(dice),
        60..68 => definition(dice),
        68..74 => cursor(dice),
        74..79 => prepared(dice, scope),
        79..83 => message(dice),
        83..87 => maintenance(dice),
        87..94 => failure(dice),
        94..97 if scope == Scope::Everything => opaque(dice),
        _ => oddity(dice),
    }
}

/// A table that statements write to. One of these tables may be fenced.
pub fn table(dice: &mut Dice) -> &'static str {
    const TABLES: [&str; 8] = ["work0", "work0", "work1", "ledger", "ledger", "seen", "made", "mine"];
    TABLES[dice.below(TABLES.len())]
}

fn write(dice: &mut Dice) -> String {
    let id = dice.below(30);
    let number = value(dice, Type::Number);
    let text = text(dice);
    match dice.below(13) {
        0 => format!("INSERT INTO work0 VALUES ({id}, {text}, {number}) RETURNING *, value / 2 AS half"),
        1 => format!("INSERT INTO work0 (id) VALUES ({id}), ({}) ON CONFLICT DO NOTHING", id + 1),
        2 => format!(
            "INSERT INTO work0 VALUES ({id}, {text}) ON CONFLICT (id) DO UPDATE SET name = excluded.name || {text} RETURNING xmax IS NULL, name"
        ),
        3 => format!("INSERT INTO work1 (parent, data) VALUES ({id}, jsonb_build_object('k', {number})) RETURNING *"),
        4 => format!("UPDATE work0 SET value = {number}, name = {text} WHERE id = {id} RETURNING *"),
        5 => format!("DELETE FROM work0 WHERE id = {id} RETURNING id"),
        6 => format!("DELETE FROM {} WHERE id > 25", table(dice)),
        7 => format!(
            "MERGE INTO work0 USING (VALUES ({id})) AS s(id) ON s.id = work0.id WHEN MATCHED THEN UPDATE SET name = {text} WHEN NOT MATCHED THEN INSERT VALUES (s.id, {text})"
        ),
        8 => format!(
            "INSERT INTO ledger VALUES ({id}, {text}, {number}) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount RETURNING *"
        ),
        9 => format!("UPDATE ledger SET amount = amount - {id} WHERE id = {id} RETURNING *"),
        10 => format!(
            "WITH gone AS (DELETE FROM ledger WHERE id = {id} RETURNING *) INSERT INTO work0 SELECT * FROM gone RETURNING *"
        ),
        11 => format!(
            "INSERT INTO work0 SELECT g, 'many', g FROM generate_series(100, {}) AS g ON CONFLICT DO NOTHING",
            100 + 20 * id
        ),
        _ => format!("INSERT INTO {} (id) VALUES ({id}) RETURNING *", table(dice)),
    }
}

fn transaction(dice: &mut Dice) -> String {
    let choices = [
        "BEGIN",
        "BEGIN",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE",
        "COMMIT",
        "COMMIT",
        "END",
        "ROLLBACK",
        "ABORT",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "SAVEPOINT one",
        "SAVEPOINT \"Two\"",
        "ROLLBACK TO one",
        "ROLLBACK TO SAVEPOINT \"Two\"",
        "RELEASE one",
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET CONSTRAINTS ALL DEFERRED",
        "SHOW transaction_isolation",
    ];
    (*dice.pick(&choices)).to_owned()
}

fn session_state(dice: &mut Dice) -> String {
    let settings: [(&str, &[&str]); 17] = [
        ("application_name", &["'tëst'", "'another'", "''"]),
        ("DateStyle", &["'ISO, DMY'", "'German'", "'SQL, MDY'", "'nonsense'"]),
        ("TimeZone", &["'UTC'", "'Asia/Tokyo'", "'America/New_York'", "'+05:30'", "'Nowhere/Nowhere'"]),
        ("client_encoding", &["'UTF8'", "'LATIN1'", "'SQL_ASCII'", "'WIN1252'", "'EUC_JP'", "'SJIS'", "'nothing'"]),
        ("standard_conforming_strings", &["'on'", "'off'", "'maybe'"]),
        ("IntervalStyle", &["'iso_8601'", "'postgres'", "'sql_standard'"]),
        ("search_path", &["'public'", "'pg_catalog'", "'$user', 'public'", "'nowhere'"]),
        ("bytea_output", &["'escape'", "'hex'"]),
        ("extra_float_digits", &["0", "-3", "1"]),
        ("client_min_messages", &["'debug1'", "'notice'", "'warning'", "'error'"]),
        ("default_transaction_read_only", &["'off'", "'on'", "'off'"]),
        ("my.own", &["'1'", "'two'", "''"]),
        ("work_mem", &["'4MB'", "1024", "'lots'"]),
        ("statement_timeout", &["0", "'1min'"]),
        ("xmloption", &["'content'", "'document'"]),
        ("escape_string_warning", &["'on'", "'off'"]),
        // The token that the sessions start with.
        ("lease.fence", &["'7'", "7"]),
    ];
    let (name, values) = dice.pick(&settings);
    let value = dice.pick(values);
    match dice.below(10) {
        0 => format!("SHOW {name}"),
        1 => format!("RESET {name}"),
        2 => format!("SET LOCAL {name} = {value}"),
        3 => format!("SELECT set_config('{name}', ({value})::text, {})", dice.chance(50)),
        4 => {
            (*dice.pick(&["DISCARD ALL", "RESET ALL", "DISCARD PLANS", "DISCARD TEMP", "DISCARD SEQUENCES"])).to_owned()
        }
        _ => format!("SET {name} TO {value}"),
    }
}

fn definition(dice: &mut Dice) -> String {
    let choices = [
        "CREATE TABLE made (id int PRIMARY KEY, name text NOT NULL)",
        "CREATE TABLE IF NOT EXISTS made (id serial, name text)",
        "CREATE TABLE made AS SELECT id, v AS name FROM wide WHERE id < 5",
        "SELECT id, t AS name INTO made FROM wide WHERE id < 3",
        "ALTER TABLE made ADD COLUMN more text DEFAULT 'x'",
        "ALTER TABLE made DROP COLUMN name",
        "ALTER TABLE made RENAME COLUMN name TO title",
        "DROP TABLE made",
        "DROP TABLE IF EXISTS made, mine",
        "CREATE TEMP TABLE mine (id int, note text) ON COMMIT DELETE ROWS",
        "CREATE TEMP TABLE mine AS SELECT 1 AS id, 'x'::text AS note",
        "CREATE INDEX made_index ON made (id)",
        "CREATE UNIQUE INDEX CONCURRENTLY made_unique ON made (id)",
        "DROP INDEX made_index",
        "CREATE VIEW looks AS SELECT * FROM made",
        "DROP VIEW looks",
        "CREATE TYPE kind AS ENUM ('a', 'b')",
        "DROP TYPE kind",
        "CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 2 * $1'",
        "DROP FUNCTION twice",
        "COMMENT ON TABLE work0 IS 'worked on'",
        "CREATE SEQUENCE IF NOT EXISTS counter",
        "SELECT nextval('counter'), currval('counter')",
        "CREATE SCHEMA other CREATE TABLE inside (id int)",
        "DROP SCHEMA other",
        "CREATE ROLE somebody",
        "DROP ROLE IF EXISTS somebody",
        "TRUNCATE made",
        "CREATE TRIGGER t BEFORE UPDATE ON made FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ];
    (*dice.pick(&choices)).to_owned()
}

fn cursor(dice: &mut Dice) -> String {
    let name = dice.pick(&["one", "two"]);
    match dice.below(9) {
        0..3 => {
            let kind = dice.pick(&["", "SCROLL ", "NO SCROLL ", "BINARY ", "BINARY SCROLL ", "INSENSITIVE "]);
            let hold = dice.pick(&["", " WITH HOLD"]);
            format!("DECLARE {name} {kind}CURSOR{hold} FOR {}", query(dice, 1))
        }
        3..6 => {
            let which =
                dice.pick(&["NEXT", "PRIOR", "FIRST", "LAST", "ALL", "5", "BACKWARD 2", "ABSOLUTE 3", "RELATIVE 0"]);
            format!("FETCH {which} FROM {name}")
        }
        6 => format!("MOVE 2 IN {name}"),
        7 => (*dice.pick(&["CLOSE one", "CLOSE ALL"])).to_owned(),
        _ => "SELECT cursors()".to_owned(),
    }
}

fn prepared(dice: &mut Dice, scope: Scope) -> String {
    let name = dice.pick(&["p", "q"]);
    match dice.below(6) {
        0 => format!("PREPARE {name} AS {}", query(dice, 1)),
        1 => format!("PREPARE {name} (int, text) AS SELECT $1 + 1, $2 || 'x'"),
        2 => format!("PREPARE {name} (int) AS UPDATE work0 SET name = 'prepared' WHERE id = $1 RETURNING *"),
        3 => "DEALLOCATE p".to_owned(),
        4 => "SELECT name, statement, from_sql FROM pg_prepared_statements ORDER BY name".to_owned(),
        _ if scope == Scope::Judged => {
            format!("PREPARE r (int) AS SELECT $1; EXECUTE r({}); DEALLOCATE r", dice.below(9))
        }
        _ => format!("EXECUTE {name}{}", dice.pick(&["", "(1)", "(1, 'two')", "('x')"])),
    }
}

fn message(dice: &mut Dice) -> String {
    let level = dice.pick(&["debug", "log", "info", "notice", "warning", "error"]);
    match dice.below(8) {
        0..4 => format!("SELECT say('{level}', {})", text(dice)),
        4 => (*dice.pick(&["LISTEN channel", "LISTEN \"Other\"", "UNLISTEN channel", "UNLISTEN *"])).to_owned(),
        5 => format!("NOTIFY channel, 'n{}'", dice.below(3)),
        6 => format!("SELECT pg_notify('Other', {})", text(dice)),
        _ => format!("SELECT say('{level}', v) FROM wide WHERE id BETWEEN 1 AND {}", dice.below(40)),
    }
}

fn maintenance(dice: &mut Dice) -> String {
    let table = *dice.pick(&["work0", "work1", "wide", "made"]);
    match dice.below(8) {
        0 => format!("VACUUM {table}"),
        1 => format!("ANALYZE {table}"),
        2 => format!("REINDEX TABLE {table}"),
        3 => "CHECKPOINT".to_owned(),
        4 => format!("LOCK TABLE {table} IN SHARE MODE"),
        5 => format!("SELECT pg_try_advisory_lock({0}), pg_advisory_unlock({0})", dice.below(9)),
        6 => format!("SELECT * FROM {table} WHERE id < 9 ORDER BY id FOR UPDATE"),
        _ => format!("EXPLAIN (COSTS OFF{}) {}", dice.pick(&["", ", FORMAT JSON", ", FORMAT YAML"]), query(dice, 1)),
    }
}

/// Statements that the server refuses, with all kinds of error fields.
fn failure(dice: &mut Dice) -> String {
    let choices = [
        "SELEKT 1",
        "SELECT 1 FROM",
        "SELECT 'unterminated",
        "SELECT $$unterminated",
        "SELECT /* unterminated",
        "SELECT 1; SELECT (",
        "SELECT\n  'äöü',\n  nothing\nFROM wide",
        "SELECT * FROM no_such_table",
        "SELECT no_such_function(1, 'x')",
        "SELECT 1 / 0",
        "SELECT 1 / (id - 20) FROM wide ORDER BY id",
        "SELECT 'x'::int",
        "SELECT '{'::json",
        "SELECT deep(3)",
        "INSERT INTO work0 VALUES (1), (1)",
        "INSERT INTO work0 VALUES (1, 'x', 'NaN')",
        "INSERT INTO work0 (id, value) VALUES (999, 10000000)",
        "INSERT INTO work1 (parent) VALUES (-1)",
        "INSERT INTO ledger VALUES (50, NULL, 1)",
        "INSERT INTO ledger VALUES (51, 'x', -1)",
        "SELECT 3::even",
        "SELECT 'angry'::mood",
        "SELECT '\\000'::text, E'\\000'",
        "SELECT E'\\xff'",
        "SELECT convert_from('\\xff', 'UTF8')",
        "SELECT U&'\\+zzz'",
        "SELECT $1",
        "SELECT 99999999999::int",
        "SELECT (SELECT id FROM wide)",
        "SELECT set_config('work_mem', 'x', false)",
        "SELECT * FROM wide WHERE id = ANY ('not an array')",
        "SELECT 1 AS a, 1 AS a ORDER BY a",
        "GRANT nothing TO nobody",
        "FETCH 1 FROM nowhere",
        "DEALLOCATE nothing",
        "COPY wide TO '/'",
        "COPY no_such_table FROM STDIN",
        "COPY wide (nothing) TO STDOUT",
        "SELECT lo_get(1)",
        "SET SESSION AUTHORIZATION nobody",
        "SET ROLE nobody",
        "SELECT pg_catalog.pg_read_file('/nowhere')",
    ];
    (*dice.pick(&choices)).to_owned()
}

fn opaque(dice: &mut Dice) -> String {
    let choices = [
        "DO 'BEGIN RAISE NOTICE ''from a block''; END'",
        "DO 'BEGIN PERFORM 1 / 0; END'",
        "DO LANGUAGE nothing 'x'",
        "CALL nothing(1)",
        "CALL no_such_procedure()",
        "DO 'BEGIN UPDATE work0 SET name = ''from a block''; COMMIT; PERFORM say(''info'', ''after''); END'",
        "EXECUTE no_such_statement",
        "DROP TABLE IF EXISTS made, mine CASCADE",
        "DROP SCHEMA other CASCADE",
    ];
    (*dice.pick(&choices)).to_owned()
}

fn oddity(dice: &mut Dice) -> String {
    match dice.below(9) {
        0 => String::new(),
        1 => "  -- only a comment".to_owned(),
        2 => "/* one */ ; ; /* two /* nested */ */ ;".to_owned(),
        3 => format!("SELECT repeat('x{}', {})", dice.below(9), 1 << dice.below(20)),
        4 => format!("SELECT '{}' AS big", "o".repeat(1 << dice.below(16))),
        5 => format!(
            "SELECT {}",
            (0..dice.between(1, 400)).map(|n| format!("{n} AS c{n}")).collect::<Vec<_>>().join(", ")
        ),
        6 => "SELECT".to_owned(),
        7 => "SELECT FROM wide".to_owned(),
        _ => format!("SELECT lo_put(4711, {}, '\\x{:04x}'), lo_get(4711)", dice.below(90), dice.below(65536)),
    }
}
