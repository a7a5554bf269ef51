//! A client that violates the protocol, by length, layout or order, gets an error and harms no other session.

use super::world::World;
use crate::support::message::{self, header, tagged};
use crate::support::wire::{Frame, error_in, rows_in};

fn tags(frames: &[Frame]) -> String {
    frames.iter().map(|frame| frame.tag as char).collect()
}

/// The console discards ten megabytes without buffering them, and the session continues.
#[test]
fn a_long_command_is_one_error() {
    let world = World::start();
    let mut wire = world.console();
    let before = world.proxy.peak_memory();
    let long = vec![b' '; 10 << 20];
    let error = error_in(&wire.query_bytes(&long)).expect("an error");
    assert_eq!((error.severity(), error.code()), ("ERROR", "54000"));
    assert!(error.message().contains("the command has 10485761 bytes"), "{}", error.message());
    assert_eq!(tags(&wire.query("SHOW VERSION")), "TDCZ");
    let parse = [message::parse("", &String::from_utf8(long).unwrap(), &[]), message::sync()].concat();
    let frames = wire.exchange(&parse);
    assert_eq!((tags(&frames).as_str(), error_in(&frames).unwrap().code()), ("EZ", "54000"));
    let grown = world.proxy.peak_memory().saturating_sub(before);
    assert!(grown < 5 << 10, "{grown} KiB more");
}

