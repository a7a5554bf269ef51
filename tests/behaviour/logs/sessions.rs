//! The log lines for the start and end of a session.

use crate::logs::line::{POLICIES, SCHEMA, assert_fields, event, events, lines, start};
use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::wait::wait_for;
use crate::support::wire::{error_in, message};
use crate::support::{DEADLINE, Options, ProxyOptions, Wire};

#[test]
fn one_line_at_the_start_and_one_at_the_end() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = fenced.login();
    let started = event(|| fenced.proxy.log(), "session_started");
    assert_fields(&started, &[("user", "postgres"), ("database", "postgres"), ("level", "INFO")]);
    assert!(started["address"].starts_with("127.0.0.1:"), "{started:?}");
    ok(&mut wire, "SELECT 1");
    ok(&mut wire, "SELECT repeat('x', 10000)");
    drop(wire);
    let ended = event(|| fenced.proxy.log(), "session_ended");
    assert_fields(
        &ended,
        &[("user", "postgres"), ("database", "postgres"), ("session", &started["session"]), ("queries", "2")],
    );
    assert_fields(&ended, &[("address", &started["address"]), ("reason", "client closed the connection")]);
    let number = |name: &str| ended[name].parse::<f64>().unwrap();
    assert!(number("sent") > 10_000.0 && number("sent") < 12_000.0, "{ended:?}");
    assert!(number("received") > 20.0 && number("received") < 1_000.0 && number("seconds") > 0.0, "{ended:?}");
    assert_eq!(events(&fenced.proxy.log(), "session_ended").len(), 1);
}

#[test]
fn the_level_is_a_setting() {
    for level in ["off", "debug"] {
        let mut fenced = start(SCHEMA, POLICIES, &["--log-sessions", level]);
        ok(&mut fenced.login(), "SELECT 1");
        fenced.proxy.terminate();
        let log = fenced.proxy.log();
        assert!(
            lines(&log).iter().all(|line| !["session_started", "session_ended"].contains(&line["event"].as_str())),
            "{log}"
        );
    }
}

#[test]
fn a_refused_client_is_logged_with_the_reason() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
    wire.start(&[("user", "postgres"), ("database", "nowhere")], "");
    let refused = || events(&fenced.proxy.log(), "session_refused");
    let by_server = wait_for("it is logged", DEADLINE, || {
        refused().into_iter().find(|line| line["reason"] == "refused by the server")
    });
    assert_fields(&by_server, &[("user", "postgres"), ("database", "nowhere"), ("code", "3D000")]);
    let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
    wire.start(&[("user", "postgres"), ("options", "-c lease.fence=none")], "");
    let by_proxy = wait_for("it is logged", DEADLINE, || {
        refused().into_iter().find(|line| line.get("code").is_some_and(|it| it == "LF003"))
    });
    assert_fields(&by_proxy, &[("user", "postgres"), ("database", "postgres")]);
    // This client disconnects before it has sent its startup message.
    Wire::connect(&fenced.proxy.address()).unwrap().send(&[0, 0]);
    let nobody = wait_for("it is logged", DEADLINE, || refused().into_iter().find(|line| !line.contains_key("user")));
    assert!(!nobody.contains_key("code") && !nobody.contains_key("database"), "{nobody:?}");
}

/// Monitors and load balancers do this every second.
#[test]
fn connections_that_only_connect_and_close_are_not_logged() {
    let mut fenced = start(SCHEMA, POLICIES, &[]);
    for address in [fenced.proxy.address(), fenced.proxy.socket()] {
        drop(Wire::connect(&address).unwrap());
    }
    Wire::connect(&fenced.proxy.address()).unwrap().reset();
    // This client requests encryption and leaves after the answer.
    let mut asks = Wire::connect(&fenced.proxy.address()).unwrap();
    asks.send(&message::ssl_request());
    assert_eq!(asks.byte(), Some(b'N'));
    drop(asks);
    // All connections have ended before the proxy stops.
    fenced.proxy.terminate();
    let log = fenced.proxy.log();
    assert_eq!(events(&log, "session_refused"), [], "{log}");
    assert!(lines(&log).iter().all(|line| !line.contains_key("address") || line["event"] == "listening"), "{log}");
}

