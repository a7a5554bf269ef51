//! A prepared transaction belongs to no process: its writes survive every drain.

use crate::support::commit_order::CommitOrder;
use crate::support::message::{sync, unnamed};
use crate::support::ticks::{self, WRITE, ok, refused, tokens};
use crate::support::wire::error_in;

const PREPARE: &str = "PREPARE TRANSACTION 'hidden'";

#[test]
fn preparing_writes_under_a_token() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut session = ticks::session(&proxy.address(), 1);
    // Before the session is admitted to a resource, and after.
    for sql in [format!("BEGIN; {WRITE}; {PREPARE}"), format!("BEGIN; {WRITE}; SELECT 1; {PREPARE}")] {
        refused(&mut session, &sql, "LF004");
        ok(&mut session, "ROLLBACK");
    }
    ok(&mut session, "BEGIN");
    ok(&mut session, WRITE);
    refused(&mut session, PREPARE, "LF004");
    ok(&mut session, "ROLLBACK");
    ok(&mut session, "BEGIN");
    ok(&mut session, WRITE);
    let error = error_in(&session.exchange(&[unnamed(PREPARE, &[]), sync()].concat())).expect("it is refused");
    assert_eq!(error.code(), "LF004", "{error:?}");
    ok(&mut session, "ROLLBACK");
    assert_eq!(postgres.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

#[test]
fn a_transaction_that_was_prepared_around_the_proxy() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut order = CommitOrder::start(&postgres, "postgres");
    let mut around = ticks::session(&postgres.address(), 1);
    for sql in ["BEGIN", WRITE, PREPARE] {
        ok(&mut around, sql);
    }
    let mut leader = ticks::session(&proxy.address(), 2);
    let error = refused(&mut leader, WRITE, "LF006");
    assert!(error.message().contains("hidden"), "{error:?}");
    ok(&mut around, "COMMIT PREPARED 'hidden'");
    ok(&mut leader, WRITE);
    assert_eq!(tokens(&mut order), [1, 2]);
}
