//! Clients that pipeline, redefine names, disconnect or send excessive input can neither bypass the fence nor block
//! other sessions.

use crate::support::fenced::{Fenced, code, code_in, ok, value};
use crate::support::message::{
    self, bind_text, close_statement, copy_data, copy_done, describe_statement, execute, flush, parse, query, sync,
    unnamed,
};
use crate::support::wire::{error_in, exact, rows_in};
use crate::support::{Address, DEADLINE, Frame, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'";
const RESOURCES: &str =
    "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.run_tick]}\n";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";

/// A session with a stale or missing token, which must write nothing.
struct Outsider {
    world: Fenced,
    wire: Wire,
}

impl Outsider {
    fn new() -> Self {
        Self::with_policies(RESOURCES)
    }

    fn with_policies(policies: &str) -> Self {
        let world = Fenced::start(SCHEMA, policies);
        ok(&mut world.holder(100), "DELETE FROM jobs");
        let wire = world.holder(47);
        Self { world, wire }
    }

    /// Sends all messages together, and reads the replies up to the last ReadyForQuery.
    fn pipeline(&mut self, messages: &[Vec<u8>], readies: usize) -> Vec<Frame> {
        self.wire.send(&messages.concat());
        (0..readies).flat_map(|_| self.wire.read_until_ready()).collect()
    }

    #[track_caller]
    fn wrote_nothing(&mut self) {
        self.wire.query("COMMIT");
        assert_eq!(value(&mut self.wire, "SELECT 'alive'").as_deref(), Some("alive"));
        assert_eq!(self.world.postgres.value("SELECT count(*) FROM jobs"), "0");
    }
}

/// The SQLSTATEs of all errors, in order.
fn codes(frames: &[Frame]) -> Vec<String> {
    frames.iter().filter(|frame| frame.tag == b'E').map(|frame| frame.fields().code().to_owned()).collect()
}

#[test]
fn a_write_sent_ahead_of_the_end_of_a_failed_transaction() {
    for end in ["ROLLBACK", "COMMIT", "ROLLBACK TO a", "PREPARE TRANSACTION 'x'"] {
        let mut outsider = Outsider::new();
        let failed = ["BEGIN", "SAVEPOINT a", "SELECT nonsense"].map(query).concat();
        outsider.pipeline(std::slice::from_ref(&failed), 3);
        let frames = outsider.pipeline(&[query(end), query(WRITE)], 2);
        assert_eq!(codes(&frames), ["LF001"], "{end}");
        outsider.wire.query("ROLLBACK");
        outsider.pipeline(std::slice::from_ref(&failed), 3);
        let frames = outsider.pipeline(&[unnamed(end, &[]), unnamed(WRITE, &[]), sync()], 1);
        assert_eq!(codes(&frames), ["LF001"], "{end}, extended");
        outsider.wire.query("ROLLBACK");
        outsider.pipeline(&[failed], 3);
        assert_eq!(code(&mut outsider.wire, &format!("{end}; {WRITE}")), "LF001", "{end}, one string");
        outsider.wrote_nothing();
    }
}

#[test]
fn a_token_set_in_a_transaction_that_has_failed() {
    let world = Fenced::start(SCHEMA, RESOURCES);
    let mut wire = world.holder(47);
    wire.query("BEGIN; SET lease.fence = 100; SELECT nonsense");
    // COMMIT rolls back, and restores the token.
    ok(&mut wire, &format!("COMMIT; {WRITE}"));
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47");
}

#[test]
fn arguments_of_execute_are_judged() {
    let mut outsider = Outsider::new();
    ok(&mut outsider.wire, "PREPARE harmless AS SELECT $1::text");
    assert_eq!(code(&mut outsider.wire, "EXECUTE harmless(run_tick())"), "LF001");
    ok(&mut outsider.wire, "EXECUTE harmless(set_config('lease.fence', '99', false))");
    let error = outsider.wire.rows(WRITE).unwrap_err();
    assert_eq!(error.detail(), "resource=scheduler presented=99 highest=100");
    outsider.wrote_nothing();
}

#[test]
fn a_set_in_a_batch_that_fails() {
    let world = Fenced::start(SCHEMA, RESOURCES);
    let mut wire = world.holder(47);
    let failing = [unnamed("SET lease.fence = 100", &[]), unnamed("SELECT nonsense", &[]), sync()];
    wire.send(&[failing.concat(), unnamed(WRITE, &[]), sync()].concat());
    assert_eq!(codes(&[wire.read_until_ready(), wire.read_until_ready()].concat()), ["42703"]);
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47");

    let failing = query("SET lease.fence = 100; SELECT nonsense");
    wire.send(&[failing, query(WRITE)].concat());
    assert_eq!(codes(&[wire.read_until_ready(), wire.read_until_ready()].concat()), ["42703"]);
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47");
}

/// The meaning of the text depends on a setting, which the proxy learns only with ReadyForQuery.
#[test]
fn text_whose_meaning_an_earlier_statement_changes() {
    // With escapes in strings, this text calls the function. Without them, it is a concatenation.
    const TWOFOLD: &str = r"SELECT '\' || ' , run_tick() --'";
    let escapes = [
        "SET standard_conforming_strings = off",
        "SET LOCAL standard_conforming_strings = off",
        "SELECT set_config('standard_conforming_strings', 'off', false)",
    ];
    for escape in escapes {
        for flushed in [flush(), sync()] {
            let mut outsider = Outsider::new();
            let set = [unnamed("BEGIN", &[]), unnamed(escape, &[]), flushed].concat();
            let readies = usize::from(set.ends_with(&sync()));
            let frames = outsider.pipeline(&[set.clone(), unnamed(TWOFOLD, &[]), sync()], readies + 1);
            assert_eq!(codes(&frames).len(), 1, "{escape}: {frames:?}");
            outsider.wire.query("ROLLBACK");
            let mut outsider = Outsider::new();
            let frames = outsider.pipeline(&[set, query(TWOFOLD)], readies + 1);
            assert_eq!(codes(&frames).len(), 1, "{escape}, simple: {frames:?}");
            outsider.wrote_nothing();
        }
    }
    // The reverse: the end of the transaction restores the standard.
    const STANDARD: &str = r"SELECT '\' , run_tick() --' ";
    for end in ["COMMIT", "ROLLBACK"] {
        for message in [query(STANDARD), [unnamed(STANDARD, &[]), sync()].concat()] {
            let mut outsider = Outsider::new();
            outsider.pipeline(&[query("BEGIN; SET LOCAL standard_conforming_strings = off")], 1);
            let frames = outsider.pipeline(&[query(end), message], 2);
            assert_eq!(codes(&frames), ["LF001"], "{end}: {frames:?}");
            outsider.wrote_nothing();
        }
    }
}

#[test]
fn copy_in_with_an_early_sync() {
    let mut outsider = Outsider::new();
    let copy = [unnamed("COPY jobs FROM STDIN", &[]), sync(), copy_data(b"1\n"), copy_done(), sync()];
    // After the error, the server skips to the first Sync. The rest is data without a COPY.
    let frames = outsider.pipeline(&copy, 2);
    assert_eq!(codes(&frames), ["LF001"]);
    outsider.wrote_nothing();

    let mut holder = outsider.world.holder(100);
    let copy = [unnamed("COPY jobs FROM STDIN", &[]), flush(), sync(), copy_data(b"1\n"), copy_done(), sync()];
    holder.send(&[copy.concat(), query("SELECT count(*) FROM jobs")].concat());
    let frames = [holder.read_until_ready(), holder.read_until_ready()].concat();
    assert_eq!(codes(&frames), Vec::<String>::new());
    assert_eq!(rows_in(&frames), [[Some("1".to_owned())]]);
}

/// Only the server knows whether a failing COPY has read and ignored a Sync. The server must therefore not receive one.
#[test]
fn a_sync_within_a_copy_that_fails() {
    let schema = format!(
        "{SCHEMA}; CREATE VIEW v AS SELECT 1 AS n; CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql \
         AS $$ BEGIN RAISE 'no'; END $$; CREATE TABLE refused (n int); \
         CREATE TRIGGER no BEFORE INSERT ON refused EXECUTE FUNCTION no()"
    );
    let world = Fenced::start(&schema, RESOURCES);
    ok(&mut world.holder(100), "DELETE FROM jobs");
    let address = [world.postgres.address(), world.proxy.address()];
    // The COPY fails before it reads data, with messages ahead of the Sync, and after invalid data.
    let wrong = [copy_data(b"no number\n"), sync()].concat();
    let cases = [("v", sync()), ("refused", sync()), ("free", wrong)];
    for (table, then) in &cases {
        let many = (0..2000).map(|number| format!("SELECT pg_advisory_xact_lock({number})"));
        for before in [String::new(), many.collect::<Vec<_>>().join("; ")] {
            let conversation = |address: &Address| {
                let mut wire = Wire::login(address, "postgres", "postgres");
                wire.query(&format!("BEGIN; {before}; COMMIT; SET lease.fence = 47"));
                wire.send(&[unnamed(&format!("COPY {table} FROM STDIN"), &[]), then.clone()].concat());
                let mut frames = wire.read_until(b'E');
                // Before the fate of the Sync is known.
                wire.send(&query("SELECT 'next'"));
                frames.extend(wire.read_until_ready());
                frames.extend(wire.read_until_ready());
                frames.extend(wire.query("SELECT 'last'"));
                frames
            };
            let [direct, proxied] = [&address[0], &address[1]].map(conversation);
            assert_eq!(exact(&proxied), exact(&direct), "{table}");
        }
        for _ in 0..20 {
            let mut wire = world.holder(47);
            wire.send(&[unnamed(&format!("COPY {table} FROM STDIN"), &[]), then.clone()].concat());
            wire.read_until(b'E');
            wire.send(&query(WRITE));
            wire.read_until_ready();
            assert_eq!(codes(&wire.read_until_ready()), ["LF001"], "{table}");
        }
    }
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

#[test]
fn two_copies_in_one_string_and_a_sync_in_the_second() {
    let outsider = Outsider::new();
    let mut wire = outsider.world.holder(100);
    wire.send(&query("COPY free FROM STDIN; COPY free FROM STDIN"));
    wire.read_until(b'G');
    wire.send(&[copy_data(b"1\n"), copy_done()].concat());
    wire.read_until(b'G');
    wire.exchange(&[sync(), copy_data(b"2\n"), copy_done()].concat());
    ok(&mut wire, "SELECT set_config('lease.' || 'fence', '101', false)");
    ok(&mut wire, WRITE);
    assert_eq!(outsider.world.postgres.value("SELECT count(*) FROM free"), "2");
}

#[test]
fn a_flush_or_sync_with_a_body() {
    let outsider = Outsider::new();
    for tag in [b'H', b'S'] {
        let mut wire = outsider.world.holder(47);
        wire.send(&[message::tagged(tag, b"x"), query("SELECT 1"), sync(), query(WRITE)].concat());
        assert_eq!(codes(&wire.read_to_end()), ["08P01"]);
    }
    assert_eq!(outsider.world.postgres.value("SELECT count(*) FROM jobs"), "0");
}

/// The server stores a name in its own encoding, and truncates it there.
#[test]
fn names_in_two_encodings() {
    let mut outsider = Outsider::new();
    let named = |name: &[u8], text: &str| message::tagged(b'P', &[name, b"\0", text.as_bytes(), b"\0\0\0"].concat());
    let run = |name: &[u8]| message::tagged(b'B', &[b"\0", name, b"\0\0\0\0\0\0\0"].concat());
    let wire = &mut outsider.wire;
    ok(wire, "SET client_encoding = 'LATIN1'");
    wire.exchange(&[named(b"\xe9", WRITE), named(b"\xc3\xa9", "SELECT 1"), sync()].concat());
    ok(wire, "SET client_encoding = 'UTF8'");
    let frames = wire.exchange(&[run(b"\xc3\xa9"), execute("", 0), sync()].concat());
    assert_eq!(codes(&frames), ["LF004"]);
    outsider.wrote_nothing();
}

/// One session with a long pipeline must not block others: the cost must be linear in its length.
#[test]
fn tens_of_thousands_of_binds_of_one_name() {
    const BINDS: usize = 30_000;
    let outsider = Outsider::new();
    let mut wire = outsider.world.login();
    let binds = bind_text("", "", &[]).repeat(BINDS);
    let pipeline = [parse("", "SELECT 1", &[]), binds, sync()].concat();
    let frames = wire.send_while(&[&pipeline], |wire| wire.read_until_ready());
    assert_eq!(frames.len(), BINDS + 2);
}

/// Messages sent by a client that disconnects without reading its replies are executed.
#[test]
fn messages_sent_before_disconnecting() {
    let outsider = Outsider::new();
    for number in 0..20 {
        let mut wire = outsider.world.holder(100);
        wire.send(&query("SELECT repeat('x', 100000)"));
        // Unread data turns the close into a reset.
        wire.byte();
        wire.send(&[query(&format!("INSERT INTO jobs VALUES ({number})")), message::terminate()].concat());
    }
    let count = || outsider.world.postgres.value("SELECT count(*) FROM jobs") == "20";
    wait_until("all rows are inserted", DEADLINE, count);
}

#[test]
fn thousands_of_ends_of_copies() {
    let outsider = Outsider::new();
    let mut wire = outsider.world.login();
    let pipeline = [parse("", "SELECT 1", &[]), copy_done().repeat(10_001), sync()].concat();
    let frames = wire.send_while(&[&pipeline], |wire| wire.read_until_ready());
    assert_eq!(frames.iter().map(|frame| frame.tag).collect::<Vec<_>>(), b"1Z");
}

/// A write may change how the server reads a text after the client has sent it.
#[test]
fn text_whose_meaning_a_write_changes() {
    let mut outsider = Outsider::new();
    let update = "UPDATE pg_settings SET setting = 'off' WHERE name = 'standard_conforming_strings'";
    let frames = outsider.pipeline(&[query(update), query(r"SELECT '\' || ' , run_tick() --'")], 2);
    assert_eq!(codes(&frames).len(), 1, "{frames:?}");
    outsider.wrote_nothing();
}

#[test]
fn other_ways_to_run_fenced_statements() {
    let mut outsider = Outsider::new();
    let wire = &mut outsider.wire;
    ok(wire, "CREATE DOMAIN positive AS int; CREATE TABLE d (n positive); INSERT INTO d VALUES (1)");
    ok(wire, "CREATE TEMP VIEW own AS SELECT * FROM public.jobs");
    for (text, expected) in [
        ("ALTER DOMAIN positive ADD CHECK (run_tick() > 0)", "LF001"),
        ("EXPLAIN SELECT run_tick()", "LF001"),
        ("INSERT INTO pg_temp.own VALUES (1)", "LF001"),
        ("SELECT cursor_to_xml('p', 1, false, false, '')", "LF004"),
    ] {
        assert_eq!(code(wire, text), expected, "{text}");
    }
    outsider.wrote_nothing();
}

#[test]
fn a_thousand_queries_without_waiting() {
    const QUERIES: usize = 1000;
    let mut outsider = Outsider::new();
    let texts = [WRITE, "SELECT 1", "BEGIN", WRITE, "ROLLBACK", "EXECUTE unknown", "SET lease.fence = 'x'", "SELECT 2"];
    let all: Vec<u8> = texts.iter().cycle().take(QUERIES).flat_map(|text| query(text)).collect();
    let frames = outsider.pipeline(&[all], QUERIES);
    let expected = ["LF001", "LF001", "LF004", "LF003"];
    assert_eq!(codes(&frames).chunks(4).filter(|round| *round == expected).count(), QUERIES / texts.len());
    outsider.wrote_nothing();
}

/// A statement of 5 MiB.
fn long_statement() -> String {
    format!("INSERT INTO jobs SELECT length('{}')", "x".repeat(5 << 20))
}

#[test]
fn a_statement_too_long_to_be_judged() {
    let mut outsider = Outsider::new();
    let long = long_statement();
    assert_eq!(code(&mut outsider.wire, &long), "LF004");
    assert_eq!(codes(&outsider.pipeline(&[unnamed(&long, &[]), sync()], 1)), ["LF004"]);
    outsider.wire.query("BEGIN; INSERT INTO free VALUES (1)");
    assert_eq!(code(&mut outsider.wire, &long), "LF004");
    assert_eq!(code(&mut outsider.wire, &long), "25P02");
    assert_eq!(codes(&outsider.pipeline(&[query("ROLLBACK"), query(&long), query("SELECT 1")], 3)), ["LF004"]);
    assert_eq!(outsider.world.postgres.value("SELECT count(*) FROM free"), "0");
    outsider.wrote_nothing();
}

#[test]
fn a_long_statement_passes_where_opaque_ones_do() {
    let long = long_statement();
    let exempt = Fenced::start(SCHEMA, &format!("{RESOURCES}exempt_roles: [postgres]\n"));
    ok(&mut exempt.login(), &long);
    let allowed = Fenced::start(SCHEMA, &format!("{RESOURCES}opaque: allow\n"));
    ok(&mut allowed.login(), &long);
    let unfenced =
        Fenced::start("CREATE TABLE jobs (n int)", "version: 1\nresources:\n  - {name: a, tables: [public.b]}\n");
    ok(&mut unfenced.login(), &long);
}

#[test]
fn a_fast_path_call_in_pieces() {
    let mut outsider = Outsider::new();
    let oid = outsider.world.postgres.value("SELECT 'run_tick'::regproc::oid").parse().unwrap();
    let call = message::function_call(oid, &[]);
    let whole = error_in(&outsider.wire.exchange(&call)).unwrap();
    assert_eq!(whole.code(), "LF004");
    call.chunks(1).for_each(|byte| outsider.wire.send(byte));
    let pieces = error_in(&outsider.wire.read_until_ready()).unwrap();
    assert_eq!(pieces.message(), whole.message());
    let large = vec![0; 5 << 20];
    let frames = outsider.wire.exchange(&message::function_call(oid, &[Some(&large)]));
    assert_eq!(code_in(&frames), "LF004");
    outsider.wrote_nothing();
}

#[test]
fn a_client_that_vanishes_within_a_message() {
    let world = Fenced::start(SCHEMA, RESOURCES);
    let messages = [
        parse("s", WRITE, &[]),
        query(WRITE),
        bind_text("p", "s", &[Some(b"x")]),
        execute("p", 0),
        close_statement("s"),
        message::function_call(177, &[None, None]),
        describe_statement("s"),
    ];
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'vanishing'";
    for message in &messages {
        for cut in [1, 4, 6, message.len() - 1] {
            let mut wire = world.login();
            ok(&mut wire, "SET application_name = 'vanishing'; BEGIN; INSERT INTO free VALUES (1)");
            wire.send(&message[..cut]);
        }
    }
    wait_until("the server's sessions have ended", DEADLINE, || world.postgres.value(sessions) == "0");
    assert_eq!(world.postgres.value("SELECT count(*) FROM free"), "0");
}

#[test]
fn a_client_that_only_stops_sending_gets_its_answers() {
    let world = Fenced::start(SCHEMA, RESOURCES);
    let mut wire = world.login();
    wire.send(&[query("SELECT 1"), query(WRITE), query("SELECT 2"), vec![b'Q', 0]].concat());
    wire.finish_sending();
    let frames = wire.read_to_end();
    assert_eq!(codes(&frames), ["LF002"]);
    assert_eq!(rows_in(&frames).len(), 2);
}

#[test]
fn the_context_of_the_servers_own_errors_stays() {
    let mut outsider = Outsider::new();
    let raise = "CREATE FUNCTION fails() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$";
    outsider.world.postgres.sql(raise);
    let error = outsider.wire.rows(&format!("SELECT fails(); {WRITE}"));
    let alone = outsider.wire.rows("SELECT fails()");
    assert_eq!(error, alone);
    outsider.wrote_nothing();
}

#[test]
fn code_that_commits_within_itself() {
    let world = Fenced::start(SCHEMA, &format!("{RESOURCES}opaque: allow\n"));
    world.postgres.sql(
        "CREATE PROCEDURE sets(fails bool) LANGUAGE plpgsql AS $$ BEGIN \
            PERFORM set_config('lease.fence', (current_setting('lease.fence')::int + 1)::text, false); \
            COMMIT; IF fails THEN RAISE EXCEPTION 'no'; END IF; END $$",
    );
    let mut wire = world.holder(47);
    for (call, token) in ["CALL sets(false)", "CALL sets(true)"].iter().zip(48..) {
        wire.query(call);
        ok(&mut wire, WRITE);
        assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), token.to_string(), "{call}");
    }
}

