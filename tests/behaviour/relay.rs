//! An established session: all messages between client and server pass byte for byte and in order.

use crate::support::message::{self, bind_binary, bind_text, execute, flush, parse, query, sync, unnamed};
use crate::support::wire::{error_in, exact, rows_in};
use crate::support::{Address, DEADLINE, Frame, Options, Target, Via, Wire, wait_until};

crate::routes!(
    simple_queries,
    extended_queries,
    portals_and_statements,
    pipelines,
    an_error_skips_to_the_sync,
    flush_without_sync,
    copy_out,
    copy_in,
    copy_that_fails,
    function_calls,
    notices,
    notifications,
    session_state,
    messages_in_single_bytes,
    unknown_messages,
    malformed_lengths,
    the_end_of_the_server,
    the_end_of_a_client,
);

// Expressions replace columns, because the table's OID in the row description differs from session to session.

fn simple_queries(via: Via) {
    converse(via, |wire| {
        let texts = [
            "SELECT 1, NULL, 'x', ARRAY[1,2]",
            "SELECT g FROM generate_series(1, 3) g; SELECT 'second'; SELECT 1 WHERE false",
            "",
            ";;",
            "-- nothing",
            "BEGIN",
            "CREATE TEMP TABLE t (id int)",
            "INSERT INTO t VALUES (1), (2) RETURNING id + 0",
            "SELECT 1/0",
            "SELECT 'ignored in an aborted transaction'",
            "ROLLBACK",
            "SELECT 1; SELECT nonsense; SELECT 'not reached'",
            "SET application_name = 'renamed'",
            "SELECT repeat('x', 100000)",
        ];
        texts.iter().flat_map(|text| wire.query(text)).collect()
    });
}

fn extended_queries(via: Via) {
    converse(via, |wire| {
        let binary = 42i32.to_be_bytes();
        let texts = [
            [parse("", "SELECT $1::int4 + 1, $2::text", &[]), bind_text("", "", &[Some(b"41"), None])],
            [parse("", "SELECT $1::int4 * 2", &[23]), bind_binary("", "", &[Some(&binary)])],
        ];
        let run =
            |message: [Vec<u8>; 2]| [message.concat(), message::describe_portal(""), execute("", 0), sync()].concat();
        texts.into_iter().flat_map(|message| wire.exchange(&run(message))).collect()
    });
}

fn portals_and_statements(via: Via) {
    converse(via, |wire| {
        let steps = [
            [parse("s", "SELECT g FROM generate_series(1, $1) g", &[23]), message::describe_statement("s"), sync()]
                .concat(),
            query("BEGIN"),
            [bind_text("p", "s", &[Some(b"5")]), message::describe_portal("p"), execute("p", 2), sync()].concat(),
            [execute("p", 2), execute("p", 2), execute("p", 2), sync()].concat(),
            [message::close_portal("p"), execute("p", 1), sync()].concat(),
            query("ROLLBACK"),
            [message::close_statement("s"), message::close_statement("s"), sync()].concat(),
            [message::describe_statement("s"), sync()].concat(),
            query("PREPARE q AS SELECT $1::int; EXECUTE q(3); DEALLOCATE q"),
        ];
        steps.iter().flat_map(|step| wire.exchange(step)).collect()
    });
}

fn pipelines(via: Via) {
    converse(via, |wire| {
        let mut batch = Vec::new();
        const SYNCS: usize = 200;
        for number in 0..SYNCS {
            let number = number.to_string();
            batch.extend(unnamed("SELECT $1", &[Some(number.as_bytes())]));
            // Simple queries may come in between, and an implicit transaction may hold several statements.
            batch.extend(unnamed("SELECT 'twice'", &[]));
            batch.extend(if number.ends_with('7') {
                [sync(), query("SELECT 'simple'; SELECT 1/0")].concat()
            } else {
                sync()
            });
        }
        wire.send(&batch);
        let readies = SYNCS + SYNCS / 10;
        (0..readies).flat_map(|_| wire.read_until_ready()).collect()
    });
}

fn an_error_skips_to_the_sync(via: Via) {
    converse(via, |wire| {
        let batch = [
            unnamed("CREATE TEMP TABLE t (id int)", &[]),
            unnamed("SELECT 1/0", &[]),
            unnamed("SELECT 'skipped'", &[]),
            parse("never", "SELECT 1", &[]),
            flush(),
            sync(),
            unnamed("SELECT to_regclass('t')", &[]),
            sync(),
        ];
        wire.send(&batch.concat());
        let mut frames = wire.read_until_ready();
        frames.extend(wire.read_until_ready());
        frames.extend(wire.exchange(&[message::describe_statement("never"), sync()].concat()));
        frames
    });
}

fn flush_without_sync(via: Via) {
    converse(via, |wire| {
        wire.send(&[unnamed("SELECT 'flushed'", &[]), flush()].concat());
        let mut frames = wire.read_until(b'C');
        wire.send(&[parse("", "SELECT 2", &[]), message::describe_statement(""), flush()].concat());
        frames.extend(wire.read_until(b'T'));
        frames.extend(wire.exchange(&sync()));
        frames
    });
}

