//! Connections that send little or nothing.

use super::flood::{Flood, beside};
use crate::support::certificates::{Authority, text};
use crate::support::programs::psql;
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{Address, Options, Postgres, Proxy, Wire, message};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const USER: [(&str, &str); 2] = [("user", "ada"), ("database", "postgres")];

/// Round-trip time of a distant client.
const DISTANCE: Duration = Duration::from_millis(100);
/// Maximum time from a connection to its first message.
pub const AT_ONCE: Duration = Duration::from_millis(10);

fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    let postgres = Postgres::start(Options::default().hba("host all ada all scram-sha-256"));
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'");
    (Proxy::start(&postgres, NO_POLICIES, arguments), postgres)
}

/// A client like libpq: requests encryption, waits for the answer, and then logs in with a password.
fn login(proxy: &Proxy) {
    let mut wire = loop {
        let begun = Instant::now();
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        wire.send(&message::ssl_request());
        // The machine has stalled, and the proxy may have closed the connection in favor of others. Try again.
        if begun.elapsed() > AT_ONCE {
            continue;
        }
        assert_eq!(wire.byte(), Some(b'N'), "the connection was closed");
        // As far away as another continent.
        let answered = Instant::now();
        std::thread::sleep(DISTANCE);
        if answered.elapsed() < 2 * DISTANCE {
            break wire;
        }
    };
    let frames = wire.start(&USER, "secret");
    assert_eq!(error_in(&frames), None);
    assert_eq!(frames.last().map(|frame| frame.tag), Some(b'Z'), "the connection was closed");
}

/// Returns None if the connection fails, which is permitted in a flood.
fn connect(proxy: &Proxy, bytes: &[u8]) -> Option<TcpStream> {
    let Address::Tcp(address) = proxy.address() else { unreachable!() };
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(bytes).ok()?;
    Some(stream)
}

fn flooded(what: &str, bytes: &[u8], max: &str) {
    let (proxy, _postgres) = start(&["--max-connections", max]);
    let said = |_: &_| connect(&proxy, bytes);
    beside(what, (1000, 1000), said, 30, || login(&proxy));
}

#[test]
fn silent_ones() {
    flooded("silent connections", b"", "100");
}

#[test]
fn that_have_asked_for_encryption() {
    flooded("requests for encryption", &message::ssl_request(), "1000");
}

#[test]
fn with_half_a_startup_packet() {
    let packet = message::startup(message::PROTOCOL_3_0, &USER);
    flooded("half startup packets", &packet[..packet.len() / 2], "100");
}

#[test]
fn that_begin_tls_and_stop() {
    let certificate = Authority::new("abuse").sign_local("proxy");
    let files = [text(&certificate.pem), text(&certificate.key)];
    let (proxy, _postgres) = start(&["--tls-cert", &files[0], "--tls-key", &files[1]]);
    // Half of the clients request TLS and stop. The others begin TLS without a request, and stop within a record.
    let half = [&message::ssl_request()[..], b"\x16\x03\x01\x02\0\x01\0"].concat();
    let said = |flood: &Flood| connect(&proxy, if flood.done().is_multiple_of(2) { &half[..8] } else { &half[8..] });
    let encrypted = || {
        let mut psql = psql(&proxy.address(), "postgres");
        let output = psql.env("PGSSLMODE", "require").args(["-c", "SELECT 'encrypted'"]).output().expect("psql runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("encrypted"), "{}", String::from_utf8_lossy(&output.stderr));
    };
    beside("half TLS handshakes", (1000, 1000), said, 10, encrypted);
}
