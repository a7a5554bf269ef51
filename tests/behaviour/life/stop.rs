//! SIGTERM: new clients are refused, transactions may finish, idle sessions receive an error; then the proxy exits with
//! code 0.

use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Frame, Options, Postgres, Proxy, ProxyOptions, Wire, message, wait_until};

const ENDED: &str = "57P01";
const SCHEMA: &str = "CREATE TABLE t (id int)";
const FENCED: &str = "version: 1\nresources: [{name: r, tables: [public.t]}]\n";

fn start(arguments: &[&str]) -> (Proxy, Postgres) {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE t (id int)");
    (Proxy::start(&postgres, NO_POLICIES, arguments), postgres)
}

fn login(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), "postgres", "postgres")
}

/// Asserts that the last message is this error.
#[track_caller]
fn assert_ended_by(frames: &[Frame], code: &str) {
    let last = frames.last().unwrap_or_else(|| panic!("the connection was closed without an error"));
    let error = error_in(std::slice::from_ref(last)).unwrap_or_else(|| panic!("{frames:?}"));
    assert_eq!((error.code(), last.tag), (code, b'E'), "{frames:?}");
}

/// Number of server processes of sessions through the proxy.
fn sessions(postgres: &Postgres) -> String {
    postgres.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'life'")
}

fn named(wire: &mut Wire) {
    ok(wire, "SET application_name = 'life'");
}

#[test]
fn a_transaction_commits_and_its_session_ends_then() {
    let (mut proxy, postgres) = start(&[]);
    let (mut idle, mut busy, mut running) = (login(&proxy), login(&proxy), login(&proxy));
    [&mut idle, &mut busy, &mut running].into_iter().for_each(named);
    ok(&mut busy, "BEGIN; INSERT INTO t VALUES (1)");
    let mut holder = Wire::login(&postgres.address(), "postgres", "postgres");
    ok(&mut holder, "SELECT pg_advisory_lock(2)");
    running.send(&message::query("INSERT INTO t SELECT 2 FROM pg_advisory_xact_lock(2)"));
    wait_until("it waits for the lock", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
    });

    proxy.signal("TERM");
    assert_ended_by(&idle.read_to_end(), ENDED);
    wait_until("new clients are refused", DEADLINE, || Wire::connect(&proxy.address()).is_err());
    wait_until("the socket file is gone", DEADLINE, || !proxy.has_socket());
    assert_eq!(value(&mut busy, "INSERT INTO t VALUES (3) RETURNING id").as_deref(), Some("3"));
    // No message separates COMMIT's answer from its ReadyForQuery.
    let tags: Vec<_> = busy.query("COMMIT").iter().map(|frame| frame.tag).collect();
    assert_eq!(tags, b"CZ");
    assert_ended_by(&busy.read_to_end(), ENDED);
    ok(&mut holder, "SELECT pg_advisory_unlock(2)");
    let frames = running.read_to_end();
    assert_eq!(frames.iter().map(|frame| frame.tag).collect::<Vec<_>>(), b"CZE");
    assert_ended_by(&frames, ENDED);

    assert_eq!(proxy.wait(), 0, "{}", proxy.log());
    assert_eq!(postgres.value("SELECT string_agg(id::text, ',' ORDER BY id) FROM t"), "1,2,3");
    wait_until("no session remains at the server", DEADLINE, || sessions(&postgres) == "0");
}

#[test]
fn a_pipeline_goes_on_to_its_sync() {
    let (mut proxy, postgres) = start(&[]);
    let mut wire = login(&proxy);
    let insert =
        [message::parse("", "INSERT INTO t VALUES (1)", &[]), message::bind_text("", "", &[]), message::execute("", 0)];
    wire.send(&[&insert.concat()[..], &message::flush()].concat());
    wire.read_until(b'C');
    proxy.signal("TERM");
    wait_until("new clients are refused", DEADLINE, || Wire::connect(&proxy.address()).is_err());
    let frames = wire.exchange(&[&insert.concat()[..], &message::sync()].concat());
    assert_eq!(frames.iter().map(|frame| frame.tag).collect::<Vec<_>>(), b"12CZ");
    assert_ended_by(&wire.read_to_end(), ENDED);
    assert_eq!(proxy.wait(), 0);
    assert_eq!(postgres.value("SELECT count(*) FROM t"), "2");
}

#[test]
fn at_the_limit_remaining_sessions_and_their_statements_end() {
    let (mut proxy, postgres) = start(&["--shutdown-timeout", "300ms"]);
    let (mut open, mut running) = (login(&proxy), login(&proxy));
    [&mut open, &mut running].into_iter().for_each(named);
    ok(&mut open, "BEGIN; INSERT INTO t VALUES (1)");
    running.send(&message::query("INSERT INTO t SELECT 2 FROM pg_sleep(600)"));
    wait_until("it runs", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
    });
    assert_eq!(proxy.terminate(), 0, "{}", proxy.log());
    assert_ended_by(&open.read_to_end(), ENDED);
    assert_ended_by(&running.read_to_end(), ENDED);
    assert!(proxy.log().contains("shutdown_timeout expired"), "{}", proxy.log());
    wait_until("no session remains", DEADLINE, || sessions(&postgres) == "0");
    assert_eq!(postgres.value("SELECT count(*) FROM t"), "0");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for second in ["TERM", "INT"] {
        let (mut proxy, postgres) = start(&["--shutdown-timeout", "1h"]);
        let mut open = login(&proxy);
        named(&mut open);
        ok(&mut open, "BEGIN; INSERT INTO t VALUES (1)");
        proxy.signal("INT");
        proxy.wait_for_log("stopping", DEADLINE);
        assert_eq!(code(&mut open, "SELECT 1"), "", "it may go on");
        proxy.signal(second);
        assert_eq!(proxy.wait(), 0);
        assert_ended_by(&open.read_to_end(), ENDED);
        wait_until("no session remains", DEADLINE, || sessions(&postgres) == "0");
        assert_eq!(postgres.value("SELECT count(*) FROM t"), "0");
    }
}

