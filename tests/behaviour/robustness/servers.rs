//! Servers that close, send wrong lengths or garbage, or never stop: their client receives an error, and other sessions
//! are unaffected.

use crate::support::malicious::{Malicious, VICTIM, Victim, greeting, identity, ready};
use crate::support::message::{self, header, query, tagged};
use crate::support::programs::run;
use crate::support::{
    DEADLINE, Frame, Options, Postgres, Proxy, ProxyOptions, Stalls, Wire, fenced, share, wait_until,
};
use fencegate_wire::frame::{HEADER, Header};
use std::fmt;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum additional memory of the proxy compared with small messages, in KiB.
const ALLOWED: u64 = 8 * 1024;

/// How long the server follows the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Garbage answers the startup packet.
    Startup,
    /// Garbage answers the proxy's query for the session's process.
    Question,
    /// Garbage answers the client's first query.
    Query,
}

const STAGES: [Stage; 3] = [Stage::Startup, Stage::Question, Stage::Query];

/// Returns when the other side waits for the answer of this stage.
fn play_up_to(stage: Stage, client: &mut Victim) -> io::Result<()> {
    if stage == Stage::Startup {
        return Ok(());
    }
    client.send(&greeting())?;
    client.next_message()?;
    if stage == Stage::Question {
        return Ok(());
    }
    client.send(&identity())?;
    client.next_message().map(drop)
}

/// A proxy in front of the malicious server, and a bystander's session through both.
struct World {
    bystander: Wire,
    server: Malicious,
    proxy: Proxy,
    _postgres: Postgres,
    memory: u64,
}

impl World {
    fn before(script: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let postgres = Postgres::start(Options::default());
        fenced::init(&postgres, "postgres");
        let server = Malicious::before(postgres.port(), script);
        let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().upstream(&server.url()));
        let bystander = Wire::login(&proxy.address(), "postgres", "postgres");
        let mut world = Self { bystander, server, proxy, _postgres: postgres, memory: 0 };
        (0..100).for_each(|_| drop(world.bystander.query("SELECT repeat('x', 10000)")));
        world.memory = world.proxy.peak_memory();
        world
    }

    /// All bytes that a victim receives until its connection ends.
    fn conversation(&self) -> Conversation {
        let mut wire = self.victim();
        wire.send(&query("SELECT 1"));
        Conversation(wire.bytes_to_end())
    }

    fn victim(&self) -> Wire {
        let mut wire = Wire::connect(&self.proxy.address()).unwrap();
        let parameters = [("user", VICTIM), ("database", "postgres")];
        wire.send(&message::startup(message::PROTOCOL_3_0, &parameters));
        wire
    }

    #[track_caller]
    fn is_unharmed(&mut self) {
        assert_eq!(self.bystander.rows("SELECT 'alive'").unwrap(), [[Some("alive".to_owned())]]);
        assert_eq!(Wire::login(&self.proxy.address(), "postgres", "postgres").rows("SELECT 1").unwrap().len(), 1);
    }

    #[track_caller]
    fn ends_well(mut self) {
        self.is_unharmed();
        wait_until("the proxy has closed its connections", DEADLINE, || self.server.open() == 0);
        self.is_within_memory();
    }

    #[track_caller]
    fn is_within_memory(&self) {
        let grown = self.proxy.peak_memory().saturating_sub(self.memory);
        println!("the proxy grew by {grown} KiB");
        assert!(grown < ALLOWED, "the proxy grew by {grown} KiB");
    }
}

/// The bytes that a client received.
struct Conversation(Vec<u8>);

impl Conversation {
    /// True if the last message is complete and is the proxy's own FATAL error.
    fn is_told(&self) -> bool {
        let last = self.frames().and_then(|mut frames| frames.pop()).filter(|frame| frame.tag == b'E');
        last.is_some_and(|error| {
            error.fields().severity() == "FATAL" && ["08P01", "08006", "57P03"].contains(&error.fields().code())
        })
    }

    fn frames(&self) -> Option<Vec<Frame>> {
        let (mut rest, mut frames) = (&self.0[..], Vec::new());
        while !rest.is_empty() {
            let header = Header::from_server(rest).ok()??;
            let (frame, after) = rest.split_at_checked(header.frame())?;
            frames.push(Frame { tag: header.tag, body: frame[HEADER..].to_vec() });
            rest = after;
        }
        Some(frames)
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0[self.0.len().saturating_sub(400)..].escape_ascii())
    }
}

/// Bytes that no honest server sends without closing the connection.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("nothing", Vec::new()),
        ("half a header", vec![b'D', 0]),
        ("length 3", header(b'D', 3)),
        ("length 0", header(b'Z', 0)),
        ("length -1", header(b'E', -1)),
        ("the lowest length", header(b'R', i32::MIN)),
        ("the highest length", header(b'T', i32::MAX)),
        ("two answers", [ready(), ready(), ready()].concat()),
        ("a ready of two bytes", [tagged(b'Z', b"II"), ready()].concat()),
        ("an unknown status", [tagged(b'Z', b"X"), ready()].concat()),
        ("an empty ready", [tagged(b'Z', b""), ready()].concat()),
        ("unknown tags", [tagged(0, b""), tagged(0xff, b"x"), tagged(b'?', b"y")].concat()),
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("authentication of an odd kind", tagged(b'R', &[0, 0, 0, 99])),
        ("authentication without a kind", tagged(b'R', b"\0")),
        ("SASL without mechanisms", tagged(b'R', &[0, 0, 0, 10])),
        ("keys of wrong sizes", [tagged(b'K', b""), tagged(b'K', b"abc"), tagged(b'K', &[7; 5000])].concat()),
        ("settings without NUL", [tagged(b'S', b""), tagged(b'S', b"client_encoding"), tagged(b'S', b"a\0b")].concat()),
        ("errors without terminators", [tagged(b'N', b"SNOTICE"), tagged(b'E', b"SERROR\0C42601")].concat()),
        ("an error without fields", tagged(b'E', b"")),
        ("a row that lies about its columns", tagged(b'D', b"\x7f\xff\xff\xff\xff\xfe")),
        ("COPY of all kinds", [tagged(b'G', b"\0\0\0"), tagged(b'H', b"\0\0\0"), tagged(b'W', b"\0\0\0")].concat()),
        ("an error of 2 GiB", header(b'E', i32::MAX)),
        ("a setting of 2 GiB", header(b'S', i32::MAX)),
        ("a command of 2 GiB", header(b'C', i32::MAX)),
    ]
}

