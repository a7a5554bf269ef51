//! Takeovers during an open transaction whose write only the guard has seen.

use super::world::{LEVELS, POLICIES, World, attempt, without_token};
use crate::support::commit_order::CommitOrder;
use crate::support::fenced::{code, ok};
use crate::support::ticks::{self, WRITE, refused, tokens, wait_for_process, wait_until_harmless};
use crate::support::{DEADLINE, Options, Wire, message, wait_until, wire::error_in};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TWO_RESOURCES: &str = "
version: 1
resources:
  - name: scheduler
    tables: [public.ticks]
  - name: other
    tables: [public.elsewhere]
opaque: allow
";
const OTHER_WRITE: &str = "INSERT INTO elsewhere VALUES (1)";

#[test]
fn idle_in_its_transaction() {
    take_over(
        "idle_in_its_transaction",
        "SELECT unnamed()",
        "state = 'idle in transaction' AND query LIKE '%unnamed%'",
    );
}

#[test]
fn with_a_statement_running() {
    take_over("with_a_statement_running", "SELECT unnamed(), pg_sleep(600)", "wait_event = 'PgSleep'");
}

fn take_over(name: &str, sql: &str, state: &str) {
    for (route, level) in ["through", "around"].into_iter().flat_map(|route| LEVELS.map(|level| (route, level))) {
        let world = World::start(name);
        let mut order = CommitOrder::start(&world.postgres, "postgres");
        let mut old = if route == "around" { world.around(5) } else { world.session(5) };
        let process = ticks::process(&mut old);
        ok(&mut old, &format!("BEGIN ISOLATION LEVEL {level}"));
        old.send(&message::query(sql));
        wait_for_process(&world.postgres, &process, state);

        assert_eq!(code(&mut world.session(6), WRITE), "", "{level}");
        // The client receives the error as the reply to its statement, or to the next.
        let mut told = old.read_until_ready();
        if error_in(&told).is_none() {
            old.send(&message::query("COMMIT"));
            told = old.read_until_ready();
        }
        assert_eq!(error_in(&told).map(|error| error.severity().to_owned()), Some("FATAL".into()), "{level}: {told:?}");
        wait_until_harmless(&world.postgres, &process);
        assert_eq!(tokens(&mut order), [6], "{level}");
    }
}

/// The takeover would wait for the session itself.
#[test]
fn a_session_that_raises_its_own_token() {
    let world = World::start("a_session_that_raises_its_own_token");
    for level in LEVELS {
        // A session that is not admitted holds the lock of the resource. An admitted one holds the lock of its process.
        let (unadmitted, mut admitted) = (world.session(5), world.session(5));
        assert_eq!(code(&mut admitted, WRITE), "");
        for mut session in [unadmitted, admitted] {
            ok(&mut session, &format!("BEGIN ISOLATION LEVEL {level}"));
            ok(&mut session, "SELECT unnamed()");
            ok(&mut session, "SET lease.fence = 6");
            let error = refused(&mut session, WRITE, "LF003");
            assert_eq!(error.detail(), "resource=scheduler presented=6 highest=5", "{level}");
            ok(&mut session, "ROLLBACK");
        }
        assert_eq!(world.postgres.value("SELECT count(*) FROM ticks WHERE token = 6"), "0");
    }
}

