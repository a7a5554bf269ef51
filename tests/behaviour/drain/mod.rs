//! A stale session commits nothing after a newer leader's write, in any state and with any route of the new leader, and
//! receives the correct error.
//!
//! Each state of the stale session (`states.rs`) is combined with each route of the new leader. The server's WAL is the
//! reference for the order of commits.

mod raising;
mod server_timeouts;
mod states;
mod to_come;

use crate::support::commit_order::CommitOrder;
use crate::support::ticks::{self, WRITE, ok, out_of_order, tokens, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Frame, Postgres, Wire, message, wait_until};
use states::Fate;

/// For each state, a test for each route.
macro_rules! matrix {
    ($($state:ident),+ $(,)?) => {
        $(mod $state {
            use super::{Route, states, take_over};

            #[test]
            fn new_leader_through_the_same_proxy() {
                take_over(states::$state, Route::SameProxy);
            }

            #[test]
            fn new_leader_through_a_second_proxy() {
                take_over(states::$state, Route::SecondProxy);
            }

            #[test]
            fn new_leader_after_the_proxy_was_killed() {
                take_over(states::$state, Route::AfterKill);
            }
        })+
    };
}

matrix!(
    idle,
    in_a_transaction_without_writes,
    in_a_transaction_with_writes,
    after_flush_without_sync,
    running_a_statement,
    waiting_for_a_row_lock,
    in_copy_from_stdin,
    in_commit,
    with_its_client_killed,
);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    SameProxy,
    SecondProxy,
    /// Through a second proxy, after the first was killed without a clean shutdown.
    AfterKill,
}

/// The session under token 1, with everything that it needs to reach its state.
struct Stale<'a> {
    postgres: &'a Postgres,
    process: String,
    wire: Option<Wire>,
    /// A direct session that holds a row lock; it releases the lock once the new leader has written.
    row_lock_holder: Option<Wire>,
}

/// The new leader writes while the stale session is in this state.
fn take_over(enter: fn(&mut Stale) -> Fate, route: Route) {
    let postgres = ticks::server();
    postgres.sql("INSERT INTO ticks (token, note) VALUES (0, 'old row')");
    let mut first = ticks::proxy(&postgres);
    let second = (route != Route::SameProxy).then(|| ticks::proxy(&postgres));
    let mut order = CommitOrder::start(&postgres, "postgres");

    let mut stale = Stale::start(&postgres, &first.address());
    let fate = enter(&mut stale);
    if route == Route::AfterKill {
        first.kill9();
    }
    if route == Route::SecondProxy && matches!(fate, Fate::GoesOn { .. }) {
        stale.wait_until_revoked();
    }
    let mut leader = ticks::session(&second.as_ref().unwrap_or(&first).address(), 2);
    ok(&mut leader, WRITE);
    drop(stale.row_lock_holder.take());
    let told = stale.continue_as_leader(&fate);
    ok(&mut leader, WRITE);

    wait_until_harmless(&postgres, &stale.process);
    let tokens = tokens(&mut order);
    assert_eq!(out_of_order(&tokens), 0, "committed in this order: {tokens:?}");
    // Nor was a pending write committed before the new leader's write.
    assert_eq!(tokens, [1, 2, 2]);
    match route {
        Route::AfterKill => assert_eq!(told, []),
        Route::SameProxy | Route::SecondProxy => stale.check_replies(&told, &fate),
    }
}

/// If the server terminates a session with a stale token for another reason, the client receives that reason.
#[test]
fn other_ends_of_a_session_are_reported_unchanged() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut session = ticks::session(&proxy.address(), 1);
    ok(&mut session, WRITE);
    postgres.sql("UPDATE fencegate_state.epoch SET token = 2");
    ok(&mut session, "SET idle_session_timeout = 1");
    let told = session.read_to_end();
    assert_eq!(error_in(&told).map(|error| error.code().to_owned()).as_deref(), Some("57P05"));
}

