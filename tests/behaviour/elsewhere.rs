//! A client that the proxy cannot serve receives an error that lets pg_isready and libpq's list of hosts go to another
//! server.

use crate::support::programs::postgres_program;
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, message, wait_until};
use std::net::TcpListener;
use std::process::Command;

/// pg_isready's exit code: 0 accepts connections, 1 rejects them, 2 no answer.
fn is_ready(address: &Address) -> Option<i32> {
    let (host, port) = address.host_and_port();
    let arguments = ["-q", "-t", "20", "-U", "postgres", "-d", "postgres", "-h", &host, "-p", &port];
    Command::new(postgres_program("pg_isready")).args(arguments).status().unwrap().code()
}

/// The port of the server with which libpq gets a session.
fn chosen(first: &Address, second: &Address) -> Result<String, String> {
    let [(first, first_port), (second, second_port)] = [first, second].map(Address::host_and_port);
    let connection = format!(
        "host={first},{second} port={first_port},{second_port} user=postgres dbname=postgres connect_timeout=20"
    );
    let mut psql = Command::new(postgres_program("psql"));
    psql.args(["-X", "-At", "-c", "SELECT current_setting('port')", &connection]);
    let output = psql.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Checks that a login fails with 57P03, pg_isready reports a rejection, and libpq connects to the next host.
#[track_caller]
fn sends_clients_elsewhere(what: &str, proxy: &Proxy) {
    let error = error_in(&Wire::connect(&proxy.address()).unwrap().start(&[("user", "postgres")], ""));
    let error = error.unwrap_or_else(|| panic!("{what}: no error"));
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P03"), "{what}: {error:?}");
    assert_eq!(is_ready(&proxy.address()), Some(1), "{what}");
    let other = Postgres::start(Options::default());
    assert_eq!(chosen(&proxy.address(), &other.address()), Ok(other.port().to_string()), "{what}");
}

#[test]
fn from_a_server_that_is_down() {
    let mut postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    assert_eq!(is_ready(&proxy.address()), Some(0));
    assert_eq!(chosen(&proxy.address(), &postgres.address()), Ok(postgres.port().to_string()));
    postgres.stop();
    sends_clients_elsewhere("it is down", &proxy);
}

#[test]
fn from_a_server_without_the_tls_that_is_required() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--upstream-sslmode", "require"]);
    sends_clients_elsewhere("it has no TLS", &proxy);
}

#[test]
fn from_a_server_that_closes_connections() {
    let postgres = Postgres::start(Options::default());
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}", closing.local_addr().unwrap());
    std::thread::spawn(move || closing.incoming().for_each(drop));
    let options = ProxyOptions::default().upstream(&url).arguments(&["--upstream-sslmode", "disable"]);
    sends_clients_elsewhere("it closes connections", &Proxy::start_with(&postgres, &options));
}

#[test]
fn from_a_server_that_does_not_answer() {
    let postgres = Postgres::start(Options::default());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}", silent.local_addr().unwrap());
    let arguments = ["--upstream-sslmode", "disable", "--startup-timeout", "1s"];
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().upstream(&url).arguments(&arguments));
    sends_clients_elsewhere("it does not answer", &proxy);
}

#[test]
fn from_a_login_queue_that_is_full() {
    let postgres = Postgres::start(Options::default().hba("host all ada all scram-sha-256"));
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'");
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--max-connections", "2"]);
    let login = || {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]));
        wire
    };
    let mut held = login();
    assert_eq!(held.frame().unwrap().tag, b'R', "the server requests its password, and others wait");
    let mut first = login();
    let mut others = Vec::new();
    let error = std::thread::scope(|scope| {
        let first = scope.spawn(move || error_in(&first.read_to_end()).unwrap());
        wait_until("there are too many", DEADLINE, || {
            others.push(login());
            first.is_finished()
        });
        first.join().unwrap()
    });
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P03"));
    assert!(error.message().contains("waiting to log in"), "{error:?}");
}

/// A slow client would be slow on another server too.
#[test]
fn not_because_the_client_is_slow() {
    let postgres = Postgres::start(Options::default().hba("host all ada all scram-sha-256"));
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'");
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--startup-timeout", "1s"]);
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]));
    assert_eq!(error_in(&wire.read_to_end()).unwrap().code(), "57014");
}