/// A trigger that opens a cursor on a writing function in a subtransaction. The function fails at its second row. The
/// server releases the cursor's locks, but keeps the first row.
const CURSOR: &str = "
CREATE FUNCTION write_row(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    IF i = 2 THEN RAISE 'not this one'; END IF;
    INSERT INTO public.parts VALUES (i, 'cursor');
    RETURN i;
END $$;
CREATE FUNCTION by_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rows CURSOR FOR SELECT public.write_row(i) FROM generate_series(1, 3) i;
    row int;
BEGIN
    OPEN rows;
    FETCH rows INTO row;
    BEGIN
        FETCH rows INTO row;
    EXCEPTION WHEN raise_exception THEN
        NULL;
    END;
    RETURN NULL;
END $$;
CREATE TRIGGER by_cursor AFTER INSERT ON elsewhere FOR EACH ROW EXECUTE FUNCTION by_cursor();
";
const BY_CURSOR: &str = "INSERT INTO elsewhere VALUES (1)";

/// Without functions in the policies: with them, any open transaction with an id may have written.
const WITHOUT_FUNCTIONS: &str = "
version: 1
resources:
  - name: scheduler
    tables: [public.ticks, public.parts]
opaque: allow
";

#[test]
fn by_a_cursor_that_has_failed() {
    for (level, is_admitted) in LEVELS.into_iter().flat_map(|level| [(level, true), (level, false)]) {
        let world = World::start_with("by_a_cursor_that_has_failed", WITHOUT_FUNCTIONS, Options::default());
        world.postgres.sql(CURSOR);
        let [mut old, mut raising] = [world.session(5), world.session(5)];
        for session in [&mut old, &mut raising] {
            if is_admitted {
                ok(session, WRITE);
            }
            ok(session, &format!("BEGIN ISOLATION LEVEL {level}"));
            ok(session, BY_CURSOR);
        }
        ok(&mut raising, "SET lease.fence = 6");
        refused(&mut raising, WRITE, "LF003");
        ok(&mut raising, "ROLLBACK");
        assert_eq!(code(&mut world.session(6), WRITE), "", "{level}, admitted: {is_admitted}");
        old.send(&message::query("COMMIT"));
        let told = old.read_until_ready();
        let severity = error_in(&told).map(|error| error.severity().to_owned());
        assert_eq!(severity.as_deref(), Some("FATAL"), "{level}, admitted: {is_admitted}: {told:?}");
        assert_eq!(world.postgres.value("SELECT count(*) FROM parts WHERE note = 'cursor'"), "0");
    }
}

/// As if the guard had admitted the write just when the proxy revokes the admission: the process is terminated.
#[test]
fn an_admission_that_the_guard_has_just_found() {
    let world = World::start("an_admission_that_the_guard_has_just_found");
    let mut old = world.session(5);
    assert_eq!(code(&mut old, WRITE), "");
    let process = ticks::process(&mut old);
    ok(&mut old, "BEGIN");
    ok(&mut old, "SELECT pg_advisory_xact_lock_shared(hashtext('scheduler'), pg_backend_pid())");
    assert_eq!(code(&mut world.session(6), WRITE), "");
    assert_eq!(world.postgres.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}")), "0");
}

/// The same, while another session held the lock of the process and has released it since: the guard has locked the
/// row. The proxy does not wait for that lock, which the old leader may hold indefinitely.
#[test]
fn an_admission_whose_row_the_guard_has_just_locked() {
    // Without functions in the policies: with them, any open transaction with an id may have written.
    let world =
        World::start_with("an_admission_whose_row_the_guard_has_just_locked", TWO_RESOURCES, Options::default());
    let mut order = CommitOrder::start(&world.postgres, "postgres");
    let mut old = world.session(5);
    assert_eq!(code(&mut old, WRITE), "");
    let process = ticks::process(&mut old);
    ok(&mut old, "BEGIN");
    ok(&mut old, "SELECT FROM fencegate_state.admission WHERE pid = pg_backend_pid() FOR KEY SHARE");
    assert_eq!(code(&mut world.session(6), WRITE), "");
    assert_eq!(world.postgres.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}")), "0");
    assert_eq!(tokens(&mut order), [5, 6]);
}

/// Any role may take advisory locks. A role that takes the lock of the process blocks no other session.
#[test]
fn a_lock_taken_by_another_session() {
    let world = World::start("a_lock_taken_by_another_session");
    for level in LEVELS {
        let mut leader = world.session(5);
        assert_eq!(code(&mut leader, WRITE), "");
        ok(&mut leader, "SET statement_timeout = '10s'");
        let mut attacker = without_token(&world.postgres.socket());
        let process = ticks::process(&mut leader);
        ok(&mut attacker, &format!("SELECT pg_advisory_lock(hashtext('scheduler'), {process})"));
        assert_eq!(attempt(&mut leader, level, &[WRITE, "SELECT unnamed()"]), "", "{level}");
        assert_eq!(attempt(&mut world.around(4), level, &["SELECT unnamed()"]), "LF001", "{level}");
    }
    // The fence still holds: the next leader terminates a session that writes then.
    let mut old = world.session(5);
    assert_eq!(code(&mut old, WRITE), "");
    let process = ticks::process(&mut old);
    let mut attacker = without_token(&world.postgres.socket());
    ok(&mut attacker, &format!("SELECT pg_advisory_lock(hashtext('scheduler'), {process})"));
    ok(&mut old, "BEGIN; SELECT unnamed()");
    assert_eq!(code(&mut world.session(6), WRITE), "");
    wait_until_harmless(&world.postgres, &process);
    assert_eq!(world.postgres.value("SELECT note FROM ticks ORDER BY id DESC LIMIT 1"), "tick");
}

/// Only a session that knows the prepared transaction can end it.
#[test]
fn a_prepared_transaction() {
    let options = Options::default().setting("max_prepared_transactions", "2");
    let world = World::start_with("a_prepared_transaction", POLICIES, options);
    let mut old = world.around(5);
    ok(&mut old, "BEGIN; SELECT unnamed()");
    ok(&mut old, "PREPARE TRANSACTION 'hidden'");
    let mut new = world.session(6);
    let error = refused(&mut new, WRITE, "LF006");
    assert!(error.message().contains("prepared transaction hidden"), "{}", error.message());
    ok(&mut old, "COMMIT PREPARED 'hidden'");
    ok(&mut new, WRITE);
    assert_eq!(world.postgres.value("SELECT string_agg(note, ' ' ORDER BY id) FROM ticks"), "tick function tick");
}

/// All Publishes of a database share one connection.
#[test]
fn of_another_resource_meanwhile() {
    let options = Options::default().setting("max_prepared_transactions", "2");
    let world = World::start_with("of_another_resource_meanwhile", TWO_RESOURCES, options);
    let mut old = world.around(5);
    ok(&mut old, "BEGIN; SELECT unnamed()");
    ok(&mut old, "PREPARE TRANSACTION 'hidden'");
    let (mut new, mut other) = (world.session(6), world.session(5));
    new.send(&message::query(WRITE));
    wait_for_lock(&world);
    ok(&mut other, OTHER_WRITE);
    assert_eq!(code(&mut world.session(6), OTHER_WRITE), "");
    let error = error_in(&new.read_until_ready()).expect("it is refused");
    assert_eq!(error.code(), "LF006", "{error:?}");
    assert!(error.message().contains("prepared transaction hidden"), "{}", error.message());
    ok(&mut old, "ROLLBACK PREPARED 'hidden'");
}

fn wait_for_lock(world: &World) {
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity \
        WHERE application_name = 'fencegate control' AND wait_event_type = 'Lock'";
    wait_until("a control connection waits", DEADLINE, || world.postgres.value(waiting) == "t");
}

/// Any role can take the lock of a resource in its own session. The session is terminated, and the leader admitted.
#[test]
fn a_lock_held_by_a_stranger() {
    let world = World::start("a_lock_held_by_a_stranger");
    world.postgres.sql("CREATE ROLE stranger LOGIN");
    for lock in ["pg_advisory_lock", "pg_advisory_xact_lock"] {
        let mut stranger = Wire::login(&world.postgres.address(), "stranger", "postgres");
        // The name of the control connections does not help.
        ok(&mut stranger, "SET application_name = 'fencegate control'");
        ok(&mut stranger, "BEGIN");
        ok(&mut stranger, &format!("SELECT {lock}(hashtextextended('fencegate:scheduler', 0))"));
        assert_eq!(code(&mut world.session(5), WRITE), "", "{lock}");
        assert_eq!(code(&mut stranger, "SELECT 1"), "57P01", "{lock}");
    }
}

/// A drain briefly spares a session that acquires a lease. It recognizes the session by a lock that only fencegate's
/// function can take. Other sessions cannot pose as such a session, however often they try.
#[test]
fn strangers_that_pose_as_acquiring_a_lease() {
    let world = World::start("strangers_that_pose_as_acquiring_a_lease");
    world.postgres.sql("CREATE ROLE stranger LOGIN");
    let leased = world.postgres.value("SELECT oid::regclass FROM pg_class WHERE relname = 'leased'");
    let (is_over, have_locked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let pose = || {
        let mut stranger = Wire::login(&world.postgres.address(), "stranger", "postgres");
        ok(&mut stranger, "BEGIN; SAVEPOINT s");
        if !code(&mut stranger, &format!("PREPARE p AS SELECT 1 FROM {leased} FOR UPDATE")).is_empty() {
            ok(&mut stranger, "ROLLBACK TO s");
        }
        let lock = "SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:scheduler', 0))";
        have_locked.fetch_add(usize::from(code(&mut stranger, lock).is_empty()), Ordering::Relaxed);
        // A new transaction begins before the previous one is too old to be spared.
        let since = Instant::now();
        let goes_on = || since.elapsed() < Duration::from_secs(6) && !is_over.load(Ordering::Relaxed);
        while goes_on() && code(&mut stranger, "SELECT pg_sleep(0.05)").is_empty() {}
    };
    let refusal = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    pose();
                }
            });
        }
        wait_until("they have locked", DEADLINE, || have_locked.load(Ordering::Relaxed) >= 3);
        let taken = scope.spawn(|| code(&mut world.session(6), WRITE)).join();
        is_over.store(true, Ordering::Relaxed);
        taken.expect("it is answered")
    });
    assert_eq!(refusal, "");
}

