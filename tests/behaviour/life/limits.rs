//! Limits on the number of clients, and the errors beyond them.

use super::WithFile;
use crate::support::fenced::{ok, value};
use crate::support::proxy::NO_POLICIES;
use crate::support::ticks::{process, wait_for_process};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Frame, Options, Postgres, Proxy, ProxyOptions, Wire, message, wait_until};
use std::net::TcpListener;
use std::time::{Duration, Instant};

const CONSOLE: [(&str, &str); 2] = [("user", "postgres"), ("database", "fencegate")];

fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    start_with(Options::default(), arguments)
}

fn start_with(options: Options, arguments: &[&str]) -> (Proxy, Postgres) {
    let postgres = postgres(options);
    (Proxy::start(&postgres, NO_POLICIES, arguments), postgres)
}

fn postgres(options: Options) -> Postgres {
    let postgres = Postgres::start(options);
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'; CREATE ROLE bob LOGIN");
    postgres
}

fn try_login(proxy: &Proxy, parameters: &[(&str, &str)]) -> (Wire, String) {
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    let frames: Vec<Frame> = wire.start(parameters, "");
    let code = error_in(&frames).map_or_else(String::new, |error| error.code().to_owned());
    (wire, code)
}

fn login_as(proxy: &Proxy, user: &str) -> (Wire, String) {
    try_login(proxy, &[("user", user), ("database", "postgres")])
}

#[test]
fn clients_beyond_the_limit_are_refused_until_one_leaves() {
    let (proxy, postgres) = start(&["--max-connections", "2"]);
    let (mut one, _) = login_as(&proxy, "ada");
    let (two, _) = login_as(&proxy, "ada");
    assert_eq!(login_as(&proxy, "ada").1, "53300");
    // The proxy refused the client without connecting to the server.
    assert_eq!(postgres.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'ada'"), "2");
    drop(two);
    wait_until("there is room", DEADLINE, || login_as(&proxy, "ada").1.is_empty());
    ok(&mut one, "SELECT 1");
}

#[test]
fn a_full_proxy_accepts_cancel_requests_and_console_administrators() {
    let (proxy, postgres) = start(&["--max-connections", "1"]);
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    let frames = wire.start(&[("user", "ada"), ("database", "postgres")], "");
    let pid = process(&mut wire);
    let key = frames.iter().find(|frame| frame.tag == b'K').unwrap().body.clone();
    let consoles: Vec<_> = (0..4).map(|_| try_login(&proxy, &CONSOLE)).collect();
    let codes: Vec<_> = consoles.iter().map(|(_, code)| code.as_str()).collect();
    assert_eq!(codes, ["", "", "", "53300"]);
    assert_eq!(try_login(&proxy, &[("user", "ada"), ("database", "fencegate")]).1, "53300");

    wire.send(&message::query("SELECT pg_sleep(600)"));
    // A cancel request that arrives before the statement cancels nothing.
    wait_for_process(&postgres, &pid, "wait_event = 'PgSleep'");
    let mut cancel = Wire::connect(&proxy.address()).unwrap();
    cancel.send(&message::cancel_request(&key));
    assert_eq!(error_in(&wire.read_until_ready()).unwrap().code(), "57014");
}

#[test]
fn claiming_an_administrators_name_keeps_no_administrator_out() {
    const ADA: [(&str, &str); 2] = [("user", "ada"), ("database", "fencegate")];
    let asked = Options::default().hba("host all ada all scram-sha-256");
    let limits = ["--max-connections", "1", "--startup-timeout", "1h", "--admin-roles", "ada"];
    let (proxy, _postgres) = start_with(asked, &limits);
    let (mut bob, _) = login_as(&proxy, "bob");
    let claim = || {
        let mut wire = Wire::connect_from([127, 0, 0, 2].into(), &proxy.address()).unwrap();
        wire.send(&message::startup(message::PROTOCOL_3_0, &ADA));
        wire
    };
    let mut asked: Vec<_> = (0..2).map(|_| claim()).collect();
    assert!(asked.iter_mut().all(|wire| wire.frame().unwrap().tag == b'R'), "each client is asked for a password");
    let mut waiting: Vec<_> = (0..4).map(|_| claim()).collect();
    let login = |_| {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let frames = wire.start(&ADA, "secret");
        assert!(frames.last().is_some_and(|frame| frame.tag == b'Z'), "{frames:?}");
        wire
    };
    let mut administrators: Vec<_> = (0..3).map(login).collect();
    // Unauthenticated clients made room for the administrators. Authenticated ones keep their place.
    let code = |wire: &mut Wire| error_in(&wire.read_to_end()).unwrap().code().to_owned();
    assert_eq!(asked.iter_mut().map(code).collect::<Vec<_>>(), ["57P03"; 2]);
    // If both earlier clients ended at once, one of these may have taken their place for a while.
    let codes: Vec<_> = waiting.iter_mut().map(code).collect();
    assert!(codes.iter().all(|code| ["53300", "57P03"].contains(&code.as_str())), "{codes:?}");
    assert_eq!(code(&mut claim()), "53300");
    administrators.iter_mut().for_each(|wire| drop(ok(wire, "SHOW VERSION")));
    ok(&mut bob, "SELECT 1");
}

/// Each login keeps a server process waiting for seconds, as if the clients' event loops were busy.
#[test]
fn slow_clients_of_one_address_all_get_in() {
    const CLIENTS: usize = 12;
    const SLOW: Duration = Duration::from_millis(1500);
    let asked = Options::default().hba("host all ada all password");
    let (proxy, _postgres) = start_with(asked, &["--max-connections", &CLIENTS.to_string()]);
    let log_in = || {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]));
        let asked = wire.frame().unwrap();
        assert_eq!(error_in(&[asked]), None);
        std::thread::sleep(SLOW);
        wire.send(&message::password("secret"));
        assert_eq!(error_in(&wire.read_until_ready()), None);
        wire
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(log_in)).collect();
        let sessions: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        assert_eq!(sessions.len(), CLIENTS);
    });
    assert!(begin.elapsed() > 2 * SLOW, "some clients had to wait");
}

