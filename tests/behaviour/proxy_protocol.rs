//! A load balancer announces its clients with the PROXY protocol.

use crate::support::fenced::{ok, value};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Frame, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};

const FROM: [&str; 4] = ["--proxy-protocol-from", "127.0.0.1/32", "--allow-unauthenticated", "192.0.2.0/24"];

fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().arguments(arguments));
    (proxy, postgres)
}

/// A connection that starts with this header.
fn login(proxy: &Proxy, header: &[u8]) -> (Wire, Vec<Frame>) {
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    wire.send(header);
    let frames = wire.start(&[("user", "postgres"), ("database", "postgres")], "");
    (wire, frames)
}

/// A header of version 2 with an IPv4 address and port 7.
fn version_2(command: u8, address: [u8; 4]) -> Vec<u8> {
    let start = [b"\r\n\r\n\0\r\nQUIT\n", &[command, 0x11, 0, 12][..]].concat();
    [&start[..], &address, &[192, 0, 2, 9, 0, 7, 0, 9]].concat()
}

#[test]
fn the_announced_address_is_the_clients() {
    let (proxy, _postgres) = start(&FROM);
    let headers = [b"PROXY TCP4 192.0.2.7 192.0.2.9 7 9\r\n".to_vec(), version_2(0x21, [192, 0, 2, 7])];
    for header in headers {
        let (mut wire, frames) = login(&proxy, &header);
        assert!(error_in(&frames).is_none(), "{frames:?}");
        assert_eq!(value(&mut wire, "SELECT 1").as_deref(), Some("1"));
        // Connections through the Unix socket need no header.
        let mut console = Wire::login(&proxy.socket(), "postgres", "fencegate");
        let shown = ok(&mut console, "SHOW SESSIONS").concat();
        assert!(shown.contains(&Some("192.0.2.7:7".to_owned())), "{shown:?}");
        drop(wire);
        wait_until("it has ended", DEADLINE, || ok(&mut console, "SHOW SESSIONS").is_empty());
    }
    assert!(proxy.log().contains("address=\"192.0.2.7:7\""), "{}", proxy.log());
    // A health check.
    let (mut balancer, frames) = login(&proxy, &version_2(0x20, [0; 4]));
    assert!(error_in(&frames).is_none(), "{frames:?}");
    assert_eq!(value(&mut balancer, "SELECT 1").as_deref(), Some("1"));
    let (_wire, _) = login(&proxy, &version_2(0x21, [192, 0, 2, 8]));
    proxy.wait_for_log("address=\"192.0.2.8:7\"", DEADLINE);
    let started = proxy.log().matches("session_started").count();
    assert_eq!(started, 3, "the check is logged at debug: {}", proxy.log());
}

/// The server trusts the proxy's address, and `allow_unauthenticated` names the loopback network.
#[test]
fn a_header_makes_no_client_more_trusted() {
    let (proxy, _postgres) = start(&FROM);
    for header in [
        b"PROXY TCP4 127.0.0.1 127.0.0.1 7 9\r\n".to_vec(),
        b"PROXY TCP6 ::1 ::1 7 9\r\n".to_vec(),
        b"PROXY TCP6 ::ffff:127.0.0.1 ::1 7 9\r\n".to_vec(),
        b"PROXY TCP4 198.51.100.1 127.0.0.1 7 9\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        version_2(0x21, [127, 0, 0, 1]),
    ] {
        let (_, frames) = login(&proxy, &header);
        assert_eq!(error_in(&frames).map(|error| error.code().to_owned()).as_deref(), Some("28000"), "{header:?}");
    }
}

#[test]
fn a_missing_or_invalid_header_gets_an_error() {
    let (proxy, _postgres) = start(&FROM);
    let second = [&version_2(0x21, [192, 0, 2, 7])[..], b"PROXY UNKNOWN\r\n"].concat();
    for (header, reason) in [
        (&b""[..], "does not begin with a PROXY protocol header"),
        (b"PROXY TCP4 nonsense\r\n", "invalid PROXY protocol header"),
        (&second, "the connection has a second PROXY protocol header"),
    ] {
        let (_, frames) = login(&proxy, header);
        let error = error_in(&frames).unwrap_or_else(|| panic!("{frames:?}"));
        assert!(error.code() == "08P01" && error.message().contains(reason), "{error:?}");
    }
}

/// An IPv6 network counts as one address.
#[test]
fn the_limit_per_address_counts_announced_addresses() {
    let arguments = ["--max-connections-per-address", "1", "--allow-unauthenticated", "2001:db8::/32"];
    let (proxy, _postgres) = start(&[&FROM[..], &arguments].concat());
    let try_from = |address: &str| {
        let (wire, frames) = login(&proxy, format!("PROXY TCP6 {address} ::1 7 9\r\n").as_bytes());
        (wire, error_in(&frames).map(|error| (error.code().to_owned(), error.message().to_owned())))
    };
    let (first, refused) = try_from("2001:db8::1");
    assert_eq!(refused, None);
    let (_, refused) = try_from("2001:db8::2");
    let message = "too many connections from address \"2001:db8::/64\"";
    assert_eq!(refused, Some(("53300".to_owned(), message.to_owned())));
    assert_eq!(try_from("2001:db8:0:1::1").1, None);
    drop(first);
    wait_until("there is room", DEADLINE, || try_from("2001:db8::2").1.is_none());
}

/// Limits on unauthenticated connections count announced addresses. A missing header holds a place no longer than a
/// missing startup packet.
#[test]
fn a_header_has_the_time_limit_of_the_startup() {
    let (proxy, _postgres) = start(&[&FROM[..], &["--startup-timeout", "200ms"]].concat());
    let mut silent = Wire::connect(&proxy.address()).unwrap();
    silent.send(b"PROXY TCP4 192.");
    assert!(silent.read_to_end().is_empty());
    proxy.wait_for_log("no PROXY protocol header within the time limit", DEADLINE);
}

/// HAProxy's tcp-check sends a header and resets the connection before a busy proxy reads it.
#[test]
fn a_check_that_is_over_is_not_logged() {
    let (mut proxy, _postgres) = start(&FROM);
    proxy.pause();
    let mut check = Wire::connect(&proxy.address()).unwrap();
    check.send(&version_2(0x20, [0; 4]));
    check.reset();
    proxy.signal("CONT");
    assert!(error_in(&login(&proxy, &version_2(0x21, [192, 0, 2, 7])).1).is_none());
    proxy.terminate();
    assert!(!proxy.log().contains("session_refused"), "{}", proxy.log());
}
