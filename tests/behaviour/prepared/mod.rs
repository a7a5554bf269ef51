//! Verdicts follow the names of prepared statements and portals: for any use of names, in the protocol and in SQL, a
//! stale session is rejected exactly where the server would have written. The server itself is the reference: a
//! database without a proxy whose table refuses every write with LF001.

mod random;
mod scenarios;

use crate::support::fenced::{Fenced, code_in, ok};
use crate::support::message::{
    bind_text, close_portal, close_statement, execute, flush, parse, query, sync, terminate, unnamed,
};
use crate::support::wire::{error_in, exact};
use crate::support::{Address, Frame, Wire, length, seed};
use fencegate_testing::dice::Dice;
use scenarios::SCENARIOS;

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int)";
const REFUSES: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
    $$ BEGIN RAISE EXCEPTION 'stale' USING errcode = 'LF001'; END $$; \
    CREATE TRIGGER refuse BEFORE INSERT ON jobs EXECUTE FUNCTION refuse()";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

const READ: &str = "SELECT 'read'";
const ROWS: &str = "VALUES (1), (2), (3)";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const WRITE_ROWS: &str = "INSERT INTO jobs VALUES (1), (2), (3) RETURNING 'written'";
const BROKEN: &str = "SELECT nonsense";

/// One message of a client.
#[derive(Clone, Copy, Debug)]
enum Act {
    Parse(&'static str, &'static str),
    Bind(&'static str, &'static str),
    Execute(&'static str, u32),
    CloseStatement(&'static str),
    ClosePortal(&'static str),
    Flush,
    Sync,
    /// A simple query.
    Query(&'static str),
    /// The same in the extended protocol.
    Run(&'static str),
}
use Act::{Bind, ClosePortal, CloseStatement, Execute, Flush, Parse, Query, Run, Sync};

impl Act {
    fn message(self) -> Vec<u8> {
        match self {
            Parse(name, text) => parse(name, text, &[]),
            Bind(portal, name) => bind_text(portal, name, &[]),
            Execute(portal, limit) => execute(portal, limit),
            CloseStatement(name) => close_statement(name),
            ClosePortal(name) => close_portal(name),
            Flush => flush(),
            Sync => sync(),
            Query(text) => query(text),
            Run(text) => unnamed(text, &[]),
        }
    }
}

struct World {
    fenced: Fenced,
}

impl World {
    fn start() -> Self {
        let fenced = Fenced::start(SCHEMA, POLICIES);
        fenced.postgres.sql("CREATE DATABASE judge");
        fenced.postgres.sql_in("judge", &format!("{SCHEMA}; {REFUSES}"));
        ok(&mut fenced.holder(100), "DELETE FROM jobs");
        Self { fenced }
    }

    /// Asserts that a stale session is rejected where the judge refuses, with and without waiting for answers.
    #[track_caller]
    fn check(&self, acts: &[Act]) {
        for waits in [true, false] {
            let direct = converse(&self.fenced.postgres.address(), "judge", acts, waits);
            let proxied = converse(&self.fenced.proxy.address(), "postgres", acts, waits);
            let same =
                direct.len() == proxied.len() && direct.iter().zip(&proxied).all(|(one, other)| agree(one, other));
            assert!(same, "waits: {waits}\n{acts:?}\ndirect: {direct:#?}\nproxied: {proxied:#?}");
        }
        assert_eq!(self.fenced.postgres.value("SELECT count(*) FROM jobs"), "0", "{acts:?}");
    }
}

/// A session with token 47, which DISCARD does not remove.
fn converse(address: &Address, database: &str, acts: &[Act], waits: bool) -> Vec<Frame> {
    let mut wire = Wire::connect(address).unwrap();
    wire.start(&[("user", "postgres"), ("database", database), ("options", "-clease.fence=47")], "");
    let mut frames = Vec::new();
    let mut in_batch = false;
    for act in acts {
        wire.send(&act.message());
        let answered = matches!(act, Sync) || matches!(act, Query(_)) && !in_batch;
        in_batch = !answered;
        if waits && answered {
            frames.extend(wire.read_until_ready());
        }
    }
    wire.send(&[sync(), terminate()].concat());
    frames.extend(wire.read_to_end());
    frames
}

/// True if the messages are equal. For rejections, only the SQLSTATE counts.
fn agree(direct: &Frame, proxied: &Frame) -> bool {
    /// Codes of names that are missing, finished or failed. The proxy may reject such a name by its last known meaning.
    const DOES_NOT_RUN: [&str; 4] = ["26000", "34000", "55000", "XX000"];
    const REJECTED: [&str; 3] = ["LF001", "LF004", "25P02"];
    if (direct.tag, proxied.tag) != (b'E', b'E') {
        return exact(std::slice::from_ref(direct)) == exact(std::slice::from_ref(proxied));
    }
    let (expected, error) = (direct.fields(), proxied.fields());
    let both_reject = expected.code() == "LF001" && error.code() == "LF001";
    let neither_runs = DOES_NOT_RUN.contains(&expected.code()) && REJECTED.contains(&error.code());
    both_reject || neither_runs || error == expected
}

#[test]
fn names_and_their_meaning() {
    let world = World::start();
    for (what, acts) in SCENARIOS {
        println!("{what}");
        world.check(acts);
    }
}

/// The token is compared when the statement runs.
#[test]
fn a_newer_token_before_execute() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut wire = world.holder(1);
    // Bound but not run: a newer leader need not terminate it.
    wire.send(&[parse("s", WRITE_ROWS, &[]), bind_text("p", "s", &[]), flush()].concat());
    wire.read_until(b'2');
    ok(&mut world.holder(2), "DELETE FROM jobs");
    let error = error_in(&wire.exchange(&[execute("p", 1), sync()].concat())).unwrap();
    assert_eq!((error.severity(), error.detail()), ("ERROR", "resource=scheduler presented=1 highest=2"));
    let again = [bind_text("", "s", &[]), execute("", 0), sync()].concat();
    assert_eq!(code_in(&wire.exchange(&again)), "LF001");

    // A portal that has run in part may have written. Its session is terminated, and the next message receives the
    // reason.
    let mut wire = world.holder(2);
    wire.send(&[parse("s", WRITE_ROWS, &[]), bind_text("p", "s", &[]), execute("p", 1), flush()].concat());
    wire.read_until(b's');
    ok(&mut world.holder(3), "DELETE FROM jobs");
    let error = error_in(&wire.exchange(&[execute("p", 0), sync()].concat())).unwrap();
    let detail = "resource=scheduler presented=2 highest=3 outcome=rolled_back";
    assert_eq!((error.severity(), error.code(), error.detail()), ("FATAL", "LF001", detail));
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

/// A table that was harmless now leads to the fenced table, and the server replans the statement.
#[test]
fn ddl_before_execute() {
    let changes = [
        "DROP TABLE free; CREATE VIEW free AS SELECT * FROM jobs",
        "CREATE RULE also AS ON INSERT TO free DO ALSO INSERT INTO jobs VALUES (1)",
        "ALTER TABLE free RENAME TO past; CREATE TABLE free (n int) PARTITION BY LIST (n); ALTER TABLE free ATTACH PARTITION jobs DEFAULT",
    ];
    let prepare = [parse("s", "INSERT INTO free VALUES (1)", &[]), sync()].concat();
    let run = [bind_text("", "s", &[]), execute("", 0), sync()].concat();
    for change in changes {
        let world = Fenced::start(SCHEMA, POLICIES);
        let (mut wire, mut owner) = (world.holder(47), world.holder(100));
        ok(&mut owner, "DELETE FROM jobs");
        assert_eq!(code_in(&wire.exchange(&[prepare.clone(), run.clone()].concat())), "");
        assert_eq!(code_in(&wire.read_until_ready()), "", "{change}");
        ok(&mut wire, "PREPARE q AS INSERT INTO free VALUES (2)");
        owner.query("BEGIN");
        for statement in change.split("; ") {
            ok(&mut owner, statement);
        }
        ok(&mut owner, "COMMIT");
        for frames in [wire.exchange(&run), wire.query("EXECUTE q")] {
            assert_eq!(code_in(&frames), "LF001", "{change}");
        }
    }
}

/// An unqualified name is resolved by the search path when the portal is bound.
#[test]
fn a_search_path_changed_before_execute() {
    let world = Fenced::start(&format!("{SCHEMA}; CREATE SCHEMA other; CREATE TABLE other.jobs (n int)"), POLICIES);
    ok(&mut world.holder(100), "DELETE FROM jobs");
    let mut wire = world.holder(47);
    ok(&mut wire, "SET search_path = other");
    wire.exchange(&[parse("s", WRITE, &[]), sync()].concat());
    ok(&mut wire, "SET search_path = public");
    let frames = wire.exchange(&[bind_text("", "s", &[]), execute("", 0), sync()].concat());
    assert_eq!(code_in(&frames), "LF001");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

/// A cursor's query runs when rows are fetched, in either protocol.
#[test]
fn a_cursor_that_sets_the_token() {
    let world = World::start();
    for fetch in [query("FETCH c"), [execute("c", 1), sync()].concat()] {
        let mut wire = world.fenced.holder(100);
        ok(&mut wire, "BEGIN; DECLARE c CURSOR FOR SELECT set_config('lease.fence', '99', false)");
        // The proxy now knows the token.
        ok(&mut wire, WRITE);
        assert_eq!(code_in(&wire.exchange(&fetch)), "");
        assert_eq!(wire.rows(WRITE).unwrap_err().detail(), "resource=scheduler presented=99 highest=100");
    }
}

#[test]
fn thousands_of_names() {
    const NAMES: usize = 3000;
    let world = World::start();
    let mut wire = world.fenced.holder(47);
    let writes = |number: usize| number.is_multiple_of(3);
    let define = |number| parse(&format!("s{number}"), if writes(number) { WRITE } else { READ }, &[]);
    assert_eq!(code_in(&wire.exchange(&[(0..NAMES).flat_map(define).collect(), sync()].concat())), "");
    let run = |number| [bind_text("", &format!("s{number}"), &[]), execute("", 0), sync()].concat();
    wire.send(&(0..NAMES).rev().flat_map(run).collect::<Vec<u8>>());
    for number in (0..NAMES).rev() {
        let expected = if writes(number) { "LF001" } else { "" };
        assert_eq!(code_in(&wire.read_until_ready()), expected, "s{number}");
    }
}

#[test]
fn random_conversations() {
    const LENGTH: usize = 30;
    let world = World::start();
    let first = seed();
    for number in 0..length(20, 200) {
        let mut dice = Dice::new(first * 1_000_000 + number);
        let acts: Vec<Act> = (0..LENGTH).flat_map(|_| random::phrase(&mut dice)).collect();
        println!("conversation {number}");
        world.check(&acts);
    }
}
