//! Clients that stop reading, send byte by byte, vanish, send huge messages, or send nothing.

use super::world::{WRITE, World, codes};
use crate::support::fenced::{ok, value};
use crate::support::message::{self, bind_text, copy_data, execute, parse, query, sync, unnamed};
use crate::support::wire::{error_in, rows_in};
use crate::support::{Address, DEADLINE, Frame, Options, ProxyOptions, Wire, share, wait_until};

/// Maximum additional memory of the proxy compared with small messages, in KiB.
const ALLOWED: u64 = 8 * 1024;
const HUGE: usize = 10 << 20;
/// The proxy buffers no statement of this length.
const TOO_LONG: usize = 17 << 20;

#[test]
fn a_client_that_stops_reading_and_then_vanishes() {
    let mut world = World::new();
    let blocked =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND application_name = 'hostile'";
    let mut readers: Vec<_> = (0..5).map(|_| world.hostile()).collect();
    for reader in &mut readers {
        reader.send(&query("SELECT repeat('x', 1000000) FROM generate_series(1, 1000)"));
    }
    wait_until("the server waits for them", DEADLINE, || world.fenced.postgres.value(blocked) == "5");
    world.is_unharmed();
    drop(readers);
    world.ends_well(ALLOWED);
}

/// Within a pipeline, the server withholds the end of a long row until more messages arrive.
#[test]
fn a_client_that_disconnects_within_a_pipeline() {
    let world = World::new();
    let row = [parse("", "INSERT INTO free VALUES (1) RETURNING repeat('x', 70000)", &[]), bind_text("", "", &[])];
    let pipeline = [&row.concat()[..], &execute("", 0)].concat();
    let waiting = "SELECT count(*) FROM pg_stat_activity \
        WHERE application_name = 'hostile' AND state = 'active' AND wait_event = 'ClientRead'";
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hostile'";
    for closes in [true, false] {
        let mut wire = world.hostile();
        wire.send(&pipeline);
        wait_until("the server waits for more", DEADLINE, || world.fenced.postgres.value(waiting) == "1");
        if closes {
            drop(wire);
        } else {
            wire.finish_sending();
            // The client may still read what was sent.
            wire.bytes_to_end();
        }
        wait_until("the server's session ends", DEADLINE, || world.fenced.postgres.value(left) == "0");
    }
    world.ends_well(ALLOWED);
}

#[test]
fn a_client_that_sends_byte_by_byte() {
    let mut world = World::new();
    let startup = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("database", "postgres")]);
    let mut slow: Vec<_> = (0..20).map(|_| Wire::connect(&world.fenced.proxy.address()).unwrap()).collect();
    for byte in startup.chunks(1) {
        slow.iter_mut().for_each(|wire| wire.send(byte));
    }
    world.is_unharmed();
    slow.iter_mut().for_each(|wire| assert_eq!(error_in(&wire.authenticate("postgres", "")), None));
    let pipeline = [unnamed("SELECT 'slowly'", &[]), unnamed(WRITE, &[]), sync()].concat();
    for (index, byte) in pipeline.chunks(1).enumerate() {
        slow.iter_mut().for_each(|wire| wire.send(byte));
        if index % 20 == 0 {
            world.is_unharmed();
        }
    }
    for wire in &mut slow {
        let frames = wire.read_until_ready();
        assert_eq!(rows_in(&frames), [[Some("slowly".to_owned())]]);
        assert_eq!(codes(&frames), ["LF002"]);
    }
    world.ends_well(ALLOWED);
}