/// The stranger waits for a transaction that the guard has admitted, and the next Admit waits for the stranger.
#[test]
fn a_stranger_ahead_in_the_queue() {
    let world = World::start("a_stranger_ahead_in_the_queue");
    let mut writer = world.around(5);
    ok(&mut writer, "BEGIN; SELECT unnamed()");
    let mut stranger = without_token(&world.postgres.address());
    let process = ticks::process(&mut stranger);
    stranger.send(&message::query("SELECT pg_advisory_lock(hashtextextended('fencegate:scheduler', 0))"));
    wait_for_process(&world.postgres, &process, "wait_event_type = 'Lock'");
    assert_eq!(code(&mut world.session(5), WRITE), "");
    assert_eq!(error_in(&stranger.read_until_ready()).expect("it is ended").code(), "57P01");
    ok(&mut writer, "COMMIT");
}

/// All Admits of a database share one connection, however many wait.
#[test]
fn admissions_to_another_resource_meanwhile() {
    let options = Options::default().setting("max_prepared_transactions", "2");
    let world = World::start_with("admissions_to_another_resource_meanwhile", TWO_RESOURCES, options);
    assert_eq!(code(&mut world.session(5), OTHER_WRITE), "");
    let mut stranger = without_token(&world.postgres.address());
    ok(&mut stranger, "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('fencegate:scheduler', 0))");
    ok(&mut stranger, "PREPARE TRANSACTION 'hidden'");
    let mut waiting: Vec<_> = (0..30).map(|_| world.session(5)).collect();
    waiting.iter_mut().for_each(|session| session.send(&message::query(WRITE)));
    wait_for_lock(&world);
    // More than the first, which precedes the Admits that wait again.
    for _ in 0..3 {
        assert_eq!(code(&mut world.session(5), OTHER_WRITE), "");
    }
    for session in &mut waiting {
        let error = error_in(&session.read_until_ready()).expect("it is refused");
        assert_eq!(error.code(), "LF006", "{error:?}");
        assert!(error.message().contains("prepared transaction hidden"), "{}", error.message());
    }
    ok(&mut stranger, "ROLLBACK PREPARED 'hidden'");
    ok(&mut waiting[0], WRITE);
}