#[test]
fn a_fast_path_call_that_sets_the_token() {
    let world = Fenced::start(SCHEMA, &format!("{RESOURCES}opaque: allow\n"));
    let set_config: u32 = world.postgres.value("SELECT 'set_config'::regproc::oid").parse().unwrap();
    let call = message::function_call(set_config, &[Some(b"lease.fence"), Some(b"49"), Some(&[0])]);
    let mut wire = world.holder(47);
    wire.send(&[query("SET lease.fence = 48"), call, query(WRITE)].concat());
    let frames = [wire.read_until_ready(), wire.read_until_ready(), wire.read_until_ready()].concat();
    assert_eq!(codes(&frames), Vec::<String>::new());
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "49");
}

#[test]
fn a_fence_that_comes_in_the_middle_of_a_transaction() {
    const NOTHING: &str = "version: 1\nresources: []\n";
    let options = ProxyOptions::default().policies(NOTHING);
    let mut world = Fenced::start_with(crate::support::Options::default(), SCHEMA, &options);
    let mut wire = world.holder(47);
    ok(&mut wire, "BEGIN; SET lease.fence = 100; SAVEPOINT a; SET lease.fence = 101");
    world.proxy.write_policies(RESOURCES);
    world.proxy.sighup();
    wait_until("the policies are in force", DEADLINE, || code(&mut world.login(), WRITE) == "LF002");
    ok(&mut wire, "INSERT INTO jobs SELECT 1 WHERE false");
    ok(&mut wire, "ROLLBACK");
    ok(&mut world.holder(200), "DELETE FROM jobs");
    let error = wire.rows(WRITE).unwrap_err();
    assert_eq!(error.detail(), "resource=scheduler presented=47 highest=200");
}