/// If the server closes the connection, its client receives an error, except within a message.
#[test]
fn a_server_that_sends_garbage_and_closes() {
    for stage in STAGES {
        let chosen = Arc::new(Mutex::new(Vec::new()));
        let script = chosen.clone();
        let mut world = World::before(move |client| {
            play_up_to(stage, client)?;
            client.send(&script.lock().unwrap())
        });
        for (what, bytes) in share(garbage(), 6) {
            chosen.lock().unwrap().clone_from(&bytes);
            let end = world.conversation();
            // Nothing can follow an incomplete message of the server.
            let streams =
                stage == Stage::Query && bytes.ends_with(&i32::MAX.to_be_bytes()) || bytes.starts_with(b"HTTP");
            let is_as_it_came = !bytes.is_empty() && end.0.ends_with(&bytes);
            assert!(end.is_told() || is_as_it_came || streams, "{what} at {stage:?}: {end:?}");
            world.is_unharmed();
        }
        world.ends_well();
    }
}

/// If the server does not close the connection, its client waits as it would without the proxy, or receives an error.
/// When the client leaves, nothing remains.
#[test]
fn a_server_that_sends_garbage_and_waits() {
    for stage in STAGES {
        let chosen = Arc::new(Mutex::new(Vec::new()));
        let script = chosen.clone();
        let mut world = World::before(move |client| {
            play_up_to(stage, client)?;
            client.send(&script.lock().unwrap())?;
            client.hold()
        });
        let mut victims = Vec::new();
        for (what, bytes) in share(garbage(), 6) {
            println!("{what} at {stage:?}");
            chosen.lock().unwrap().clone_from(&bytes);
            let before = world.server.served();
            let mut victim = world.victim();
            victim.send(&query("SELECT 1"));
            victims.push(victim);
            wait_until("the server has sent its bytes", DEADLINE, || world.server.served() > before);
            world.is_unharmed();
        }
        drop(victims);
        world.ends_well();
    }
}

/// Endless messages, and endless streams of small messages, to a client that does not read.
#[test]
fn a_server_that_never_stops_sending() {
    let floods: [(&str, Vec<u8>, Vec<u8>); 9] = [
        ("an endless error", header(b'E', i32::MAX), b"SFATAL\0VFATAL\0C57P01\0Mx".repeat(1000)),
        ("an endless error without a severity", header(b'E', i32::MAX), vec![b'M'; 10_000]),
        ("an endless setting", header(b'S', i32::MAX), vec![b'x'; 10_000]),
        ("an endless row", header(b'D', i32::MAX), vec![0; 10_000]),
        ("an endless end", header(b'C', i32::MAX), vec![b'x'; 10_000]),
        ("rows", Vec::new(), tagged(b'D', &[0; 100]).repeat(100)),
        ("notices", Vec::new(), tagged(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mhello\0\0").repeat(300)),
        ("settings", Vec::new(), tagged(b'S', b"application_name\0x\0").repeat(400)),
        ("errors", Vec::new(), tagged(b'E', b"SERROR\0VERROR\0C42601\0Mno\0\0").repeat(300)),
    ];
    for stage in STAGES {
        let chosen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let script = chosen.clone();
        let mut world = World::before(move |client| {
            play_up_to(stage, client)?;
            let (start, more) = script.lock().unwrap().clone();
            client.send(&start)?;
            client.flood(&more)
        });
        for (what, start, more) in share(floods.to_vec(), 9) {
            *chosen.lock().unwrap() = (start, more);
            let before = world.server.served();
            let mut victim = world.victim();
            victim.send(&query("SELECT 1"));
            world.server.wait_until_stuck(before + 1);
            world.is_unharmed();
            println!("{what} at {stage:?}: {} bytes", world.server.sent());
            drop(victim);
            world.is_within_memory();
        }
        world.ends_well();
    }
}

/// The server is also silent on the control connection. A session that was never admitted does not wait for an answer
/// there before it reports its end.
#[test]
fn a_server_that_is_silent_when_a_session_ends() {
    // The proxy waits 2 s for an answer.
    const WITHOUT_ASKING: Duration = Duration::from_secs(1);
    let stalls = Stalls::watch();
    let world = super::world::World::new();
    let postgres = &world.fenced.postgres;
    let mut wire = world.hostile();
    let process = fenced::value(&mut wire, "SELECT pg_backend_pid()").unwrap();
    let control = postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control'");
    let control: Vec<String> = control.into_iter().flatten().flatten().collect();
    let signal = |name: &str| run(Command::new("kill").args(["-s", name]).args(&control));
    signal("STOP");
    let ended = Instant::now();
    postgres.sql(&format!("SELECT pg_terminate_backend({process})"));
    let told = super::world::codes(&wire.read_to_end());
    let took = ended.elapsed();
    signal("CONT");
    assert_eq!(told, ["57P01"]);
    assert!(took < WITHOUT_ASKING + stalls.total(), "{took:?}");
    world.ends_well(ALLOWED);
}