#[test]
fn a_client_that_vanishes_within_a_message_is_harmless() {
    let options = Options::default().hba("host all secret 127.0.0.1/32 scram-sha-256");
    let mut world = World::with(options, ProxyOptions::default());
    world.fenced.postgres.sql("CREATE ROLE secret LOGIN PASSWORD 'x'");
    let startup = message::startup(message::PROTOCOL_3_0, &[("user", "secret"), ("database", "postgres")]);
    let password = message::sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abcdefgh");
    for cut in [1, 4, 8, startup.len() - 1, startup.len()] {
        Wire::connect(&world.fenced.proxy.address()).unwrap().send(&startup[..cut]);
    }
    for cut in [1, 5, password.len() - 1, password.len()] {
        let mut wire = Wire::connect(&world.fenced.proxy.address()).unwrap();
        wire.send(&startup);
        wire.read_until(b'R');
        wire.send(&password[..cut]);
    }
    let long = vec![b'7'; HUGE];
    let messages = [
        vec![query("COPY free FROM STDIN"), copy_data(b"1\n"), copy_data(&b"2\n".repeat(HUGE / 2))],
        vec![parse("s", "INSERT INTO free SELECT length($1)", &[]), bind_text("", "s", &[Some(&long)])],
        vec![parse("s", &format!("SELECT '{}'", "x".repeat(HUGE)), &[])],
        vec![query(&format!("INSERT INTO free SELECT length('{}')", "x".repeat(HUGE)))],
        vec![query(&format!("INSERT INTO free SELECT length('{}')", "x".repeat(HUGE / 4)))],
    ];
    for message in messages.map(|parts| parts.concat()) {
        for kept in [message.len() / 2, message.len() - 1] {
            let mut wire = world.hostile();
            wire.query("BEGIN; INSERT INTO free VALUES (1)");
            wire.send(&message[..kept]);
        }
    }
    world.is_unharmed();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'secret'";
    wait_until("no client waits for a password", DEADLINE, || world.fenced.postgres.value(waiting) == "0");
    let free = world.fenced.postgres.value("SELECT count(*) FROM free");
    assert_eq!(free, "0");
    // The memory held for one or two messages.
    world.ends_well(48 * 1024);
}

/// Many clients at once: the memory for one must not depend on the size of its messages.
#[test]
fn a_client_that_sends_more_than_the_buffers_hold() {
    const SESSIONS: usize = 20;
    let mut world = World::new();
    world.fenced.postgres.sql("CREATE DATABASE unfenced");
    let statement = format!("SELECT length('{}')", "x".repeat(TOO_LONG));
    let value = vec![b'7'; TOO_LONG];
    let messages = [
        (query(&statement), "LF004"),
        ([unnamed(&statement, &[]), sync()].concat(), "LF004"),
        (
            [parse("", "SELECT length($1)", &[25]), bind_text("", "", &[Some(&value)]), execute("", 0), sync()]
                .concat(),
            "",
        ),
    ];
    let databases = [("postgres", true), ("unfenced", false)];
    let cases = databases.iter().flat_map(|database| messages.iter().map(move |message| (database, message))).collect();
    for (&(database, fenced), (message, code)) in share(cases, 6) {
        let mut wires: Vec<_> = (0..SESSIONS).map(|_| world.hostile_in(database)).collect();
        // All sessions have sent half of the message at the same time.
        let (half, rest) = message.split_at(message.len() / 2);
        wires.iter_mut().for_each(|wire| wire.send(half));
        world.is_unharmed();
        for wire in &mut wires {
            let frames = wire.exchange(rest);
            let expected: &[&str] = if fenced && !code.is_empty() { &[code] } else { &[] };
            assert_eq!(codes(&frames), expected, "{database}");
            if expected.is_empty() {
                assert_eq!(rows_in(&frames), [[Some(TOO_LONG.to_string())]]);
            }
        }
    }
    // A MiB for each session, for data in transit in both directions.
    world.ends_well(SESSIONS as u64 * 1024);
}

/// The memory of all sessions together is bounded. The others wait for their turn.
#[test]
fn a_client_that_sends_ten_megabytes() {
    const SESSIONS: usize = 8;
    let mut world = World::new();
    let text = format!("SELECT length('{}')", "x".repeat(HUGE));
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            let mut wire = world.hostile();
            let text = &text;
            scope.spawn(move || {
                let expected = [[Some(HUGE.to_string())]];
                assert_eq!(rows_in(&served(&mut wire, &query(text))), expected);
                assert_eq!(rows_in(&served(&mut wire, &[unnamed(text, &[]), sync()].concat())), expected);
            });
        }
        world.is_unharmed();
    });
    // 64 MiB each in the input and in the output.
    world.ends_well(144 * 1024);
}