/// The server ends the process within a message of its reply.
#[test]
fn a_truncated_result_ends_with_the_reason() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut stale = Stale::start(&postgres, &proxy.address());
    let rows = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    stale.wire().send(&message::query(&format!("BEGIN; {WRITE}; {rows}")));
    ticks::wait_for_process(&postgres, &stale.process, "wait_event = 'ClientWrite'");
    ok(&mut ticks::session(&proxy.address(), 2), WRITE);
    let told = stale.wire().read_to_end();
    let error = error_in(&told).expect("an error");
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"));
    assert_eq!(error.detail(), "resource=scheduler presented=1 highest=2 outcome=unknown");
}

/// A pipeline may end a transaction and begin another before its Sync. Only ReadyForQuery would show which part is
/// committed.
#[test]
fn possible_commits_of_a_pipeline_are_not_reported_as_rolled_back() {
    let postgres = ticks::server();
    let proxy = ticks::proxy(&postgres);
    let mut stale = Stale::start(&postgres, &proxy.address());
    ok(stale.wire(), "BEGIN");
    ok(stale.wire(), WRITE);
    for sql in ["COMMIT", WRITE] {
        stale.wire().send(&[message::unnamed(sql, &[]), message::flush()].concat());
        assert_eq!(error_in(&stale.wire().read_until(b'C')), None);
    }
    ok(&mut ticks::session(&proxy.address(), 2), WRITE);
    let told = stale.wire().exchange(&message::sync());
    let error = error_in(&told).expect("an error");
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"));
    assert_eq!(error.detail(), "resource=scheduler presented=1 highest=2 outcome=unknown");
    let committed = postgres.value("SELECT string_agg(token::text, ' ' ORDER BY id) FROM ticks");
    assert_eq!(committed, "1 1 2", "the write before COMMIT, but not the one after it");
}

impl<'a> Stale<'a> {
    /// A session that has written, so that its server process is admitted.
    fn start(postgres: &'a Postgres, address: &Address) -> Self {
        let mut wire = ticks::session(address, 1);
        let process = ticks::process(&mut wire);
        ok(&mut wire, WRITE);
        Self { postgres, process, wire: Some(wire), row_lock_holder: None }
    }

    fn wire(&mut self) -> &mut Wire {
        self.wire.as_mut().expect("the client is connected")
    }

    /// Publishes the new leader's token, and waits until the session's own proxy has revoked its admission. A leader's
    /// proxy that drains waits only 100 ms for this, which may be too short on a busy machine.
    fn wait_until_revoked(&self) {
        self.postgres.sql("UPDATE fencegate_state.epoch SET token = 2, drained = false");
        self.postgres.sql("SELECT pg_notify('fencegate', 'scheduler')");
        wait_until("its proxy has revoked the admission", DEADLINE, || {
            self.postgres.value("SELECT count(*) FROM fencegate_state.admission") == "0"
        });
    }

    /// Continues as if there were no other leader. Returns the replies.
    fn continue_as_leader(&mut self, fate: &Fate) -> Vec<Frame> {
        match (&mut self.wire, fate) {
            (Some(wire), Fate::GoesOn { .. }) => wire.query(WRITE),
            (Some(wire), Fate::CutOff { next, .. }) => {
                wire.send(next);
                wire.read_until_ready()
            }
            (None, fate) => {
                assert!(matches!(fate, Fate::ClientGone));
                Vec::new()
            }
            (Some(_), Fate::ClientGone) => unreachable!("the client is connected"),
        }
    }

    fn check_replies(&mut self, told: &[Frame], fate: &Fate) {
        let is_told = |severity, detail: String| {
            let error = error_in(told).unwrap_or_else(|| panic!("no error, but {told:?}"));
            assert_eq!((error.severity(), error.code(), error.detail()), (severity, "LF001", detail.as_str()));
        };
        let detail = "resource=scheduler presented=1 highest=2";
        match fate {
            Fate::GoesOn { end } => {
                is_told("ERROR", detail.into());
                ok(self.wire(), end);
                ok(self.wire(), "SELECT count(*) FROM ticks");
            }
            Fate::CutOff { outcome, .. } => {
                is_told("FATAL", format!("{detail} outcome={outcome}"));
                let tags: Vec<u8> = told.iter().map(|frame| frame.tag).collect();
                assert_eq!(tags, b"EZ", "only the error and ReadyForQuery: {told:?}");
                assert_eq!(self.wire().frame(), None, "and the last");
            }
            Fate::ClientGone => {}
        }
    }
}
