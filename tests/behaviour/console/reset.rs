//! FENCE RESET does not terminate sessions with higher tokens unless it is forced.

use super::world::{World, console};
use crate::support::fenced::init;
use crate::support::ticks::{self, WRITE, ok, session};
use crate::support::wire::rows_in;
use crate::support::{DEADLINE, Wire, wait_until};

/// A reset waits for the lock of the resource.
const WAITS: &str =
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted";

const LIVING: &str = "SELECT count(*) FROM fencegate_state.admission JOIN pg_stat_activity USING (pid, backend_start)";

#[test]
fn a_reset_below_a_living_session_needs_force() {
    let world = World::start();
    let other = ticks::proxy(&world.postgres);
    let mut holder = world.writer(50);
    let mut through_other = session(&other.address(), 50);
    ok(&mut through_other, WRITE);
    let pids = world.postgres.value("SELECT string_agg(pid::text, ' ' ORDER BY proxy) FROM fencegate_state.admission");
    let mut console = world.console();

    let error = console.rows("FENCE RESET scheduler TO 49").unwrap_err();
    assert_eq!((error.severity(), error.code()), ("ERROR", "55006"));
    assert!(error.message().contains("2 sessions admitted under higher tokens, up to 50"), "{error:?}");
    assert!(pids.split(' ').all(|pid| error.detail().contains(&format!("pid {pid} under token 50"))), "{error:?}");
    assert!(error.detail().contains(" of postgres from 127.0.0.1:"), "{error:?}");
    assert!(error.detail().contains("a session of another proxy") && error.hint().contains("FORCE"), "{error:?}");
    // The reset had no effect.
    assert_eq!(world.postgres.value("SELECT generation || ' ' || token FROM fencegate_state.epoch"), "1 50");
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.reset"), "0");
    for writer in [&mut holder, &mut through_other] {
        ok(writer, WRITE);
    }
    assert_eq!(console.rows("FENCE RESET scheduler TO 49 FORCE").unwrap().len(), 1);
    assert_eq!(
        world.postgres.value(
            "SELECT resource || ' ' || generation || ' ' || token || ' ' || role || ' ' || forced FROM fencegate_state.reset"
        ),
        "scheduler 2 49 postgres true"
    );
    let mut successor = session(&world.proxy.address(), 49);
    ok(&mut successor, WRITE);
}

#[test]
fn an_ended_process_does_not_block_a_reset() {
    let world = World::start();
    drop(world.writer(50));
    wait_until("its process has ended", DEADLINE, || world.postgres.value(LIVING) == "0");
    // The row of an ended process does not count, even if it still exists.
    assert_eq!(world.console().rows("FENCE RESET scheduler TO 7").unwrap().len(), 1);
    assert_eq!(world.postgres.value("SELECT forced FROM fencegate_state.reset"), "f");
}

/// The check and the reset are one step: it detects processes that are admitted while the reset waits for the lock.
#[test]
fn an_admission_before_the_lock_is_granted_blocks_the_reset() {
    let world = World::start();
    drop(world.writer(50));
    wait_until("its process has ended", DEADLINE, || world.postgres.value(LIVING) == "0");
    let mut admitting = Wire::login(&world.postgres.address(), "postgres", "postgres");
    // Like another proxy's control connection, which is never terminated. It holds the lock until its row is committed.
    ok(&mut admitting, "SET application_name = 'fencegate control'");
    ok(&mut admitting, "BEGIN");
    ok(&mut admitting, "SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:scheduler', 0))");
    let refusal = std::thread::scope(|scope| {
        let resetting = scope.spawn(|| console(&world.proxy).rows("FENCE RESET scheduler IN DATABASE postgres TO 7"));
        wait_until("the reset waits", DEADLINE, || world.postgres.value(WAITS) == "1");
        let admit = "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
            SELECT pid, backend_start, 'scheduler', 1, 50, 'another' FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        ok(&mut admitting, admit);
        ok(&mut admitting, "COMMIT");
        resetting.join().unwrap().unwrap_err()
    });
    assert_eq!(refusal.code(), "55006", "{refusal:?}");
    assert_eq!(world.postgres.value("SELECT generation || ' ' || token FROM fencegate_state.epoch"), "1 50");
}

/// Neither a database that never existed nor a dropped one remains in the output.
#[test]
fn a_missing_database_is_reported_and_forgotten() {
    let world = World::start();
    let _writer = world.writer(47);
    let mut console = world.console();
    // Without a warning about another database.
    let is_only_known = |console: &mut Wire| {
        let frames = console.query("SHOW FENCES");
        let rows = rows_in(&frames);
        frames.iter().all(|frame| frame.tag != b'N') && rows.len() == 1 && rows[0][0].as_deref() == Some("postgres")
    };
    let missing = |console: &mut Wire, name: &str| {
        let error = console.rows(&format!("FENCE RESET scheduler IN DATABASE {name} TO 7")).unwrap_err();
        assert_eq!((error.severity(), error.code()), ("ERROR", "3D000"), "{error:?}");
        assert_eq!(error.message(), format!("database \"{name}\" does not exist"));
    };
    missing(&mut console, "postgers");
    assert!(is_only_known(&mut console));

    world.postgres.sql("CREATE DATABASE passing");
    drop(Wire::login(&world.proxy.address(), "postgres", "passing"));
    wait_until("its session has gone", DEADLINE, || console.rows("SHOW SESSIONS").unwrap().len() == 1);
    let control = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'passing'";
    wait_until("its control connections are closed", DEADLINE, || world.postgres.value(control) == "0");
    world.postgres.sql("DROP DATABASE passing WITH (FORCE)");
    wait_until("it is forgotten", DEADLINE, || is_only_known(&mut console));
    missing(&mut console, "passing");
    assert!(is_only_known(&mut console));
    world.proxy.write_policies(&format!("{}  - name: more\n    tables: [public.more]\n", ticks::POLICIES));
    assert_eq!(console.rows("RELOAD").unwrap().len(), 1);
    let log = world.proxy.log();
    let is_missed = |line: &str| line.contains("passing") && line.contains("does not exist");
    assert!(!log.contains("outcome") && !log.lines().any(is_missed), "{log}");
    // The database is created again.
    world.postgres.sql("CREATE DATABASE passing");
    init(&world.postgres, "passing");
    let _session = Wire::login(&world.proxy.address(), "postgres", "passing");
    let shown = |console: &mut Wire| console.rows("SHOW SESSIONS").unwrap().len() == 2;
    wait_until("it is shown again", DEADLINE, || shown(&mut console));
    assert!(console.rows("SHOW POLICIES").unwrap().iter().any(|row| row[0].as_deref() == Some("passing")));

    assert_eq!(console.rows("FENCE RESET scheduler TO 50").unwrap().len(), 1);
    assert!(world.proxy.log().lines().any(|line| line.contains("fence_reset") && line.contains("forced=false")));
}
