//! A rejected statement looks to a client as a statement that the server itself refuses: the same messages in the
//! same order, the same transaction state, nothing written, and the session goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::fenced::{Fenced, ok};
use support::message::{
    bind_text, close_statement, describe_portal, describe_statement, execute, flush, parse, query, sync, unnamed,
};
use support::wire::exact;
use support::{Address, Frame, Postgres, Wire};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE notes (note text); \
    CREATE PROCEDURE work() LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

/// Fails where it runs, not where it is planned.
const DIVISION: &str = "INSERT INTO jobs SELECT 1/(random()*0)::int";
const DIVISION_BY_ZERO: &str = "22012";
const FAILED_TRANSACTION: &str = "25P02";

/// What is rejected, and how the session comes to it.
struct Rejected {
    code: &'static str,
    /// What DETAIL says, and what the message or the hint names.
    detail: &'static str,
    database: &'static str,
    /// Run before everything else.
    setup: &'static str,
    /// In one transaction; the last one is rejected.
    statements: &'static [&'static str],
}

const STALE: Rejected = Rejected {
    code: "LF001",
    detail: "resource=scheduler presented=47 highest=100",
    database: "postgres",
    setup: "SET lease.fence = 47",
    statements: &["INSERT INTO jobs VALUES (1)"],
};

#[test]
fn a_stale_token() {
    let world = start();
    ok(&mut world.holder(100), "DELETE FROM jobs");
    STALE.everywhere(&world);
}

#[test]
fn no_token() {
    let rejected = Rejected { code: "LF002", detail: "resource=scheduler", setup: "RESET lease.fence", ..STALE };
    rejected.everywhere(&start());
}

#[test]
fn a_value_that_is_no_token() {
    let rejected = Rejected { code: "LF003", detail: "", statements: &["SET lease.fence = 'x'"], ..STALE };
    rejected.everywhere(&start());
}

#[test]
fn two_tokens_in_one_transaction() {
    let detail = "resource=scheduler presented=48 highest=47";
    let statements = &["INSERT INTO jobs VALUES (1)", "SET lease.fence = 48", "INSERT INTO jobs VALUES (2)"];
    Rejected { code: "LF003", detail, statements, ..STALE }.everywhere(&start());
}

#[test]
fn code_that_the_proxy_cannot_see() {
    let opaque = Rejected { code: "LF004", detail: "", ..STALE };
    let world = start();
    Rejected { statements: &["DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$"], ..opaque }.everywhere(&world);
    Rejected { statements: &["CALL work()"], ..opaque }.everywhere(&world);
}

