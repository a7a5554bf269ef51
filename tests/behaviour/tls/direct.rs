//! Clients that begin with TLS directly.

use super::world::{World, psycopg, s_client};
use crate::support::message;
use fencegate_postgres::tls::{Connector, Negotiated};
use fencegate_postgres::{ServerTls, SslMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// psycopg has a newer libpq than Debian.
pub const SELECT: &str = "import sys, psycopg; print(psycopg.connect(sys.argv[1]).execute('select 1').fetchone()[0])";

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn by_libpq() {
    for mode in ["allow", "require"] {
        let world = World::start(&["--tls", mode]);
        let root = world.root();
        let parameters = format!("sslnegotiation=direct sslmode=verify-full {root}");
        assert_eq!(psycopg(&world.proxy.address(), &parameters, SELECT).as_deref(), Ok("1"));
        let parameters = format!("sslnegotiation=postgres sslmode=verify-full {root}");
        assert_eq!(psycopg(&world.proxy.address(), &parameters, SELECT).as_deref(), Ok("1"));
    }
}

#[test]
fn the_protocol_has_to_be_named() {
    let world = World::start(&[]);
    let (is_open, said) = s_client(&world.proxy.address(), "-alpn postgresql");
    assert!(is_open && said.contains("ALPN protocol: postgresql"), "{said}");
    let (_, said) = s_client(&world.proxy.address(), "-alpn http/1.1");
    assert!(said.contains("no application protocol"), "{said}");
    s_client(&world.proxy.address(), "");
    world.proxy.wait_for_log("did not request the protocol postgresql", crate::support::DEADLINE);
    // Clients that request TLS in the PostgreSQL protocol may use ALPN but need not.
    for (arguments, said) in [("-alpn postgresql", "ALPN protocol: postgresql"), ("", "No ALPN negotiated")] {
        let (is_open, text) = s_client(&world.proxy.address(), &format!("-starttls postgres {arguments}"));
        assert!(is_open && text.contains(said), "{text}");
    }
}

#[test]
fn tls_is_not_nested() {
    let world = World::start(&[]);
    let (host, port) = world.proxy.address().host_and_port();
    let tls = ServerTls { mode: SslMode::Require, ..ServerTls::default() };
    let answer = Runtime::new().unwrap().block_on(async {
        let socket = TcpStream::connect(format!("{host}:{port}")).await.unwrap();
        let Negotiated::Tls(mut stream, _) = Connector::new(tls).unwrap().negotiate(socket, &host).await.unwrap()
        else {
            panic!("the proxy supports TLS")
        };
        stream.write_all(&message::ssl_request()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    });
    assert_eq!(answer[0], b'E');
    assert!(String::from_utf8_lossy(&answer).contains("unsupported frontend protocol 1234.5679"));
}