fn copy_out(via: Via) {
    converse(via, |wire| {
        let mut frames = wire.query("COPY (SELECT g, 'text ' || g FROM generate_series(1, 1000) g) TO STDOUT");
        frames.extend(wire.query("COPY (SELECT 1) TO STDOUT (FORMAT binary); SELECT 'after'"));
        frames.extend(wire.exchange(&[unnamed("COPY (SELECT 2) TO STDOUT", &[]), sync()].concat()));
        frames
    });
}

fn copy_in(via: Via) {
    converse(via, |wire| {
        let mut frames = wire.query("CREATE TEMP TABLE t (id int, name text)");
        wire.send(&query("COPY t FROM STDIN"));
        frames.extend(wire.read_until(b'G'));
        // Lines need not end where messages end.
        let data = [&b"1\tone\n2\tt"[..], b"wo\n", b"", b"3\t\\N\n"].map(message::copy_data).concat();
        frames.extend(wire.exchange(&[data, message::copy_done()].concat()));
        // All at once, in a pipeline. A Flush and a Sync are ignored during COPY.
        let extended = [unnamed("COPY t FROM STDIN", &[]), message::copy_data(b"4\tfour\n"), flush(), sync()];
        wire.send(&[extended.concat(), message::copy_done(), sync()].concat());
        frames.extend(wire.read_until_ready());
        frames.extend(wire.query("SELECT id + 0, name || '' FROM t ORDER BY id"));
        frames
    });
}

fn copy_that_fails(via: Via) {
    converse(via, |wire| {
        let mut frames = wire.query("CREATE TEMP TABLE t (id int)");
        wire.send(&query("COPY t FROM STDIN"));
        frames.extend(wire.read_until(b'G'));
        frames.extend(wire.exchange(&[message::copy_data(b"1\n"), message::copy_fail("changed my mind")].concat()));
        wire.send(&query("COPY t FROM STDIN"));
        frames.extend(wire.read_until(b'G'));
        frames.extend(wire.exchange(&message::copy_data(b"not a number\n")));
        // The server skips data that arrives after its error.
        wire.send(&[message::copy_data(b"2\n"), message::copy_done()].concat());
        frames.extend(wire.query("SELECT count(*) FROM t"));
        frames
    });
}

fn function_calls(via: Via) {
    const INT4PL: u32 = 177;
    const NO_FUNCTION: u32 = 1;
    converse(via, |wire| {
        let [two, three] = [2i32, 3].map(i32::to_be_bytes);
        let mut frames = wire.exchange(&message::function_call(INT4PL, &[Some(&two), Some(&three)]));
        frames.extend(wire.exchange(&message::function_call(INT4PL, &[Some(&two), None])));
        frames.extend(wire.exchange(&message::function_call(NO_FUNCTION, &[])));
        frames
    });
}

fn notices(via: Via) {
    let frames = converse(via, |wire| {
        let raise =
            "DO $$ BEGIN RAISE WARNING 'look %', 'here' USING detail = 'd', hint = 'h', errcode = '01ABC'; END $$";
        let mut frames = wire.query(raise);
        frames.extend(wire.query("SET client_min_messages = debug1; ROLLBACK"));
        frames
    });
    assert_eq!(frames.iter().filter(|frame| frame.tag == b'N').count(), 2, "{frames:?}");
}

fn notifications(via: Via) {
    let frames = converse_with(via, |address| {
        let mut listener = Wire::login(address, "postgres", "postgres");
        let mut notifier = Wire::login(address, "postgres", "postgres");
        let mut frames = listener.query("LISTEN news");
        notifier.query("NOTIFY news, 'while idle'");
        // The notification arrives without a query.
        frames.extend(listener.read_until(b'A'));
        listener.query("BEGIN");
        notifier.query("NOTIFY news, 'in a transaction'");
        let mut last = listener.query("COMMIT");
        // The notification may arrive before or after the end of the reply.
        if last.iter().all(|frame| frame.tag != b'A') {
            last.extend(listener.read_until(b'A'));
        }
        last.sort_by_key(|frame| frame.tag == b'A');
        frames.extend(last);
        frames
    });
    assert_eq!(frames.iter().filter(|frame| frame.tag == b'A').count(), 2, "{frames:?}");
}

fn session_state(via: Via) {
    let target = via.start(Options::default());
    let mut wire = target.login();
    wire.query("SET work_mem = '5MB'; CREATE TEMP TABLE mine (id int); SELECT pg_advisory_lock(7)");
    let mut other = target.login();
    assert_eq!(value(&mut wire, "SHOW work_mem"), "5MB");
    assert_eq!(value(&mut other, "SHOW work_mem"), "4MB");
    assert_eq!(value(&mut other, "SELECT coalesce(to_regclass('mine')::text, 'none')"), "none");
    assert_eq!(value(&mut other, "SELECT pg_try_advisory_lock(7)"), "f");
    wire.query("DISCARD ALL");
    assert_eq!(value(&mut wire, "SHOW work_mem"), "4MB");
    assert_eq!(value(&mut other, "SELECT pg_try_advisory_lock(7)"), "t");
}

