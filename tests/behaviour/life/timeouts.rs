//! Silent clients, before and after authentication.

use super::WithFile;
use crate::support::fenced::{ok, value};
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, wait_until};

fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    let postgres = Postgres::start(Options::default());
    (Proxy::start(&postgres, NO_POLICIES, arguments), postgres)
}

fn code_at_end(wire: &mut Wire) -> Option<String> {
    Some(error_in(&[wire.read_to_end().pop()?]).expect("the last message is an error").code().to_owned())
}

#[test]
fn a_client_that_does_not_log_in_is_closed() {
    let postgres = Postgres::start(Options::default().hba("host all ada all scram-sha-256"));
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'");
    let proxy = Proxy::start(&postgres, NO_POLICIES, &["--startup-timeout", "300ms"]);
    let mut silent = Wire::connect(&proxy.address()).unwrap();
    let mut half = Wire::connect(&proxy.address()).unwrap();
    let startup = message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]);
    half.send(&startup[..startup.len() - 1]);
    // Like the server, the proxy sends nothing to a client that has sent no complete startup message.
    assert_eq!((silent.bytes_to_end(), half.bytes_to_end()), (Vec::new(), Vec::new()));
    let mut stalls = Wire::connect(&proxy.address()).unwrap();
    stalls.send(&startup);
    let told = stalls.read_to_end();
    let (last, asked) = told.split_last().expect("the client receives the reason");
    assert_eq!(error_in(std::slice::from_ref(last)).unwrap().code(), "57014");
    // The client was asked for its password, unless the machine was too slow.
    assert!(asked.len() <= 1 && asked.iter().all(|frame| frame.tag == b'R'), "{asked:?}");
    wait_until("its server process ends", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'ada'") == "0"
    });
}

#[test]
fn an_idle_session_ends_and_one_in_a_transaction_does_not() {
    const STEPS: usize = 12;
    let postgres = Postgres::start(Options::default());
    let mut world = WithFile::start(&postgres, NO_POLICIES, "idle_timeout: 0\n");
    let login = || Wire::login(&world.proxy.address(), "postgres", "postgres");
    let (mut idle, mut open, mut running, mut active) = (login(), login(), login(), login());
    ok(&mut idle, "SET application_name = 'idle'");
    ok(&mut open, "BEGIN");
    let mut holder = Wire::login(&postgres.address(), "postgres", "postgres");
    ok(&mut holder, "SELECT pg_advisory_lock(1)");
    running.send(&message::query("SELECT pg_advisory_xact_lock(1)"));
    // Repeatedly idle, each time briefly, but in total longer than the timeout.
    active.send(&message::query("SELECT pg_sleep(0.1)").repeat(STEPS));
    // The timeout applies only now, so the test does not depend on speed.
    world.reload_with("idle_timeout: 500ms\n");
    (0..STEPS).for_each(|_| assert_eq!(error_in(&active.read_until_ready()), None));
    assert_eq!(code_at_end(&mut idle).as_deref(), Some("57P05"));
    wait_until("its server process ends", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle'") == "0"
    });
    assert_eq!(value(&mut open, "SELECT 1").as_deref(), Some("1"));
    ok(&mut holder, "SELECT pg_advisory_unlock(1)");
    assert_eq!(running.read_until_ready().len(), 4);
    assert_eq!(code_at_end(&mut active).as_deref(), Some("57P05"));
}

/// The client receives the error as soon as it reads. Until then the proxy does nothing.
#[test]
fn an_idle_session_that_does_not_read_costs_nothing_when_it_ends() {
    const ROW: usize = 8000;
    let postgres = Postgres::start(Options::default());
    let mut world = WithFile::start(&postgres, NO_POLICIES, "idle_timeout: 0\n");
    let mut silent = Wire::login(&world.proxy.socket(), "postgres", "postgres");
    let process = value(&mut silent, "SELECT pg_backend_pid()").unwrap();
    // More than the socket buffer holds, but less than the 128 KiB at which the proxy would stop reading the rest.
    let held =
        std::fs::read_to_string("/proc/sys/net/core/wmem_default").map_or(212_992, |it| it.trim().parse().unwrap());
    for number in 0..=held / ROW + 1 {
        silent.send(&message::query(&format!("SELECT repeat('x', {ROW}), {number}")));
        let asked = format!("SELECT repeat(''x'', {ROW}), {number}");
        let has_run = format!("pid = {process} AND state = 'idle' AND query = '{asked}'");
        wait_until("it has run", DEADLINE, || {
            postgres.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE {has_run}")) == "1"
        });
    }
    world.reload_with("idle_timeout: 100ms\n");
    wait_until("its server process ends", DEADLINE, || {
        postgres.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}")) == "0"
    });
    let before = world.proxy.processor_time();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let worked = world.proxy.processor_time() - before;
    assert!(worked < 20, "{worked} hundredths of a second in two");
    assert!(!world.proxy.log().contains("session_ended"), "the client has received the error");
    assert_eq!(code_at_end(&mut silent).as_deref(), Some("57P05"));
    world.proxy.wait_for_log("session_ended", DEADLINE);
}

#[test]
fn both_sides_are_probed() {
    // As netstat -o shows: timer kind 2 is the next keepalive probe.
    let keepalive = |port: u16| {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let own = |line: &&str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let port = format!(":{port:04X}");
            // Established connections, with the client's or the server's port at one end.
            fields.get(3) == Some(&"01") && (fields[1].ends_with(&port) || fields[2].ends_with(&port))
        };
        let timers: Vec<_> =
            table.lines().filter(own).map(|line| line.split_whitespace().nth(5).unwrap().to_owned()).collect();
        timers
    };
    let (proxy, postgres) = start(&["--keepalive", "100s"]);
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut wire, "SELECT 1");
    let port = |address: crate::support::Address| address.host_and_port().1.parse::<u16>().unwrap();
    for port in [port(proxy.address()), port(postgres.address())] {
        // In hundredths of a second: at most the configured time, and more than half of it.
        let is_ours = |timer: &String| {
            let (kind, left) = timer.split_once(':').unwrap();
            kind == "02" && (5_000..=10_000).contains(&u32::from_str_radix(left, 16).unwrap())
        };
        wait_until("the timer runs", DEADLINE, || keepalive(port).iter().any(is_ours));
    }
}
