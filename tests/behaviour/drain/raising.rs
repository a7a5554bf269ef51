//! A session that raises its own token keeps its server process, unless its transaction has written under the old one.

use crate::support::message::{bind_text, execute, parse, query, sync};
use crate::support::ticks::{self, WRITE, ok, process, refused};
use crate::support::wire::error_in;

/// Bind takes the statement's locks before its Execute is admitted. These locks do not indicate a write.
#[test]
fn by_the_extended_protocol() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut session = ticks::session(&proxy.address(), 1);
    let pid = process(&mut session);
    let prepare = parse("tick", "INSERT INTO ticks (note) VALUES ($1)", &[]);
    let write = [bind_text("", "tick", &[Some(b"tick")]), execute("", 0), sync()].concat();
    assert_eq!(error_in(&session.exchange(&[prepare, write.clone()].concat())), None);
    ok(&mut session, "SET lease.fence = 2");
    assert_eq!(error_in(&session.exchange(&write)), None);
    // The SET and the write under it, sent together.
    session.send(&[query("SET lease.fence = 3"), write].concat());
    for _ in 0..2 {
        assert_eq!(error_in(&session.read_until_ready()), None);
    }
    assert_eq!(process(&mut session), pid);
    assert_eq!(postgres.value("SELECT string_agg(token::text, ' ' ORDER BY id) FROM ticks"), "1 2 3");
}

#[test]
fn in_a_transaction() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut session = ticks::session(&proxy.address(), 1);
    ok(&mut session, WRITE);
    for sql in ["BEGIN", "SELECT count(*) FROM ticks", "SET lease.fence = 2", WRITE, "SET lease.fence = 3"] {
        ok(&mut session, sql);
    }
    refused(&mut session, WRITE, "LF003");
    ok(&mut session, "ROLLBACK");
    // The rollback restores the parameter. The epoch stays.
    refused(&mut session, WRITE, "LF001");
    ok(&mut session, "SET lease.fence = 2");
    ok(&mut session, WRITE);
    assert_eq!(postgres.value("SELECT string_agg(token::text, ' ' ORDER BY id) FROM ticks"), "1 2");
}