fn messages_in_single_bytes(via: Via) {
    converse(via, |wire| {
        let message = [unnamed("SELECT 'slowly'", &[]), sync()].concat();
        message.chunks(1).for_each(|byte| wire.send(byte));
        wire.read_until_ready()
    });
}

fn unknown_messages(via: Via) {
    let target = via.start(Options::default());
    let mut other = target.login();
    // Also while the server skips known messages.
    let skips = [unnamed("SELECT 1/0", &[]), flush(), unnamed("SELECT 2", &[])].concat();
    for before in [query("SELECT 1"), skips] {
        for tag in [b'z', b'Z', 0, 0xff, b'1', b'p'] {
            let violation = message::tagged(tag, b"body");
            let conversation = |address: &Address| {
                let mut wire = Wire::login(address, "postgres", "postgres");
                wire.send(&before);
                let mut frames = wire.read_until_any(b"ZE");
                wire.send(&[violation.clone(), sync()].concat());
                frames.extend(wire.read_to_end());
                frames
            };
            let frames = conversation(&target.address());
            let error = frames.last().map(Frame::fields).unwrap_or_else(|| panic!("{tag}: {frames:?}"));
            assert_eq!((error.severity(), error.code()), ("FATAL", "08P01"), "{tag}");
            assert_eq!(exact(&frames), exact(&conversation(&target.postgres.address())));
            assert_eq!(value(&mut other, "SELECT 1"), "1");
        }
    }
}

fn malformed_lengths(via: Via) {
    let target = via.start(Options::default());
    let mut other = target.login();
    let mut headers = Vec::new();
    for tag in *b"QPBDECSHXdcfF" {
        headers.extend([-1, i32::MIN, 0, 3, i32::MAX].map(|length| (tag, length)));
    }
    // The server limits these messages to 10,000 bytes.
    headers.extend(b"DECSHXcf".map(|tag| (tag, 20_000)));
    for (tag, length) in headers {
        let mut wire = target.login();
        wire.send(&[query("SELECT 1"), message::header(tag, length)].concat());
        assert_eq!(wire.read_until_ready().last().unwrap().tag, b'Z');
        let error = error_in(&wire.read_to_end());
        // The server itself closes the connection and reports the error only in its log.
        if via == Via::Proxy {
            let error = error.unwrap_or_else(|| panic!("'{}' with length {length}: no error", tag as char));
            assert_eq!((error.severity(), error.code()), ("FATAL", "08P01"), "'{}' {length}", tag as char);
        }
        assert_eq!(value(&mut other, "SELECT 1"), "1");
    }
    wait_until("the sessions have ended on the server", DEADLINE, || sessions(&target) == 1);
}

fn the_end_of_the_server(via: Via) {
    let mut target = via.start(Options::default());
    let mut wire = target.login();
    let pid = value(&mut wire, "SELECT pg_backend_pid()");
    target.postgres.sql(&format!("SELECT pg_terminate_backend({pid})"));
    let error = error_in(&wire.read_to_end()).unwrap();
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P01"));

    let mut wire = target.login();
    target.postgres.crash_restart();
    // A notice about the crash may come first. The connection must end.
    wire.read_to_end();
    assert_eq!(value(&mut target.login(), "SELECT 1"), "1");
}

fn the_end_of_a_client(via: Via) {
    let target = via.start(Options::default());
    let mut orderly = target.login();
    let mut abrupt = target.login();
    abrupt.query("BEGIN; SELECT pg_advisory_xact_lock(1)");
    wait_until("both sessions are there", DEADLINE, || sessions(&target) == 2);
    orderly.send(&message::terminate());
    assert_eq!(orderly.read_to_end(), []);
    wait_until("the first session has ended", DEADLINE, || sessions(&target) == 1);
    drop(abrupt);
    wait_until("the second session has ended", DEADLINE, || sessions(&target) == 0);
}

/// A conversation in one session has the same result with the target as with the server itself.
#[track_caller]
fn converse(via: Via, conversation: impl Fn(&mut Wire) -> Vec<Frame>) -> Vec<Frame> {
    converse_with(via, |address| conversation(&mut Wire::login(address, "postgres", "postgres")))
}

#[track_caller]
fn converse_with(via: Via, conversation: impl Fn(&Address) -> Vec<Frame>) -> Vec<Frame> {
    let target = via.start(Options::default());
    let frames = conversation(&target.address());
    assert_eq!(exact(&frames), exact(&conversation(&target.postgres.address())));
    frames
}

#[track_caller]
fn value(wire: &mut Wire, sql: &str) -> String {
    rows_in(&wire.query(sql))[0][0].clone().unwrap()
}

/// Sessions of clients, without those of the tests' queries and of the proxy itself.
fn sessions(target: &Target) -> usize {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
        AND pid <> pg_backend_pid() AND application_name = ''";
    target.postgres.value(query).parse().unwrap()
}
