//! The states in which a new leader may find a stale session. Each function brings the session into its state, verifies
//! this on the server, and returns the session's fate.

use super::Stale;
use crate::support::ticks::{WRITE, ok, wait_for_process};
use crate::support::wire::error_in;
use crate::support::{Wire, message};
use message::{copy_data, copy_done, flush, query, sync, unnamed};

/// The fate of the stale session, if its proxy lives.
pub enum Fate {
    /// The next write is refused. Then `end` ends the transaction, and the session continues.
    GoesOn { end: &'static str },
    /// The session receives the error, at the latest as the reply to `next`.
    CutOff { next: Vec<u8>, outcome: &'static str },
    /// The client has disconnected.
    ClientGone,
}

/// Longer than any takeover, even on a slow machine.
const LONG: &str = "pg_sleep(600)";

pub fn idle(_: &mut Stale) -> Fate {
    Fate::GoesOn { end: "ROLLBACK" }
}

pub fn in_a_transaction_without_writes(stale: &mut Stale) -> Fate {
    ok(stale.wire(), "BEGIN");
    ok(stale.wire(), "SELECT count(*) FROM ticks");
    Fate::GoesOn { end: "ROLLBACK" }
}

pub fn in_a_transaction_with_writes(stale: &mut Stale) -> Fate {
    ok(stale.wire(), "BEGIN");
    ok(stale.wire(), WRITE);
    Fate::CutOff { next: query("COMMIT"), outcome: "rolled_back" }
}

/// The server has answered all messages, and an implicit transaction is open.
pub fn after_flush_without_sync(stale: &mut Stale) -> Fate {
    stale.wire().send(&[unnamed(WRITE, &[]), flush()].concat());
    let frames = stale.wire().read_until(b'C');
    assert_eq!(error_in(&frames), None);
    Fate::CutOff { next: sync(), outcome: "rolled_back" }
}

pub fn running_a_statement(stale: &mut Stale) -> Fate {
    run_long_statement(stale);
    Fate::CutOff { next: Vec::new(), outcome: "unknown" }
}

pub fn waiting_for_a_row_lock(stale: &mut Stale) -> Fate {
    let mut holder = Wire::login(&stale.postgres.address(), "postgres", "postgres");
    ok(&mut holder, "BEGIN");
    ok(&mut holder, "SELECT FROM ticks WHERE token = 0 FOR UPDATE");
    stale.row_lock_holder = Some(holder);
    let update = "WITH updated AS (UPDATE ticks SET note = 'late' WHERE token = 0 RETURNING note) \
        INSERT INTO ticks (note) SELECT note FROM updated";
    stale.wire().send(&query(update));
    wait_for_process(stale.postgres, &stale.process, "wait_event_type = 'Lock'");
    Fate::CutOff { next: Vec::new(), outcome: "unknown" }
}

pub fn in_copy_from_stdin(stale: &mut Stale) -> Fate {
    stale.wire().send(&query("COPY ticks (note) FROM STDIN"));
    stale.wire().read_until(b'G');
    stale.wire().send(&copy_data(b"a line\nand ha"));
    wait_for_process(stale.postgres, &stale.process, "state = 'active' AND wait_event = 'ClientRead'");
    Fate::CutOff { next: [copy_data(b"lf a line\n"), copy_done()].concat(), outcome: "unknown" }
}

/// A deferred constraint keeps COMMIT busy.
pub fn in_commit(stale: &mut Stale) -> Fate {
    stale.postgres.sql(&format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM {LONG}; RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ticks DEFERRABLE INITIALLY DEFERRED \
           FOR EACH ROW WHEN (new.token = 1) EXECUTE FUNCTION slow()"
    ));
    ok(stale.wire(), "BEGIN");
    ok(stale.wire(), WRITE);
    stale.wire().send(&query("COMMIT"));
    wait_for_process(stale.postgres, &stale.process, "wait_event = 'PgSleep' AND query = 'COMMIT'");
    Fate::CutOff { next: Vec::new(), outcome: "unknown" }
}

/// The server does not notice, and continues the statement.
pub fn with_its_client_killed(stale: &mut Stale) -> Fate {
    run_long_statement(stale);
    stale.wire = None;
    Fate::ClientGone
}

fn run_long_statement(stale: &mut Stale) {
    stale.wire().send(&query(&format!("INSERT INTO ticks (note) SELECT 'late' FROM {LONG}")));
    wait_for_process(stale.postgres, &stale.process, "wait_event = 'PgSleep'");
}