#[test]
fn a_transaction_prepared_by_a_holder() {
    let setup = "SET lease.fence = 47; DELETE FROM jobs WHERE false";
    let statements = &["PREPARE TRANSACTION 'hidden'"];
    let world = start();
    Rejected { code: "LF004", detail: "", setup, statements, ..STALE }.everywhere(&world);
    assert_eq!(world.postgres.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

#[test]
fn a_database_without_a_fence() {
    let world = start();
    Rejected { code: "LF006", detail: "resource=scheduler", database: "plain", ..STALE }.everywhere(&world);
}

fn start() -> Fenced {
    let world = Fenced::start(SCHEMA, POLICIES);
    world.postgres.sql("CREATE DATABASE plain");
    world.postgres.sql_in("plain", "CREATE TABLE jobs (n int); CREATE TABLE notes (note text)");
    world
}

/// Asked of a session where it is rejected and, with a division by zero in its place, of the server itself.
type Conversation = fn(&mut Wire, &[&str]) -> Vec<Frame>;

const CONVERSATIONS: &[(&str, Conversation)] = &[
    ("an idle session", idle),
    ("the first of several in a string", first_in_string),
    ("in the middle of a string", middle_of_string),
    ("the last of several in a string", last_in_string),
    ("a string with transactions of its own", string_with_transactions),
    ("a transaction", in_transaction),
    ("after a savepoint", after_savepoint),
    ("the extended protocol", extended),
    ("the extended protocol in a transaction", extended_in_transaction),
    ("with Flush before and after", with_flush),
    ("named statements and portals", named),
    ("the first of a pipeline", first_in_pipeline),
    ("in the middle of a pipeline", middle_of_pipeline),
    ("the last of a pipeline", last_in_pipeline),
    ("a pipeline of batches", batches),
    ("simple after extended without Sync", simple_after_extended),
    ("extended before simple without Sync", extended_before_simple),
    ("queries without waiting", queries_without_waiting),
];

impl Rejected {
    /// In every place as a division by zero there; where a transaction has failed already, as itself.
    #[track_caller]
    fn everywhere(&self, world: &Fenced) {
        let mut division = self.statements.to_vec();
        *division.last_mut().unwrap() = DIVISION;
        for (place, conversation) in CONVERSATIONS {
            self.compare(world, place, *conversation, &division);
        }
        self.compare(world, "a failed transaction", in_failed_transaction, self.statements);
    }

    /// `reference` is what the server itself is asked.
    #[track_caller]
    fn compare(&self, world: &Fenced, place: &str, conversation: Conversation, reference: &[&str]) {
        let what = format!("{}, {:?}: {place}", self.code, self.statements);
        let run = |address: &Address, statements: &[&str]| {
            let frames = self.converse(address, conversation, statements);
            (frames, take_notes(&world.postgres, self.database))
        };
        let (direct, notes_direct) = run(&world.postgres.address(), reference);
        let (proxied, notes_proxied) = run(&world.proxy.address(), self.statements);
        self.check_errors(&direct, &proxied, &what);
        assert_eq!(without_errors(&proxied), without_errors(&direct), "{what}");
        assert_eq!(notes_proxied, notes_direct, "{what}");
    }

    fn converse(&self, address: &Address, conversation: Conversation, statements: &[&str]) -> Vec<Frame> {
        let mut wire = Wire::login(address, "postgres", self.database);
        ok(&mut wire, self.setup);
        let mut frames = conversation(&mut wire, statements);
        // Where a transaction has failed, this rolls it back; elsewhere it is a warning.
        frames.extend(wire.query("COMMIT"));
        frames.extend(wire.query("SELECT 1; SELECT name FROM pg_prepared_statements; SELECT name FROM pg_cursors"));
        frames
    }

    fn check_errors(&self, direct: &[Frame], proxied: &[Frame], what: &str) {
        let errors = |frames: &[Frame]| -> Vec<_> {
            frames.iter().filter(|frame| frame.tag == b'E').map(Frame::fields).collect()
        };
        let (direct, proxied) = (errors(direct), errors(proxied));
        assert_eq!(proxied.len(), direct.len(), "{what}: {proxied:?}");
        for (expected, error) in direct.iter().zip(&proxied) {
            if expected.code() != DIVISION_BY_ZERO {
                assert_eq!(error, expected, "{what}");
                continue;
            }
            assert_eq!((error.severity(), error.code(), error.detail()), ("ERROR", self.code, self.detail), "{what}");
            assert!(!error.message().is_empty() && !error.hint().is_empty(), "{what}: {error:?}");
            for trace in ['W', 'q', 'p', 'P'] {
                assert_eq!(error.get(trace), "", "{what}: {error:?}");
            }
        }
    }
}

/// What was committed, taken away. Of the fenced table nothing may be.
fn take_notes(postgres: &Postgres, database: &str) -> Vec<Option<String>> {
    assert_eq!(postgres.sql_in(database, "DELETE FROM jobs RETURNING n"), Vec::<Vec<_>>::new());
    postgres.sql_in(database, "DELETE FROM notes RETURNING note").into_iter().flatten().collect()
}

/// The transcript without the fields of those errors that differ.
fn without_errors(frames: &[Frame]) -> Vec<Frame> {
    let reduce = |frame: Frame| match frame.tag {
        b'E' if frame.fields().code() != FAILED_TRANSACTION => Frame { tag: b'E', body: Vec::new() },
        _ => frame,
    };
    exact(frames).into_iter().map(reduce).collect()
}

const NOTE: &str = "INSERT INTO notes VALUES ('kept?')";

fn idle(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.query(&statements.join("; "))
}

fn first_in_string(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.query(&format!("{}; {NOTE}; SELECT 'not reached'", statements.join("; ")))
}

fn middle_of_string(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.query(&format!(" {NOTE}; SELECT 'ran' ;\n-- a comment\n{} ; /* and */ {NOTE}", statements.join("; ")))
}

fn last_in_string(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.query(&format!("{NOTE};;{NOTE} RETURNING 'ürgs'; {} -- the end", statements.join("; ")))
}

fn string_with_transactions(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let text = format!("BEGIN; {NOTE}; COMMIT; BEGIN; {NOTE}; {}; COMMIT; {NOTE}", statements.join("; "));
    [wire.query(&text), wire.query("SELECT 'refused'")].concat()
}

fn in_transaction(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let before = ["BEGIN", NOTE];
    let after = ["SELECT 'refused'", NOTE];
    before.iter().chain(statements).chain(&after).flat_map(|statement| wire.query(statement)).collect()
}

fn after_savepoint(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let before = ["BEGIN", "SAVEPOINT a", NOTE];
    let after = ["SELECT 'refused'", "ROLLBACK TO a", "SELECT 'goes on'", "INSERT INTO notes VALUES ('kept')"];
    before.iter().chain(statements).chain(&after).flat_map(|statement| wire.query(statement)).collect()
}

fn in_failed_transaction(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let last = statements.last().unwrap();
    let extended = [unnamed_described(&[last]), sync()].concat();
    [query(last), extended]
        .iter()
        .flat_map(|message| {
            let before = ["BEGIN", NOTE, "SELECT nonsense"].map(|statement| wire.query(statement)).concat();
            [before, wire.exchange(message), wire.query("ROLLBACK")].concat()
        })
        .collect()
}

fn extended(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.exchange(&[unnamed_described(statements), sync()].concat())
}

fn extended_in_transaction(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let mut frames = wire.query(&format!("BEGIN; {NOTE}"));
    let before = statements.split_last().unwrap().1;
    frames.extend(before.iter().flat_map(|statement| wire.exchange(&[unnamed(statement, &[]), sync()].concat())));
    for statement in [statements.last().unwrap(), NOTE, "COMMIT"] {
        frames.extend(wire.exchange(&[unnamed_described(&[statement]), sync()].concat()));
    }
    frames
}

fn with_flush(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let (last, before) = statements.split_last().unwrap();
    wire.send(&[unnamed(NOTE, &[]), flush()].concat());
    let mut frames = wire.read_until(b'C');
    for statement in before {
        wire.send(&[unnamed(statement, &[]), flush()].concat());
        frames.extend(wire.read_until(b'C'));
    }
    wire.send(&[parse("", last, &[]), bind_text("", "", &[]), describe_portal(""), flush()].concat());
    frames.extend(wire.read_until(b'n'));
    wire.send(&[execute("", 0), flush()].concat());
    frames.extend(wire.read_until(b'E'));
    wire.send(&[unnamed(NOTE, &[]), flush()].concat());
    frames.extend(wire.exchange(&sync()));
    frames
}

fn named(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let (last, before) = statements.split_last().unwrap();
    let mut frames = wire.exchange(&[parse("ours", last, &[]), describe_statement("ours"), sync()].concat());
    let before: Vec<u8> = before.iter().flat_map(|statement| unnamed(statement, &[])).collect();
    let run = [bind_text("portal", "ours", &[]), describe_portal("portal"), execute("portal", 0)].concat();
    frames.extend(wire.exchange(&[before.clone(), run.clone(), sync()].concat()));
    // The statement is still there, the portal is not.
    frames.extend(wire.exchange(&[describe_statement("ours"), sync()].concat()));
    frames.extend(wire.query("SELECT name FROM pg_prepared_statements"));
    frames.extend(wire.query("BEGIN"));
    frames.extend(wire.exchange(&[before, run, sync()].concat()));
    frames.extend(wire.exchange(&[close_statement("ours"), sync()].concat()));
    frames
}

fn first_in_pipeline(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.exchange(&[unnamed_described(statements), unnamed(NOTE, &[]), sync()].concat())
}

fn middle_of_pipeline(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let pipeline = [unnamed(NOTE, &[]), unnamed_described(statements), parse("never", "SELECT 1", &[]), flush()];
    wire.exchange(&[pipeline.concat(), unnamed(NOTE, &[]), sync()].concat())
}

fn last_in_pipeline(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.exchange(&[unnamed(NOTE, &[]), parse("gone", "SELECT 1", &[]), unnamed_described(statements), sync()].concat())
        .into_iter()
        .chain(wire.exchange(&[close_statement("gone"), sync()].concat()))
        .collect()
}

fn batches(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let note = [unnamed(NOTE, &[]), sync()].concat();
    let rejected = [unnamed_described(statements), sync()].concat();
    wire.send(&[note.clone(), rejected.clone(), note.clone(), rejected, note].concat());
    (0..5).flat_map(|_| wire.read_until_ready()).collect()
}

fn simple_after_extended(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.send(&[unnamed(NOTE, &[]), query(&statements.join("; ")), unnamed(NOTE, &[]), sync()].concat());
    [wire.read_until_ready(), wire.read_until_ready()].concat()
}

fn extended_before_simple(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    wire.send(&[unnamed_described(statements), query(NOTE), unnamed(NOTE, &[]), sync(), query("SELECT 2")].concat());
    [wire.read_until_ready(), wire.read_until_ready()].concat()
}

fn queries_without_waiting(wire: &mut Wire, statements: &[&str]) -> Vec<Frame> {
    let rejected = statements.join("; ");
    let texts = ["BEGIN", NOTE, &rejected, "SELECT 'refused'", "COMMIT", NOTE, &rejected, NOTE];
    wire.send(&texts.map(query).concat());
    texts.iter().flat_map(|_| wire.read_until_ready()).collect()
}

/// Parse, Bind, Describe and Execute of each, without a Sync.
fn unnamed_described(statements: &[&str]) -> Vec<u8> {
    let run =
        |statement: &&str| [parse("", statement, &[]), bind_text("", "", &[]), describe_portal(""), execute("", 0)];
    statements.iter().flat_map(|statement| run(statement).concat()).collect()
}