#[test]
fn other_users_cannot_exhaust_a_users_limit() {
    let asked = Options::default().hba("host all ada all scram-sha-256");
    let (proxy, _postgres) = start_with(asked, &["--max-connections-per-user", "1"]);
    // A client that claims to be ada but does not authenticate does not count.
    let mut strangers: Vec<_> = (0..3).map(|_| Wire::connect(&proxy.address()).unwrap()).collect();
    for wire in &mut strangers {
        wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]));
        assert_eq!(wire.frame().unwrap().tag, b'R');
    }
    let login = || {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let frames = wire.start(&[("user", "ada"), ("database", "postgres")], "secret");
        (wire, error_in(&frames).map_or_else(String::new, |error| error.code().to_owned()))
    };
    let (ada, code) = login();
    assert_eq!(code, "");
    assert_eq!(login().1, "53300");
    assert_eq!(login_as(&proxy, "bob").1, "");
    drop(ada);
    wait_until("there is room", DEADLINE, || login().1.is_empty());
}

#[test]
fn a_database_and_an_address_have_limits_of_their_own() {
    let asked = Options::default().hba("host all ada all scram-sha-256");
    let postgres = postgres(asked);
    postgres.sql("CREATE DATABASE other");
    let settings = "max_connections_per_database: 1\nmax_connections_per_address: 2\n";
    let mut world = WithFile::start(&postgres, NO_POLICIES, settings);
    let login = |proxy: &Proxy, last: u8, database: &str| {
        let mut wire = Wire::connect_from([127, 0, 0, last].into(), &proxy.address()).unwrap();
        let frames = wire.start(&[("user", "bob"), ("database", database)], "");
        let refused = error_in(&frames).map(|error| [error.code(), error.message(), error.hint()].join("; "));
        (wire, refused.unwrap_or_default())
    };
    // A client that has not been authenticated does not count.
    let claims = |database| {
        let mut wire = Wire::connect_from([127, 0, 0, 2].into(), &world.proxy.address()).unwrap();
        wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", database)]));
        assert_eq!(wire.frame().unwrap().tag, b'R');
        wire
    };
    let _strangers = [claims("postgres"), claims("other")];
    let (one, refused) = login(&world.proxy, 2, "postgres");
    assert_eq!(refused, "");
    let full = "too many connections for database \"postgres\"";
    let hint = "The limit is the proxy's setting max_connections_per_";
    assert_eq!(login(&world.proxy, 3, "postgres").1, format!("53300; {full}; {hint}database."));
    let (_two, refused) = login(&world.proxy, 2, "other");
    assert_eq!(refused, "");
    let full = "too many connections from address \"127.0.0.2\"";
    let template = login(&world.proxy, 2, "template1");
    assert_eq!(template.1, format!("53300; {full}; {hint}address."));
    // The limits do not apply to the console. Limits per address do not apply to Unix sockets.
    let mut console = Wire::connect_from([127, 0, 0, 2].into(), &world.proxy.address()).unwrap();
    assert_eq!(error_in(&console.start(&CONSOLE, "")), None);
    drop(one);
    wait_until("there is room", DEADLINE, || login(&world.proxy, 2, "postgres").1.is_empty());
    world.reload_with("max_connections_per_address: 3\n");
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    let three = login(&world.proxy, 2, "other");
    assert_eq!(three.1, "");
    let many: Vec<_> = (0..4).map(|_| Wire::login(&world.proxy.socket(), "bob", "other")).collect();
    drop(many);
}