/// HAProxy's pgsql-check does this every second, and psql does it before it prompts for a password.
#[test]
fn a_client_that_leaves_when_it_is_asked_is_logged_at_debug() {
    let proxy = ProxyOptions::default().policies(POLICIES).arguments(&["--log-format", "json"]);
    let proxy = proxy.variable("RUST_LOG", "fencegate=debug");
    let options = Options::default().hba("host all ada all scram-sha-256");
    let mut fenced = Fenced::start_with(options, &format!("{SCHEMA}; CREATE ROLE ada LOGIN PASSWORD 'secret'"), &proxy);
    let asked = || {
        let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
        wire.send(&message::startup(message::PROTOCOL_3_0, &[("user", "ada"), ("database", "postgres")]));
        assert_eq!(wire.frame().unwrap().tag, b'R');
        wire
    };
    drop(asked());
    asked().reset();
    let left = |log: String| events(&log, "connection_without_authentication");
    wait_for("both are logged", DEADLINE, || (left(fenced.proxy.log()).len() == 2).then_some(()));
    for line in left(fenced.proxy.log()) {
        assert_fields(&line, &[("level", "DEBUG"), ("user", "ada"), ("database", "postgres")]);
    }
    assert_eq!(events(&fenced.proxy.log(), "session_refused"), []);
    // These clients have answered.
    let mut wrong = Wire::connect(&fenced.proxy.address()).unwrap();
    wrong.start(&[("user", "ada"), ("database", "postgres")], "wrong");
    let mut half = asked();
    half.send(&message::sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=nonce"));
    assert_eq!(half.frame().unwrap().tag, b'R');
    drop(half);
    wait_for("both are logged", DEADLINE, || (events(&fenced.proxy.log(), "session_refused").len() == 2).then_some(()));
    fenced.proxy.terminate();
    assert_eq!(left(fenced.proxy.log()).len(), 2);
}

#[test]
fn a_proxy_protocol_header_is_named() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    for (number, header) in [&b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 6432\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"]
        .into_iter()
        .enumerate()
    {
        let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
        let startup = message::startup(message::PROTOCOL_3_0, &[("user", "postgres"), ("database", "postgres")]);
        wire.send(&[header, &startup].concat());
        let error = error_in(&wire.read_to_end()).unwrap();
        assert_eq!((error.severity(), error.code()), ("FATAL", "08P01"));
        assert!(error.message().contains("PROXY protocol") && error.hint().contains("send-proxy"), "{error:?}");
        let refused =
            wait_for("it is logged", DEADLINE, || events(&fenced.proxy.log(), "session_refused").get(number).cloned());
        assert!(refused["reason"].contains("PROXY protocol"), "{refused:?}");
        assert_fields(&refused, &[("code", "08P01")]);
    }
}

#[test]
fn a_console_session_logs_why_it_ended() {
    let mut fenced = start(SCHEMA, POLICIES, &[]);
    let console = || Wire::login(&fenced.proxy.address(), "postgres", "fencegate");
    let ended = |number: usize| {
        wait_for("the end is logged", DEADLINE, || events(&fenced.proxy.log(), "console_ended").get(number).cloned())
    };
    console().send(&message::terminate());
    assert_fields(&ended(0), &[("role", "postgres"), ("reason", "client closed the connection")]);
    let mut faulty = console();
    faulty.send(&message::tagged(b'!', b""));
    assert_eq!(error_in(&faulty.read_to_end()).unwrap().code(), "08P01");
    assert_fields(&ended(1), &[("reason", "client broke the protocol: invalid frontend message type 33")]);
    let _open = console();
    fenced.proxy.terminate();
    let stopped = events(&fenced.proxy.log(), "console_ended").pop().unwrap();
    assert_fields(&stopped, &[("role", "postgres"), ("reason", "the proxy is shutting down")]);
    assert!(stopped["address"].starts_with("127.0.0.1:"), "{stopped:?}");
}

/// The reason for the session's end. Waits for it in the log.
fn reason(fenced: &Fenced, wire: &mut Wire, end: impl FnOnce(&mut Wire)) -> String {
    let address = wire.local_address();
    end(wire);
    wait_for("the end is logged", DEADLINE, || {
        let ended = events(&fenced.proxy.log(), "session_ended");
        Some(ended.into_iter().find(|event| event["address"] == address)?["reason"].clone())
    })
}

#[test]
fn the_reason_names_the_cause_of_the_sessions_end() {
    let fenced = start(SCHEMA, POLICIES, &["--idle-timeout", "3s"]);
    let said_goodbye = reason(&fenced, &mut fenced.login(), |wire| wire.send(&message::terminate()));
    assert_eq!(said_goodbye, "client closed the connection");
    let hung_up = reason(&fenced, &mut fenced.login(), Wire::finish_sending);
    assert_eq!(hung_up, "client closed the connection");
    let left_a_transaction = reason(&fenced, &mut fenced.login(), |wire| {
        ok(wire, "BEGIN; SELECT 1");
        wire.send(&[message::query("SELECT 2"), message::terminate()].concat());
    });
    assert_eq!(left_a_transaction, "client closed the connection");
    let reset = reason(&fenced, &mut fenced.login(), |wire| std::mem::replace(wire, fenced.login()).reset());
    assert!(reset.starts_with("connection to the client was lost: "), "{reset}");
    let broke_the_protocol = reason(&fenced, &mut fenced.login(), |wire| wire.send(&message::header(b'Q', 3)));
    assert!(broke_the_protocol.starts_with("client broke the protocol: "), "{broke_the_protocol}");
    let terminated = reason(&fenced, &mut fenced.login(), |wire| {
        let pid = value(wire, "SELECT pg_backend_pid()").unwrap();
        fenced.postgres.sql(&format!("SELECT pg_terminate_backend({pid})"));
    });
    assert_eq!(terminated, "server ended the session");
    let cut_off = reason(&fenced, &mut fenced.holder(46), |wire| {
        ok(wire, "BEGIN; INSERT INTO jobs VALUES (1)");
        ok(&mut fenced.holder(47), "INSERT INTO jobs VALUES (2)");
        assert_eq!(code(wire, "SELECT 1"), "LF001");
    });
    assert_eq!(cut_off, "cut off by a newer token for resource jobs");
    assert_eq!(reason(&fenced, &mut fenced.login(), |_| ()), "idle-session timeout");
}

#[test]
fn a_shutdown_is_logged_as_the_reason() {
    let mut fenced = start(SCHEMA, POLICIES, &[]);
    let _idle = fenced.login();
    fenced.proxy.terminate();
    assert_fields(&event(|| fenced.proxy.log(), "session_ended"), &[("reason", "the proxy is shutting down")]);
}

/// While the parser reads a text, it replaces standard error with a pipe, and the log would be lost. Parsers built for
/// tests do not, so the test checks only the descriptor.
#[test]
fn the_log_has_a_descriptor_of_its_own() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let file = |descriptor: &str| std::fs::read_link(format!("/proc/{}/fd/{descriptor}", fenced.proxy.pid())).ok();
    let log = file("2").unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", fenced.proxy.pid())).unwrap();
    let names = descriptors.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let others: Vec<_> =
        names.filter(|name| !["1", "2"].contains(&&**name) && file(name).as_ref() == Some(&log)).collect();
    assert_eq!(others.len(), 1, "{others:?}");
}