/// The answer, once there is room. On a busy machine the wait may be too long, and the error is retryable.
fn served(wire: &mut Wire, messages: &[u8]) -> Vec<Frame> {
    let mut answer = Vec::new();
    wait_until("there is room", DEADLINE, || {
        answer = wire.exchange(messages);
        codes(&answer) != ["LF006"]
    });
    answer
}

/// A client that starts long statements and does not finish them gets no room before it has sent a MiB, and blocks
/// others only briefly.
#[test]
fn a_client_that_takes_all_buffers() {
    let mut world = World::new();
    let read = query(&format!("SELECT length('{}')", "x".repeat(HUGE)));
    let batch = [unnamed(&format!("DELETE FROM free WHERE n IN ({}1)", "1,".repeat(HUGE / 2)), &[]), sync()].concat();
    for (sent, has_room) in share(vec![(6, false), (HUGE / 2, true)], 2) {
        let mut holders: Vec<_> = (0..6).map(|_| world.hostile()).collect();
        holders.iter_mut().for_each(|holder| holder.send(&read[..sent]));
        world.is_unharmed();
        let mut others = [(world.hostile(), &read), (world.hostile(), &batch)];
        std::thread::scope(|scope| {
            for (wire, messages) in &mut others {
                scope.spawn(|| assert_eq!(codes(&served(wire, messages)), Vec::<String>::new()));
            }
        });
        world.is_unharmed();
        // Clients that had no room are served now. Those that lost their room are not.
        let lost: Vec<_> = holders.iter_mut().map(|holder| codes(&holder.exchange(&read[sent..]))).collect();
        assert_eq!(lost.concat().iter().any(|code| code == "LF006"), has_room, "{lost:?}");
        assert!(lost.concat().iter().all(|code| code == "LF006"), "{lost:?}");
        // They may retry.
        holders.iter_mut().for_each(|holder| assert_eq!(codes(&holder.exchange(&read)), Vec::<String>::new()));
    }
    world.ends_well(144 * 1024);
}

/// The proxy holds a whole text only while it parses it.
#[test]
fn a_client_that_sends_much_and_stays() {
    const SESSIONS: usize = 20;
    let world = World::new();
    let text = format!("SELECT length('{}')", "x".repeat(3 << 20));
    let mut wires: Vec<_> = (0..SESSIONS).map(|_| world.hostile()).collect();
    for wire in &mut wires {
        assert_eq!(rows_in(&wire.query(&text)), [[Some((3 << 20).to_string())]]);
        assert_eq!(rows_in(&wire.query("SELECT 1")).len(), 1);
    }
    drop(wires);
    // The text in the input, the output and the parser, for one session at a time.
    world.ends_well(48 * 1024);
}

#[test]
fn a_client_that_connects_and_sends_nothing() {
    const SILENT: usize = 400;
    let mut world = World::new();
    let before = world.fenced.proxy.open_files();
    let address = world.fenced.proxy.address();
    let mut silent: Vec<_> = (0..SILENT).map(|_| Wire::connect(&address).unwrap()).collect();
    silent.iter_mut().step_by(2).for_each(|wire| wire.send(&[0, 0, 0]));
    wait_until("all are accepted", DEADLINE, || world.fenced.proxy.open_files() >= before + SILENT);
    world.is_unharmed();
    drop(silent);
    wait_until("all are gone", DEADLINE, || world.fenced.proxy.open_files() <= before);
    world.ends_well(16 * 1024);
}

/// A peer whose machine is gone sends nothing. The kernel probes the connection.
#[test]
fn a_client_whose_machine_is_gone() {
    let world = World::new();
    let Address::Tcp(proxy) = world.fenced.proxy.address() else { unreachable!() };
    for port in [proxy.port(), world.fenced.postgres.port()] {
        let is_watched = || {
            let timers = timers(port, port == proxy.port());
            !timers.is_empty() && timers.iter().all(|timer| timer == "02")
        };
        wait_until("nothing is under way, and the peers are watched", DEADLINE, is_watched);
    }
}

