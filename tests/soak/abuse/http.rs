//! Clients of the HTTP address for metrics and health.

use super::connects::AT_ONCE;
use super::flood::{answered, beside};
use crate::support::proxy::NO_POLICIES;
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Options, Postgres, Proxy};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

struct World {
    proxy: Proxy,
    address: SocketAddr,
    _postgres: Postgres,
}

fn start() -> World {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", "127.0.0.1:0"]);
    let address = address(&proxy);
    World { proxy, address, _postgres: postgres }
}

fn address(proxy: &Proxy) -> SocketAddr {
    wait_for("metrics are served", DEADLINE, || {
        let log = proxy.log();
        let (_, rest) = log.split_once("metrics_served address=\"")?;
        rest.split_once('"')?.0.parse().ok()
    })
}

fn send(address: SocketAddr, text: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // The proxy may have closed the connection already.
    let _ = stream.write_all(text);
    stream
}

/// Returns None if the connection fails, which is permitted in a flood.
fn try_send(address: SocketAddr, text: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(text).ok()?;
    Some(stream)
}

fn ask(address: SocketAddr, path: &str) -> String {
    let since = Instant::now();
    loop {
        let begun = Instant::now();
        let mut stream = send(address, format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        // The machine has stalled, and the proxy may have closed the connection in favor of others. Try again.
        let was_right_to_close = answer.is_empty() && begun.elapsed() > AT_ONCE && since.elapsed() < DEADLINE;
        if !was_right_to_close {
            read.unwrap_or_else(|error| panic!("{error} after {answer:?}"));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
            return answer;
        }
    }
}

/// Response of the proxy for this path.
pub fn page(proxy: &Proxy, path: &str) -> String {
    ask(address(proxy), path)
}

fn healthz(address: SocketAddr) {
    ask(address, "/healthz");
}

#[test]
fn half_requests_and_silence() {
    let World { proxy, address, .. } = &start();
    let address = *address;
    let files = proxy.open_files();
    for text in ["", "GET /healthz HTTP/1.1\r\nHost:", "GET /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n"] {
        let _half: Vec<_> = (0..400).map(|_| send(address, text.as_bytes())).collect();
        answered(&format!("400 connections that sent {text:?}"), 20, || healthz(address));
        assert!(proxy.open_files() < files + 100, "{} files of {files}", proxy.open_files());
    }
}

#[test]
fn a_stream_of_half_requests() {
    let World { address, .. } = &start();
    let address = *address;
    let half = |_: &_| try_send(address, b"GET /healthz HTTP/1.1\r\n");
    beside("half requests", (1000, 400), half, 50, || healthz(address));
}

#[test]
fn a_stream_of_requests_without_reading_responses() {
    let World { address, .. } = &start();
    let address = *address;
    let unread = |_: &_| try_send(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    beside("unread answers", (200, 400), unread, 50, || healthz(address));
}