/// Pools rename their sessions for each task, and roles may have a default.
#[test]
fn an_application_has_the_name_that_the_server_reports() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    fenced.postgres.sql("ALTER ROLE postgres SET application_name = 'by default'");
    let mut console = Wire::login(&fenced.proxy.address(), "postgres", "fencegate");
    let mut wire = fenced.login();
    assert_fields(&event(|| fenced.proxy.log(), "session_started"), &[("application_name", "by default")]);
    let pid = value(&mut wire, "SELECT pg_backend_pid()").unwrap();
    let at_server = format!("SELECT application_name FROM pg_stat_activity WHERE pid = {pid}");
    // A rollback restores the name, and a name set by a function counts. Servers show only ASCII letters.
    for text in [
        "SET application_name = 'nightly'",
        "BEGIN; SET LOCAL application_name = 'step'",
        "ROLLBACK",
        "SELECT set_config('application_name', 'tëst', false)",
        "RESET application_name",
        "SET application_name = 'weekly'",
    ] {
        ok(&mut wire, text);
        let shown = ok(&mut console, "SHOW SESSIONS").remove(0).swap_remove(4);
        assert_eq!(shown, Some(fenced.postgres.value(&at_server)), "{text}");
    }
    ok(&mut wire, "SET lease.fence = 2");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    assert_fields(&event(|| fenced.proxy.log(), "session_admitted"), &[("application_name", "weekly")]);
    ok(&mut wire, "SET application_name = 'monthly'; SET lease.fence = 1");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (2)"), "LF001");
    assert_fields(&event(|| fenced.proxy.log(), "stale_write_blocked"), &[("application_name", "monthly")]);
}
