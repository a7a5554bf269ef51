//! The lines at the start and the end of a session.

use crate::line::{POLICIES, SCHEMA, assert_fields, event, events, lines, start};
use crate::support::fenced::ok;
use crate::support::{DEADLINE, Wire, wait_until};

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
            lines(&log).iter().all(|line| !["session_started", "session_ended"].contains(&line["message"].as_str())),
            "{log}"
        );
    }
}

#[test]
fn who_gets_no_session_is_told_of_with_the_reason() {
    let fenced = start(SCHEMA, POLICIES, &[]);
    let mut wire = Wire::connect(&fenced.proxy.address()).unwrap();
    wire.start(&[("user", "postgres"), ("database", "nowhere")], "");
    let refused = || events(&fenced.proxy.log(), "session_refused");
    wait_until("it is told", DEADLINE, || refused().iter().any(|line| line["reason"] == "refused by the server"));
}
