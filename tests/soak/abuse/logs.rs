//! Output that clients cause in the log and the console.

use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, wait_until};
use std::time::Instant;

/// Maximum length of a line in bytes, even with text from clients.
const LONGEST_LINE: usize = 4096;

/// Several hundred per second, unless the machine is slow.
const SESSIONS: usize = 600;
/// Maximum number of lines of one kind per second.
const A_SECOND: usize = 100;

fn start() -> (Proxy, Postgres) {
    let postgres = Postgres::start(Options::default());
    (Proxy::start(&postgres, NO_POLICIES, &["--log-format", "json"]), postgres)
}

#[track_caller]
fn has_short_lines(proxy: &Proxy) {
    let log = proxy.log();
    let longest = log.lines().max_by_key(|line| line.len()).unwrap_or_default();
    println!("{} lines, the longest has {} bytes", log.lines().count(), longest.len());
    assert!(longest.len() <= LONGEST_LINE, "{longest}");
}

#[test]
fn names_of_applications_are_cut() {
    let (proxy, _postgres) = start();
    let name = "a\u{1F600}\n\"".repeat(1200);
    let (before, mut logins) = (proxy.log().len(), 0);
    for _ in 0..100 {
        let mut wire = Wire::connect(&proxy.address()).unwrap();
        let frames = wire.start(&[("user", "postgres"), ("database", "postgres"), ("application_name", &name)], "");
        assert_eq!(error_in(&frames), None);
        wire.send(&message::terminate());
        logins += 1;
    }
    wait_until("they have ended", DEADLINE, || proxy.log().contains("session_ended"));
    println!("{} bytes of log for each login", (proxy.log().len() - before) / logins);
    has_short_lines(&proxy);
}

/// During a flood of sessions, the proxy logs counts in place of single sessions.
#[test]
fn sessions_are_logged_at_a_bounded_rate() {
    let (proxy, _postgres) = start();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..SESSIONS / 4).for_each(|_| drop(Wire::login(&proxy.address(), "postgres", "postgres"))));
        }
    });
    wait_until("all sessions are logged or counted", DEADLINE, || {
        let log = proxy.log();
        let (counts, told): (Vec<&str>, Vec<&str>) = log.lines().partition(|line| line.contains("lines_left_out"));
        ["session_started", "session_ended"].iter().all(|event| {
            let one_by_one = told.iter().filter(|line| line.contains(event)).count();
            let counted: usize = counts.iter().filter(|line| line.contains(event)).map(|line| left_out(line)).sum();
            one_by_one + counted == SESSIONS
        })
    });
    let lines = proxy.log().lines().count();
    println!("{lines} lines for {SESSIONS} sessions");
    let most = 2 * A_SECOND * (start.elapsed().as_secs() as usize + 2);
    assert!(lines < most, "{lines} lines, at least {most}");
}

fn left_out(line: &str) -> usize {
    let (_, rest) = line.split_once("\"left_out\":").expect("a count");
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn texts_of_statements_and_values_are_cut() {
    let (proxy, _postgres) = start();
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    let long = "x".repeat(100_000);
    for sql in [format!("SET lease.fence = '{long}'"), format!("SELECT 1 FROM {long}"), long.clone()] {
        wire.query(&sql);
    }
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    for sql in [
        long[..60_000].to_owned(),
        format!("KILL {}", &long[..60_000]),
        format!("SHOW {}", &long[..60_000]),
        format!("FENCE RESET {} TO 1", &long[..60_000]),
        format!("RESUME {}", &long[..60_000]),
    ] {
        let answer: usize = console.query(&sql).iter().map(|frame| frame.body.len()).sum();
        assert!(answer <= LONGEST_LINE, "an answer of {answer} bytes to {:?}", &sql[..20]);
    }
    for name in ["user", "database"] {
        let mut parameters = vec![("user", "postgres"), ("database", "postgres")];
        parameters.push((name, &long[..9_000]));
        Wire::connect(&proxy.address()).unwrap().start(&parameters, "");
    }
    has_short_lines(&proxy);
}
