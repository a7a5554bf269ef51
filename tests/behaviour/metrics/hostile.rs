//! Clients of the metrics address can only read metrics.

use crate::metrics::page::{get, send};
use crate::metrics::world::http_address;
use crate::support::proxy::NO_POLICIES;
use crate::support::{Options, Postgres, Proxy, Wire};
use std::io::Write;
use std::net::TcpStream;

#[test]
fn garbage_gets_an_error_or_nothing() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| proxy.log());
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10_000));
    let endless = format!("GET /metrics HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
    let body = format!("POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n{}", "x".repeat(1 << 20));
    let smuggled = "GET /metrics HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let requests: [&[u8]; 9] = [
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
        endless.as_bytes(),
        body.as_bytes(),
        smuggled.as_bytes(),
    ];
    for request in requests {
        let answer = send(address, request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        let refused = ["HTTP/1.1 4", "HTTP/1.0 4", "HTTP/1.1 5"].iter().any(|start| answer.starts_with(start));
        assert!(refused || answer.is_empty() || request == smuggled.as_bytes(), "{shown}: {answer}");
    }
    assert_eq!(get(address, "/healthz").status, 200);
    Wire::login(&proxy.address(), "postgres", "postgres");
}

#[test]
fn silent_connections_do_not_block_other_requests_for_long() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", "127.0.0.1:0"]);
    let address = http_address(|| proxy.log());
    let slow = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metr").unwrap();
        stream
    };
    let files = proxy.open_files();
    let _slow: Vec<TcpStream> = (0..200).map(slow).collect();
    assert_eq!(get(address, "/healthz").status, 200, "the request waits for a place and then gets one");
    assert!(proxy.open_files() <= files + 70, "{} of {files}", proxy.open_files());
}
