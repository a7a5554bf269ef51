//! The console while the server is unavailable: it admits the system user that runs the proxy, and its commands
//! respond.

use crate::support::fenced::{code, init, ok};
use crate::support::frozen::Frozen;
use crate::support::programs::postgres_program;
use crate::support::server::server_command;
use crate::support::ticks::POLICIES;
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, message, wait_until};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Instant;

const COMMANDS: [&str; 18] = [
    "SHOW FENCES",
    "SHOW SESSIONS",
    "SHOW ADMISSIONS",
    "SHOW LEASES",
    "SHOW POLICIES",
    "SHOW REJECTIONS",
    "SHOW STATS",
    "SHOW DATABASES",
    "SHOW CLIENTS",
    "SHOW SERVERS",
    "SHOW CONFIG",
    "SHOW VERSION",
    "SHOW HELP",
    "KILL 999999",
    "PAUSE postgres",
    "RESUME postgres",
    "RELOAD",
    "FENCE RESET scheduler TO 5",
];

/// Logs in to the console, and returns the SQLSTATE of the error; empty if the login succeeds.
fn login(address: &Address, user: &str) -> (Wire, String) {
    let mut wire = Wire::connect(address).unwrap();
    let frames = wire.start(&[("user", user), ("database", "fencegate")], "");
    (wire, error_in(&frames).map_or_else(String::new, |error| error.code().to_owned()))
}

#[track_caller]
fn all_commands_answer(console: &mut Wire) {
    for command in COMMANDS {
        let begin = Instant::now();
        let frames = console.query(command);
        println!("{command}: {:?}", begin.elapsed());
        // PAUSE and FENCE RESET may fail, but the session must continue.
        assert_eq!(frames.last().map(|frame| frame.tag), Some(b'Z'), "{command}");
    }
    assert_eq!(ok(console, "SHOW VERSION").len(), 1);
}

#[test]
fn the_system_user_of_the_proxy_is_admitted_over_its_unix_socket() {
    let mut postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE ticks (n int)");
    init(&postgres, "postgres");
    let proxy = Proxy::start(&postgres, POLICIES, &[]);
    postgres.stop();
    let (mut console, refused) = login(&proxy.socket(), "postgres");
    assert_eq!(refused, "");
    proxy.wait_for_log("console_without_server", DEADLINE);
    all_commands_answer(&mut console);
    assert_eq!(login(&proxy.socket(), "ada").1, "57P03", "no administrator");
    assert_eq!(login(&proxy.address(), "postgres").1, "57P03", "TCP does not report the system user");
    let admitted = |proxy: &Proxy| proxy.log().matches("console_without_server").count();
    let before = admitted(&proxy);
    postgres.start_again();
    assert_eq!(login(&proxy.socket(), "postgres").1, "");
    assert_eq!(admitted(&proxy), before, "a server that answers authenticates its clients");
    postgres.stop();
    // Only root can run psql as another user.
    let psql = server_command(&postgres_program("psql"));
    if psql.len() > 1 {
        let (host, port) = proxy.socket().host_and_port();
        let mut other = Command::new(&psql[0]);
        other.args(&psql[1..]).args([
            "-X",
            "-h",
            &host,
            "-p",
            &port,
            "-U",
            "postgres",
            "-d",
            "fencegate",
            "-c",
            "SHOW VERSION",
        ]);
        let output = other.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("could not connect to the server behind the proxy"),
            "{said}"
        );
    }
}

#[test]
fn a_starting_server_counts_as_unavailable() {
    let postgres = Postgres::start(Options::default());
    let starting = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}", starting.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in starting.incoming() {
            let mut client = client.unwrap();
            let _ = client.read(&mut [0; 1024]);
            let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
            let _ = client.write_all(&message::tagged(b'E', fields));
        }
    });
    let options = ProxyOptions::default().upstream(&url).arguments(&["--upstream-sslmode", "disable"]);
    let proxy = Proxy::start_with(&postgres, &options);
    assert_eq!(login(&proxy.socket(), "postgres").1, "");
    assert_eq!(login(&proxy.address(), "postgres").1, "57P03");
}

/// The server's kernel accepts connections, but the server does not answer.
#[test]
fn commands_are_answered_while_the_server_hangs() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE ticks (n int)");
    init(&postgres, "postgres");
    let proxy = Proxy::start(&postgres, POLICIES, &[]);
    let mut session = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut session, "SET lease.fence = 1; INSERT INTO ticks VALUES (1)");
    let frozen = freeze(&postgres);
    let (mut console, refused) = login(&proxy.socket(), "postgres");
    assert_eq!(refused, "");
    all_commands_answer(&mut console);
    drop(frozen);
    wait_until("the server is back", DEADLINE, || code(&mut console, "FENCE RESET scheduler TO 5 FORCE").is_empty());
}

/// Suspends all processes of a server.
fn freeze(postgres: &Postgres) -> Frozen {
    let rows = postgres.sql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
    let postmaster = postgres.value("SELECT pg_read_file('postmaster.pid', 0, 100)");
    let pids: Vec<String> = rows.into_iter().flatten().flatten().collect();
    Frozen::processes(pids.iter().map(String::as_str).chain(postmaster.lines().next()))
}
