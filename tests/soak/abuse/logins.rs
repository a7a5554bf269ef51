//! Logins that begin and do not end. They come from another address than the concurrent client's, or from several.

use super::flood::{answered, beside};
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Stalls, Wire, message, wait_until};
use std::time::{Duration, Instant};

const USER: [(&str, &str); 2] = [("user", "ada"), ("database", "postgres")];
const CONSOLE: [(&str, &str); 2] = [("user", "ada"), ("database", "fencegate")];

/// The server has few slots, and requests a password from ada.
fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    let options = Options::default().setting("max_connections", "100").hba("host all ada all scram-sha-256");
    let postgres = Postgres::start(options);
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'; CREATE ROLE bob LOGIN");
    (Proxy::start(&postgres, NO_POLICIES, arguments), postgres)
}

fn login(proxy: &Proxy, parameters: &[(&str, &str)]) -> Wire {
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    let frames = wire.start(parameters, "secret");
    assert_eq!(error_in(&frames), None);
    assert_eq!(frames.last().map(|frame| frame.tag), Some(b'Z'), "the connection was closed");
    wire
}

fn unanswered(proxy: &Proxy, parameters: &[(&str, &str)]) -> Wire {
    unanswered_from(2, proxy, parameters)
}

fn unanswered_from(host: u8, proxy: &Proxy, parameters: &[(&str, &str)]) -> Wire {
    let mut wire = Wire::connect_from([127, 0, 0, host].into(), &proxy.address()).unwrap();
    wire.send(&message::startup(message::PROTOCOL_3_0, parameters));
    wire
}

/// The server requests a password from the first login before the others arrive. The login that has waited longest
/// makes room for them.
fn all_unanswered(proxy: &Proxy, parameters: &[(&str, &str)], number: usize) -> Vec<Wire> {
    let mut first = unanswered(proxy, parameters);
    assert_eq!(first.frame().map(|frame| frame.tag), Some(b'R'), "the server requests a password");
    std::iter::once(first).chain((1..number).map(|_| unanswered(proxy, parameters))).collect()
}

#[test]
fn more_than_the_server_has_slots_for() {
    let (proxy, _postgres) = start(&[]);
    let _held = all_unanswered(&proxy, &USER, 150);
    answered("150 unanswered logins", 10, || drop(login(&proxy, &USER)));
}

#[test]
fn as_many_as_the_proxy_has_places() {
    let (proxy, _postgres) = start(&["--max-connections", "10"]);
    let sessions: Vec<_> = (0..7).map(|_| login(&proxy, &USER)).collect();
    let _held = all_unanswered(&proxy, &USER, 30);
    answered("logins in all places", 4, || drop(login(&proxy, &USER)));
    drop(sessions);
}

#[test]
fn in_a_stream() {
    let (proxy, _postgres) = start(&[]);
    let one = |_: &_| unanswered(&proxy, &USER);
    beside("a stream of unanswered logins", (200, 200), one, 10, || drop(login(&proxy, &USER)));
}

/// Each client waits for the password request, so that all logins reach the server. Few connections are kept.
#[test]
fn in_a_stream_through_the_server() {
    let (proxy, _postgres) = start(&[]);
    let one = |_: &_| {
        let mut wire = unanswered(&proxy, &USER);
        wire.frame();
        wire
    };
    beside("a stream of logins that the server asks", (60, 20), one, 10, || drop(login(&proxy, &USER)));
}

/// The clients occupy all concurrent logins. Each makes room after ten seconds.
#[test]
fn from_many_addresses() {
    const LIMIT: Duration = Duration::from_secs(10);
    let (proxy, _postgres) = start(&[]);
    let from = |host| (0..4).map(move |_| host);
    let mut asked: Vec<Wire> = (2..12).flat_map(from).map(|host| unanswered_from(host, &proxy, &USER)).collect();
    assert!(asked.iter_mut().all(|wire| wire.frame().is_some_and(|frame| frame.tag == b'R')));
    let _waiting: Vec<Wire> = (2..12).flat_map(from).map(|host| unanswered_from(host, &proxy, &USER)).collect();
    let (stalls, begin) = (Stalls::watch(), Instant::now());
    drop(login(&proxy, &USER));
    let took = begin.elapsed();
    println!("a login beside unanswered ones from ten addresses: {took:?}");
    assert!(took < LIMIT + super::flood::PATIENCE + stalls.total(), "it took {took:?}");
}

/// A client can claim the name of an administrator until the server requests a password.
#[test]
fn at_the_console_in_the_name_of_an_administrator() {
    let (proxy, _postgres) = start(&["--admin-roles", "ada", "--max-connections", "20"]);
    let _held = all_unanswered(&proxy, &CONSOLE, 60);
    answered("logins beside unanswered ones at the console", 10, || drop(login(&proxy, &USER)));
    answered("logins at the console beside unanswered ones there", 3, || drop(login(&proxy, &CONSOLE)));
}

/// Disconnected logins release their places.
#[test]
fn that_are_broken_off() {
    let (proxy, postgres) = start(&["--max-connections", "10"]);
    for _ in 0..200 {
        drop(unanswered(&proxy, &USER));
    }
    answered("logins after broken ones", 10, || drop(login(&proxy, &USER)));
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ada'";
    wait_until("the server's processes have ended", DEADLINE, || postgres.value(left) == "0");
}