#[test]
fn a_client_that_is_logging_in_is_refused_during_shutdown() {
    let (mut proxy, _postgres) = start(&["--shutdown-timeout", "1h"]);
    let mut open = login(&proxy);
    ok(&mut open, "BEGIN");
    let mut late = Wire::connect(&proxy.address()).unwrap();
    // A client that receives an answer has been accepted by the proxy.
    late.send(&message::ssl_request());
    assert_eq!(late.byte(), Some(b'N'));
    proxy.signal("TERM");
    wait_until("new clients are refused", DEADLINE, || Wire::connect(&proxy.address()).is_err());
    assert_ended_by(&late.start(&[("user", "postgres")], ""), "57P03");
    ok(&mut open, "COMMIT");
    assert_eq!(proxy.wait(), 0);
}

#[test]
fn an_incomplete_message_is_not_executed() {
    // With fences, the proxy reads a whole statement before it forwards it.
    let mut fenced =
        Fenced::start("CREATE TABLE t (id int)", "version: 1\nresources: [{name: r, tables: [public.x]}]\n");
    let mut wire = fenced.login();
    let insert = message::query("INSERT INTO t VALUES (1)");
    wire.send(&insert[..insert.len() - 1]);
    assert_eq!(fenced.proxy.terminate(), 0);
    assert_ended_by(&wire.read_to_end(), ENDED);
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM t"), "0");
}

#[test]
fn the_last_definitions_are_announced_before_shutdown() {
    let schema = "CREATE TABLE plain (id int); CREATE TABLE fenced (id int); CREATE VIEW v AS SELECT * FROM plain";
    let mut fenced = Fenced::start(schema, "version: 1\nresources: [{name: r, tables: [public.fenced]}]\n");
    let mut other = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    let mut wire = fenced.login();
    ok(&mut wire, "BEGIN; CREATE OR REPLACE VIEW v AS SELECT * FROM fenced");
    fenced.proxy.signal("TERM");
    wait_until("new clients are refused", DEADLINE, || Wire::connect(&fenced.proxy.address()).is_err());
    ok(&mut other, "LISTEN fencegate");
    // The proxy has to reconnect before it can announce definitions.
    let control =
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'fencegate control'";
    fenced.postgres.sql(control);
    ok(&mut wire, "COMMIT");
    assert_eq!(fenced.proxy.wait(), 0);
    let told = other.query("SELECT 1").into_iter().filter(|frame| frame.tag == b'A');
    let told: Vec<_> = told.map(|frame| String::from_utf8_lossy(&frame.body).into_owned()).collect();
    assert!(told.iter().any(|payload| payload.contains("{catalogue}")), "{told:?}");
}

/// A newer token cut off the session, and the client has been silent since, so the client cannot end the session
/// itself.
#[test]
fn a_client_whose_session_was_terminated_receives_the_reason_at_shutdown() {
    for idle_timeout in [None, Some("3s")] {
        let limits = ["--shutdown-timeout", "1h", "--idle-timeout", idle_timeout.unwrap_or("1h")];
        let mut fenced = Fenced::start_with(
            Options::default(),
            SCHEMA,
            &ProxyOptions::default().policies(FENCED).arguments(&limits),
        );
        let mut stale = fenced.holder(1);
        ok(&mut stale, "BEGIN; INSERT INTO t VALUES (1)");
        ok(&mut fenced.holder(2), "INSERT INTO t VALUES (2)");
        let mut console = Wire::login(&fenced.proxy.address(), "postgres", "fencegate");
        fenced.proxy.wait_for_log("session_cut_off", DEADLINE);
        if idle_timeout.is_none() {
            wait_until("it is shown", DEADLINE, || {
                ok(&mut console, "SHOW SESSIONS").iter().any(|row| row[7].as_deref() == Some("cut off"))
            });
            fenced.proxy.signal("TERM");
        }
        let frames = stale.read_to_end();
        let told = error_in(&frames).unwrap_or_else(|| panic!("{frames:?}"));
        assert_eq!((told.severity(), told.code()), ("FATAL", "LF001"));
        assert!(told.detail().ends_with("outcome=rolled_back"), "{told:?}");
        if idle_timeout.is_none() {
            assert_eq!(fenced.proxy.wait(), 0);
        }
        fenced.proxy.wait_for_log("cut off by a newer token for resource r", DEADLINE);
    }
}

/// A client that does not read delays the exit only briefly, and the log is complete.
#[test]
fn a_client_that_does_not_read_is_abandoned_and_logged() {
    let (mut proxy, postgres) = start(&["--shutdown-timeout", "300ms"]);
    let mut deaf = login(&proxy);
    named(&mut deaf);
    deaf.send(&message::query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)"));
    wait_until("the server waits for it", DEADLINE, || {
        postgres.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'") == "1"
    });
    assert_eq!(proxy.terminate(), 0);
    assert!(
        proxy.log().contains("session_ended") && proxy.log().contains("the proxy is shutting down"),
        "{}",
        proxy.log()
    );
    wait_until("no session remains", DEADLINE, || sessions(&postgres) == "0");
}
