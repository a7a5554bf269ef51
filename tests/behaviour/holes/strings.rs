//! A multi-statement string with a rejected statement: earlier statements run and may commit.

use crate::support::fenced::{code, ok};
use crate::support::ticks::{POLICIES, proxy, server, session};
use crate::support::{Proxy, ProxyOptions};

/// The last statement is rejected with any token, because its effects are unknown.
const STRING: &str = "INSERT INTO ticks (note) VALUES ('tick'); COMMIT; DO $$BEGIN END$$";

#[test]
fn statements_that_commit_before_a_rejected_one_are_admitted_first() {
    let postgres = server();
    let one = proxy(&postgres);
    ok(&mut session(&one.address(), 7), "INSERT INTO ticks (note) VALUES ('seven')");
    // The other proxy has not received that token yet.
    let other = Proxy::start_with(&postgres, &ProxyOptions::default().policies(POLICIES));
    let mut stale = session(&other.address(), 6);
    assert_eq!(code(&mut stale, STRING), "LF001");
    assert_eq!(postgres.value("SELECT count(*) FROM ticks WHERE note = 'tick'"), "0");
    let mut leader = session(&other.address(), 8);
    assert_eq!(code(&mut leader, STRING), "LF004");
    assert_eq!(postgres.value("SELECT token FROM ticks WHERE note = 'tick'"), "8");
    assert_eq!(postgres.value("SELECT token FROM fencegate_state.epoch"), "8");
}