/// A session of an ordinary role that holds both locks of the guard.
fn take_both(world: &World, process: &str) -> Wire {
    let mut stranger = Wire::login(&world.postgres.address(), "reader", "postgres");
    ok(&mut stranger, &format!("SELECT pg_advisory_lock(hashtext('scheduler'), {process})"));
    ok(&mut stranger, "SELECT pg_advisory_lock(hashtextextended('fencegate:scheduler', 0))");
    stranger
}

/// An admitted session does not wait, and the stranger is not terminated. A session without an admission waits until
/// the stranger is terminated.
#[test]
fn a_stranger_with_both_locks() {
    let world = World::start("a_stranger_with_both_locks");
    for level in LEVELS {
        let mut leader = world.session(5);
        assert_eq!(code(&mut leader, WRITE), "");
        ok(&mut leader, "SET statement_timeout = '20s'");
        let process = ticks::process(&mut leader);
        let mut stranger = take_both(&world, &process);
        assert_eq!(attempt(&mut leader, level, &["SELECT unnamed()", "SELECT unnamed()"]), "", "{level}");
        assert_eq!(code(&mut stranger, "SELECT 1"), "", "no session had to wait for it");

        let mut around = world.around(5);
        ok(&mut around, "SET statement_timeout = '20s'");
        assert_eq!(attempt(&mut around, level, &["SELECT unnamed()"]), "", "{level}");
        assert_eq!(code(&mut stranger, "SELECT 1"), "57P01", "{level}");
    }
}