/// The kernel's timers for the proxy's established connections. 02 is the next keepalive probe.
fn timers(port: u16, is_local: bool) -> Vec<String> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let end = format!(":{port:04X}");
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[if is_local { 1 } else { 2 }].ends_with(&end) && fields[3] == ESTABLISHED)
        .map(|fields| fields[5].split(':').next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_client_with_long_names() {
    let mut world = World::new();
    let mut wire = world.hostile();
    let name = "n".repeat(30_000);
    let frames = wire.exchange(
        &[parse(&name, WRITE, &[]), bind_text(&name, &name, &[]), execute(&name[..9_000], 0), sync()].concat(),
    );
    assert_eq!(codes(&frames), ["LF001"]);
    let identifier = "i".repeat(1 << 18);
    assert_eq!(codes(&wire.query(&format!("SELECT 1 AS {identifier}; {WRITE}"))), ["LF001"]);
    assert_eq!(codes(&wire.query(&format!("SELECT $t{0}$x$t{0}$; {WRITE}", "a".repeat(100_000)))), ["LF001"]);
    // A statement name without an end.
    let mut endless = world.hostile();
    endless.send(&message::header(b'B', 200_000));
    endless.send(&[b'n'; 100_000]);
    assert_eq!(codes(&endless.read_to_end()), ["08P01"]);
    // A name is missing or has no end. The next message is not read as part of it.
    for body in [&b"ab"[..], b"abc\0", b"\0ab"] {
        let frames = wire.exchange(&[message::tagged(b'B', body), sync()].concat());
        assert_eq!(codes(&frames), ["08P01"], "{}", body.escape_ascii());
        wire.send(&message::tagged(b'B', body));
        assert_eq!(codes(&wire.read_until(b'E')), ["08P01"], "{}", body.escape_ascii());
        wire.exchange(&sync());
    }
    drop((wire, endless));
    world.is_unharmed();
    world.ends_well(32 * 1024);
}

/// The server uses the first 63 bytes of a database name. For the proxy, a longer name must not be another database.
#[test]
fn a_client_with_a_long_database_name() {
    const LENGTH: usize = 63;
    let name = "d".repeat(LENGTH);
    let mut world = World::new();
    world.fenced.postgres.sql(&format!("CREATE DATABASE {name}"));
    world.fenced.postgres.sql_in(&name, "CREATE TABLE jobs (n int)");
    world.fenced.proxy.write_policies(&format!(
        "version: 1\nresources:\n  - {{name: scheduler, tables: [public.jobs]}}\ndatabases: [{name}]\n"
    ));
    world.fenced.proxy.sighup();
    wait_until("the policies are in force", DEADLINE, || codes(&world.hostile_in(&name).query(WRITE)) == ["LF006"]);
    // Removes rows that were written before the policies were in force.
    world.fenced.postgres.sql_in(&name, "DELETE FROM jobs");
    for more in ["x", "dddddd", "\u{e9}"] {
        let mut wire = Wire::connect(&world.fenced.proxy.address()).unwrap();
        let mut codes = codes(&wire.start(&[("user", "postgres"), ("database", &(name.clone() + more))], ""));
        if codes.is_empty() {
            codes = self::codes(&wire.query(WRITE));
        }
        assert_eq!(world.fenced.postgres.sql_in(&name, "SELECT count(*) FROM jobs"), [[Some("0".to_owned())]]);
        // Newer servers have no database with the longer name.
        assert!(codes == ["LF002"] || codes == ["3D000"], "{more}: {codes:?}");
    }
    world.ends_well(ALLOWED);
}

#[test]
fn a_client_that_requests_encryption_repeatedly() {
    let world = World::new();
    let mut wire = Wire::connect(&world.fenced.proxy.address()).unwrap();
    wire.send(&message::ssl_request());
    assert_eq!(wire.byte(), Some(b'N'));
    wire.send(&message::ssl_request());
    // The server's own error: it reads the second request as a protocol version.
    assert_eq!(codes(&wire.read_to_end()), ["0A000"]);
    assert_eq!(value(&mut world.hostile(), "SELECT 1").as_deref(), Some("1"));
    ok(&mut world.hostile(), "SELECT 1");
    world.ends_well(ALLOWED);
}