#[test]
fn malformed_messages_are_errors_and_the_session_goes_on() {
    let world = World::start();
    let mut wire = world.console();
    for (tag, body) in [(b'Q', &b"SHOW FENCES"[..]), (b'Q', b"SHOW FENCES\0more"), (b'Q', b""), (b'F', b"")] {
        let frames = wire.exchange(&tagged(tag, body));
        assert_eq!(tags(&frames), "EZ", "{}", tag as char);
    }
    assert_eq!(error_in(&wire.query_bytes(b"SHOW \xff")).unwrap().code(), "22021");
    let extended: [(u8, &[u8]); 12] = [
        (b'P', b"\0SHOW FENCES\0\0\x05"),
        (b'P', b"\0SHOW FENCES\0\xff\xff\0\0\0\x17"),
        (b'P', b""),
        (b'B', b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0"),
        (b'B', b"\0\0\0\0\0\0\xff\xff"),
        (b'B', b"\0"),
        (b'D', b"S"),
        (b'D', b"X\0"),
        (b'C', b""),
        (b'E', b"\0\0"),
        (b'E', b""),
        (b'H', b"more"),
    ];
    for (tag, body) in extended {
        // The console skips all messages up to the Sync.
        let frames =
            wire.exchange(&[tagged(tag, body), message::query("RELOAD"), tagged(b'E', b""), message::sync()].concat());
        assert_eq!((tags(&frames).as_str(), error_in(&frames).unwrap().code()), ("EZ", "08P01"), "{}", tag as char);
    }
    // The end of a COPY that never started.
    wire.send(&[message::copy_data(b"x"), message::copy_done()].concat());
    assert_eq!(tags(&wire.query("SHOW VERSION")), "TDCZ");
}

#[test]
fn an_unintelligible_message_ends_only_its_session() {
    let world = World::start();
    let mut other = world.console();
    for bytes in [header(b'Q', 3), header(b'Q', -1), header(b'S', 1 << 20), header(b'?', 4), header(b'p', 8)] {
        let mut wire = world.console();
        wire.send(&bytes);
        let error = error_in(&wire.read_to_end()).expect("an error");
        assert_eq!((error.severity(), error.code()), ("FATAL", "08P01"), "{bytes:?}");
    }
    // The client disconnects within a message.
    world.console().send(&header(b'Q', 1000));
    let mut wire = world.console();
    wire.send(&message::terminate());
    assert_eq!(wire.read_to_end(), []);
    assert_eq!(tags(&other.query("SHOW VERSION")), "TDCZ");
}

#[test]
fn counts_in_client_messages_reserve_no_memory() {
    let world = World::start();
    let mut wire = world.console();
    let bound = [message::parse("", "SHOW HELP", &[]), message::bind_text("", "", &[])].concat();
    for limit in [u32::MAX, i32::MAX as u32, 10_001] {
        let frames = wire.exchange(&[bound.clone(), message::execute("", limit), message::sync()].concat());
        assert_eq!(tags(&frames), format!("12{}CZ", "D".repeat(super::COMMANDS)));
    }
    // A few rows at a time.
    let pieces = [bound, message::execute("", 4), message::execute("", 100), message::sync()].concat();
    assert_eq!(tags(&wire.exchange(&pieces)), format!("12DDDDs{}CZ", "D".repeat(super::COMMANDS - 4)));
    // A number of formats that differs from the number of columns, which the server rejects as well.
    let formats = b"\0\0\0\0\0\0\0\x03\0\x01\0\x01\0\x01";
    let frames =
        [message::parse("", "SHOW HELP", &[]), tagged(b'B', formats), message::execute("", 0), message::sync()];
    assert_eq!(error_in(&wire.exchange(&frames.concat())).unwrap().code(), "08P01");
    let values = [message::unnamed("SHOW HELP", &[Some(b"1")]), message::sync()].concat();
    assert_eq!(error_in(&wire.exchange(&values)).unwrap().code(), "08P01");
}

#[test]
fn prepared_statements_are_bounded() {
    let world = World::start();
    let mut wire = world.console();
    let many: Vec<u8> =
        (0..1000).flat_map(|number| message::parse(&format!("s{number}"), "SHOW FENCES", &[])).collect();
    assert_eq!(error_in(&wire.exchange(&[many, message::sync()].concat())), None);
    let one_more = [message::parse("s", "SHOW FENCES", &[]), message::sync()].concat();
    assert_eq!(error_in(&wire.exchange(&one_more)).unwrap().code(), "53400");
    assert_eq!(error_in(&wire.exchange(&[message::close_statement("s7"), message::sync()].concat())), None);
    assert_eq!(error_in(&wire.exchange(&one_more)), None);
    assert_eq!(tags(&wire.query("DEALLOCATE s8")), "CZ");
    assert_eq!(error_in(&wire.query("DEALLOCATE s8")).unwrap().code(), "26000");
    assert_eq!(tags(&wire.query("DEALLOCATE ALL")), "CZ");
    let gone = [message::describe_statement("s9"), message::sync()].concat();
    assert_eq!(error_in(&wire.exchange(&gone)).unwrap().code(), "26000");
}

/// Each portal keeps the rows that have not been fetched.
#[test]
fn portals_are_bounded_and_last_for_a_transaction() {
    let world = World::start();
    let mut wire = world.console();
    let parse = message::parse("help", "SHOW HELP", &[]);
    let opened = |name: &str| [message::bind_text(name, "help", &[]), message::execute(name, 1)].concat();
    let many: Vec<u8> = (0..100).flat_map(|number| opened(&format!("p{number}"))).collect();
    let fetched = |name: &str| [message::execute(name, 1), message::sync()].concat();

    let frames = wire.exchange(&[parse, many.clone(), opened("one more"), message::sync()].concat());
    assert_eq!(error_in(&frames).unwrap().code(), "53400");
    assert_eq!(frames.iter().filter(|frame| frame.tag == b's').count(), 100);
    // Outside of a transaction, the Sync has ended the portals.
    assert_eq!(error_in(&wire.exchange(&fetched("p0"))).unwrap().code(), "34000");
    for end in ["CLOSE ALL", "COMMIT", "DISCARD ALL"] {
        assert_eq!(tags(&wire.query("BEGIN")), "CZ");
        assert_eq!(error_in(&wire.exchange(&[many.clone(), message::sync()].concat())), None, "{end}");
        assert_eq!(tags(&wire.exchange(&fetched("p0"))), "DsZ", "{end}");
        assert_eq!(error_in(&wire.exchange(&[opened("one more"), message::sync()].concat())).unwrap().code(), "53400");
        let closed = [message::close_portal("p7"), opened("one more"), message::sync()].concat();
        assert_eq!(error_in(&wire.exchange(&closed)), None, "{end}");
        let ended = wire.query(end);
        assert_eq!(tags(&ended), "CZ");
        assert_eq!(error_in(&wire.exchange(&fetched("p0"))).unwrap().code(), "34000", "{end}");
        wire.query("ROLLBACK");
    }
    let gone = [message::describe_statement("help"), message::sync()].concat();
    assert_eq!(error_in(&wire.exchange(&gone)).unwrap().code(), "26000", "DISCARD ALL removes statements as well");
}

#[test]
fn several_commands_are_answered_up_to_the_first_error() {
    let world = World::start();
    let mut wire = world.console();
    assert_eq!(tags(&wire.query("")), "IZ");
    assert_eq!(tags(&wire.query("-- ping")), "IZ");
    assert_eq!(tags(&wire.query("SHOW VERSION; SHOW VERSION")), "TDCTDCZ");
    assert_eq!(tags(&wire.query("SHOW VERSION; FENCE RESET nothing TO 1; SHOW VERSION")), "TDCEZ");
    // A string is rejected as a whole if one of its commands cannot be parsed.
    assert_eq!(tags(&wire.query("SHOW VERSION; nonsense")), "EZ");
    let two = [message::unnamed("SHOW VERSION; SHOW VERSION", &[]), message::sync()].concat();
    assert_eq!(error_in(&wire.exchange(&two)).unwrap().code(), "42601");
}

#[test]
fn transactions_have_a_status_and_no_other_effect() {
    let world = World::start();
    let mut wire = world.console();
    let mut status = |text: &str| {
        let frames = wire.query(text);
        let last = frames.last().unwrap();
        assert_eq!(last.tag, b'Z');
        (error_in(&frames).map_or(String::new(), |error| error.code().to_owned()), last.body[0] as char)
    };
    let ok = |letter| (String::new(), letter);
    assert_eq!(status("BEGIN; SHOW VERSION"), ok('T'));
    // There is nothing to roll back, so an error, such as for psql's completion queries, does not fail the transaction.
    assert_eq!(status("nonsense"), ("42601".to_owned(), 'T'));
    assert_eq!(status("SHOW VERSION"), ok('T'));
    assert_eq!(status("ROLLBACK"), ok('I'));
    assert_eq!(status("BEGIN; FENCE RESET nothing TO 1"), ("42704".to_owned(), 'T'));
    assert_eq!(status("COMMIT"), ok('I'));
    assert_eq!(status("START TRANSACTION READ ONLY"), ok('T'));
    assert_eq!(status("COMMIT"), ok('I'));
    assert_eq!(status("nonsense"), ("42601".to_owned(), 'I'));
}

#[test]
fn an_unknown_command_gets_a_suggestion() {
    let world = World::start();
    let mut wire = world.console();
    for (command, hint) in [
        ("SHOW FENCE", "Did you mean SHOW FENCES?"),
        ("nonsense", "SHOW HELP lists the commands."),
        ("SELECT * FROM ticks", "connect to a database"),
        ("FENCE RESET", "FENCE RESET <resource>"),
        ("FENCE RESET scheduler TO ten", "A token is a number"),
        ("SET max_connections = 7", "run RELOAD"),
        ("begin fence reset scheduler to 7", "SHOW HELP lists the commands."),
        ("RESET scheduler TO 7", "SHOW HELP lists the commands."),
    ] {
        let error = error_in(&wire.query(command)).unwrap();
        assert_eq!((error.severity(), error.code()), ("ERROR", "42601"), "{command}");
        assert!(error.hint().contains(hint), "{command}: {}", error.hint());
    }
    assert_eq!(rows_in(&wire.query("SHOW HELP")).len(), super::COMMANDS);
}

/// The console's key belongs to a server session that has ended.
#[test]
fn a_request_to_cancel_is_harmless() {
    let world = World::start();
    let mut wire = crate::support::Wire::connect(&world.proxy.address()).unwrap();
    let frames = wire.start(&[("user", "postgres"), ("database", "fencegate")], "");
    let key = frames.iter().find(|frame| frame.tag == b'K').expect("BackendKeyData");
    let mut request = crate::support::Wire::connect(&world.proxy.address()).unwrap();
    request.send(&message::cancel_request(&key.body));
    assert_eq!(request.bytes_to_end(), b"");
    assert_eq!(tags(&wire.query("SHOW VERSION")), "TDCZ");
}