/// A write made while a stranger held the lock of the process is drained after the stranger has released the lock.
#[test]
fn a_write_beside_a_stranger_is_drained() {
    for level in LEVELS {
        let world = World::start("a_write_beside_a_stranger_is_drained");
        let mut order = CommitOrder::start(&world.postgres, "postgres");
        let mut old = world.session(5);
        assert_eq!(code(&mut old, WRITE), "");
        let process = ticks::process(&mut old);
        let stranger = take_both(&world, &process);
        ok(&mut old, &format!("BEGIN ISOLATION LEVEL {level}; SELECT unnamed()"));
        drop(stranger);
        wait_until("the lock is released", DEADLINE, || {
            world.postgres.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0"
        });
        assert_eq!(code(&mut world.session(6), WRITE), "", "{level}");
        let told = old.query("COMMIT");
        assert_eq!(error_in(&told).map(|error| error.severity().to_owned()), Some("FATAL".into()), "{level}: {told:?}");
        wait_until_harmless(&world.postgres, &process);
        assert_eq!(tokens(&mut order), [5, 6], "{level}");
    }
}

/// The session's own next token does not overlook the write either.
#[test]
fn a_write_beside_a_stranger_counts_for_the_sessions_own_next_token() {
    let world = World::start("a_write_beside_a_stranger_counts");
    let mut session = world.session(5);
    assert_eq!(code(&mut session, WRITE), "");
    let stranger = take_both(&world, &ticks::process(&mut session));
    ok(&mut session, "BEGIN; SELECT unnamed()");
    drop(stranger);
    ok(&mut session, "SET lease.fence = 6");
    refused(&mut session, WRITE, "LF003");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "5");
}

/// If the stranger cannot be terminated, a session without an admission receives an error in time.
#[test]
fn a_stranger_that_cannot_be_ended() {
    let options = Options::default().setting("max_prepared_transactions", "2");
    let world = World::start_with("a_stranger_that_cannot_be_ended", POLICIES, options);
    let mut stranger = Wire::login(&world.postgres.address(), "reader", "postgres");
    ok(&mut stranger, "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('fencegate:scheduler', 0))");
    ok(&mut stranger, "PREPARE TRANSACTION 'hidden'");
    let error = refused(&mut world.around(5), "SELECT unnamed()", "LF006");
    assert!(error.message().contains("lock"), "{error:?}");
    ok(&mut stranger, "ROLLBACK PREPARED 'hidden'");
    ok(&mut world.around(5), "SELECT unnamed()");
}

/// Calling the guard's functions terminates no other session: locks for names without a fence do not count.
#[test]
fn the_guard_terminates_no_process_for_a_missing_fence() {
    let world = World::start("the_guard_ends_nobody");
    let mut other = Wire::login(&world.postgres.address(), "reader", "postgres");
    ok(&mut other, "SELECT pg_advisory_lock(hashtextextended('fencegate:elsewhere', 0))");
    let mut caller = Wire::login(&world.postgres.address(), "reader", "postgres");
    ok(&mut caller, "SET lease.fence = 5");
    assert_eq!(code(&mut caller, "SELECT fencegate.check_write('elsewhere', 'elsewhere', false)"), "LF004");
    assert_eq!(code(&mut caller, "SELECT fencegate.await_lock('elsewhere')"), "42501");
    assert_eq!(code(&mut other, "SELECT 1"), "");
}