#[test]
fn silent_connections_do_not_block_other_clients() {
    let (proxy, _postgres) = start(&["--max-connections", "5", "--startup-timeout", "1h"]);
    let mut silent: Vec<_> = (0..20).map(|_| Wire::connect(&proxy.address()).unwrap()).collect();
    let (mut wire, code) = login_as(&proxy, "ada");
    assert_eq!(code, "");
    ok(&mut wire, "SELECT 1");
    // The connections that had waited longest made room.
    assert_eq!(silent[0].frame(), None);
}

#[test]
fn invalid_packets_use_few_server_connections_for_a_short_time() {
    const PACKETS: usize = 100;
    const AT_ONCE: usize = 8;
    let postgres = Postgres::start(Options::default());
    // This server never answers. Its connections stay in the backlog.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}", silent.local_addr().unwrap());
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().upstream(&url));
    let malformed = || {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        wire.send(&message::startup(4 << 16, &[("user", "ada")]));
        wire
    };
    let sent = Instant::now();
    for wire in &mut (0..PACKETS).map(|_| malformed()).collect::<Vec<_>>() {
        assert_eq!(error_in(&wire.read_to_end()).unwrap().code(), "08P01");
    }
    assert!(sent.elapsed() < Duration::from_secs(30), "the clients waited too long");
    silent.set_nonblocking(true).unwrap();
    let asked = std::iter::from_fn(|| silent.accept().ok()).count();
    // One connection is the proxy's own: at startup it checks whether the server is there.
    assert!((2..=AT_ONCE + 1).contains(&asked), "{asked} connections to the server");
}

#[test]
fn refusals_are_logged_at_a_bounded_rate() {
    let (proxy, _postgres) = start(&["--max-connections", "1"]);
    let (_wire, _) = login_as(&proxy, "ada");
    for _ in 0..50 {
        assert_eq!(login_as(&proxy, "ada").1, "53300");
    }
    proxy.wait_for_log("lines_left_out", DEADLINE);
    let one_by_one = proxy.log().matches("session_refused").count();
    assert!(one_by_one < 50, "{}", proxy.log());
}

#[test]
fn a_reload_applies_to_later_clients() {
    let postgres = postgres(Options::default());
    let mut world = WithFile::start(&postgres, NO_POLICIES, "max_connections: 1\n");
    let (mut wire, _) = login_as(&world.proxy, "ada");
    assert_eq!(login_as(&world.proxy, "ada").1, "53300");
    world.reload_with("max_connections: 2\nidle_timeout: 2s\n");
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    // An idle session ends as well.
    assert_eq!(
        wire.read_to_end().pop().map(|frame| error_in(&[frame]).unwrap().code().to_owned()).as_deref(),
        Some("57P05")
    );
    assert_eq!(login_as(&world.proxy, "ada").1, "");
    assert!(value(&mut login_as(&world.proxy, "ada").0, "SELECT 1").is_some());
}
