//! Processes that a drain could miss, or whose proxy cannot help, are terminated.

use crate::support::commit_order::CommitOrder;
use crate::support::message::query;
use crate::support::ticks::{self, WRITE, ok, process, tokens, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Wire, wait_until};

/// A clean-up by pid alone would remove the live process's admission along with the dead one's.
#[test]
fn a_pid_that_is_used_again() {
    let postgres = ticks::server();
    let (first, second) = (ticks::proxy(&postgres), ticks::proxy(&postgres));
    let mut order = CommitOrder::start(&postgres, "postgres");
    let mut stale = ticks::session(&first.address(), 1);
    let pid = process(&mut stale);
    ok(&mut stale, "BEGIN");
    ok(&mut stale, WRITE);
    postgres
        .sql(&format!("INSERT INTO fencegate_state.admission VALUES ({pid}, '2001-01-01', 'scheduler', 1, 1, 'gone')"));

    ok(&mut ticks::session(&second.address(), 2), WRITE);
    stale.query("COMMIT");
    wait_until_harmless(&postgres, &pid);
    assert_eq!(tokens(&mut order), [2]);
}

/// A newer token's Publish waits for an Admit that has decided but not committed. A drain that saw only the Publish's
/// snapshot would miss the process.
#[test]
fn an_admission_that_is_committed_while_the_next_token_waits_to_be_published() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut order = CommitOrder::start(&postgres, "postgres");
    ok(&mut ticks::session(&proxy.address(), 1), WRITE);
    let mut stale = ticks::session(&postgres.address(), 1);
    let pid = process(&mut stale);
    ok(&mut stale, "BEGIN");
    ok(&mut stale, WRITE);
    let mut admit = Wire::login(&postgres.address(), "postgres", "postgres");
    // Like a control connection: a Publish waits for it, and does not terminate it.
    ok(&mut admit, "SET application_name = 'fencegate control'");
    ok(&mut admit, "BEGIN");
    ok(&mut admit, "SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:scheduler', 0))");
    ok(&mut admit, "SELECT FROM fencegate_state.epoch WHERE resource = 'scheduler' FOR SHARE");
    let admission = "INSERT INTO fencegate_state.admission SELECT pid, backend_start, resource, generation, token, 'slow' \
        FROM fencegate_state.epoch, pg_stat_get_activity";
    ok(&mut admit, &format!("{admission}({pid})"));

    let mut leader = ticks::session(&proxy.address(), 2);
    leader.send(&query(WRITE));
    let waiting = "SELECT count(*) FROM pg_stat_activity \
        WHERE application_name = 'fencegate control' AND wait_event_type = 'Lock'";
    wait_until("the publish waits", DEADLINE, || postgres.value(waiting) == "1");
    ok(&mut admit, "COMMIT");
    assert_eq!(error_in(&leader.read_until_ready()), None);
    stale.query("COMMIT");
    wait_until_harmless(&postgres, &pid);
    assert_eq!(tokens(&mut order), [1, 2]);
}

/// When the proxy resumes, the session is admitted according to its memory, and the write waits in its socket.
#[test]
fn a_proxy_that_sleeps_while_the_next_leader_comes() {
    let postgres = ticks::server();
    let (mut first, second) = (ticks::proxy(&postgres), ticks::proxy(&postgres));
    let mut order = CommitOrder::start(&postgres, "postgres");
    let mut stale = ticks::session(&first.address(), 1);
    let pid = process(&mut stale);
    ok(&mut stale, WRITE);
    first.pause();
    stale.send(&query(WRITE));

    let mut leader = ticks::session(&second.address(), 2);
    ok(&mut leader, WRITE);
    first.signal("CONT");
    let told = stale.read_until_ready();
    ok(&mut leader, WRITE);
    wait_until_harmless(&postgres, &pid);
    assert_eq!(tokens(&mut order), [1, 2, 2]);
    let error = error_in(&told).expect("an error");
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"), "{error:?}");
}
