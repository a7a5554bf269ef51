//! Transactions whose snapshot is older than the rows that the guard needs.

use super::world::{LEVELS, World, attempt};
use crate::support::Wire;
use crate::support::fenced::{code, ok};
use crate::support::ticks::{WRITE, session};

/// Begins a transaction and takes its snapshot.
fn begin(session: &mut Wire, level: &str) {
    ok(session, &format!("BEGIN ISOLATION LEVEL {level}"));
    ok(session, "SELECT count(*) FROM elsewhere");
}

/// A new leader's first write, in a transaction that has read before: the snapshot contains neither the epoch nor the
/// admission.
#[test]
fn older_than_the_epoch() {
    let world = World::start("older_than_the_epoch");
    for (level, token) in LEVELS.into_iter().zip(6..) {
        let mut leader = world.session(token);
        begin(&mut leader, level);
        for sql in [WRITE, "SELECT unnamed()", "DELETE FROM owned WHERE id = 1", "COMMIT"] {
            assert_eq!(code(&mut leader, sql), "", "{level}: {sql}");
        }
    }
}

/// The snapshot contains the epoch, but not the admission.
#[test]
fn older_than_the_admission() {
    let world = World::start("older_than_the_admission");
    for level in LEVELS {
        let mut leader = world.session(5);
        begin(&mut leader, level);
        for sql in [WRITE, "SELECT unnamed()", "COMMIT"] {
            assert_eq!(code(&mut leader, sql), "", "{level}: {sql}");
        }
    }
}

/// The snapshot contains the admission, which was revoked later. The guard does not rely on the snapshot.
#[test]
fn older_than_the_end_of_the_admission() {
    let world = World::start("older_than_the_end_of_the_admission");
    for (level, token) in LEVELS.into_iter().zip(6..) {
        let mut old = world.session(token);
        assert_eq!(code(&mut old, WRITE), "");
        begin(&mut old, level);
        assert_eq!(code(&mut world.session(token + 1), WRITE), "");
        let before = world.state();
        let expected = if level == "READ COMMITTED" { "LF001" } else { "40001" };
        assert_eq!(code(&mut old, "SELECT unnamed()"), expected, "{level}");
        code(&mut old, "ROLLBACK");
        assert_eq!(world.state(), before);
        assert_eq!(attempt(&mut old, level, &["SELECT unnamed()"]), "LF001", "{level}");
    }
}

/// Without an admission, the current epoch counts, not the epoch in the snapshot.
#[test]
fn older_than_an_epoch_that_was_raised() {
    let world = World::start("older_than_an_epoch_that_was_raised");
    for level in LEVELS {
        let mut old = world.around(5);
        begin(&mut old, level);
        world.postgres.sql("UPDATE fencegate_state.epoch SET token = 6");
        let expected = if level == "READ COMMITTED" { "LF001" } else { "40001" };
        assert_eq!(code(&mut old, "SELECT unnamed()"), expected, "{level}");
        world.postgres.sql("UPDATE fencegate_state.epoch SET token = 5");
    }
}

/// The row of an ended process with the same pid does not count.
#[test]
fn the_admission_of_an_earlier_process() {
    let World { proxy, postgres, .. } = World::start("the_admission_of_an_earlier_process");
    // The proxy would delete such rows.
    drop(proxy);
    for level in LEVELS {
        let mut stale = session(&postgres.socket(), 4);
        ok(
            &mut stale,
            "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
            VALUES (pg_backend_pid(), '2000-01-01', 'scheduler', 1, 4, 'gone')",
        );
        assert_eq!(attempt(&mut stale, level, &["SELECT unnamed()"]), "LF001", "{level}");
    }
}

/// The guard's reads and probes do not make another leader's transaction fail.
#[test]
fn two_leaders_under_serializable() {
    let policies = "
version: 1
resources:
  - {name: scheduler, tables: [public.ticks]}
  - {name: other, tables: [public.elsewhere]}
opaque: allow
";
    let world = World::start_with("two_leaders_under_serializable", policies, Default::default());
    let (mut one, mut other) = (world.session(5), world.session(7));
    for _ in 0..3 {
        for session in [&mut one, &mut other] {
            ok(session, "BEGIN ISOLATION LEVEL SERIALIZABLE");
            ok(session, "SELECT count(*) FROM inbox");
        }
        assert_eq!(code(&mut one, WRITE), "");
        assert_eq!(code(&mut other, "INSERT INTO elsewhere VALUES (1)"), "");
        assert_eq!(code(&mut one, "SELECT unnamed()"), "");
        assert_eq!(code(&mut one, "COMMIT"), "");
        assert_eq!(code(&mut other, "COMMIT"), "");
    }
}

/// When the guard detects that a process is not admitted, it leaves no rows.
#[test]
fn a_probe_leaves_nothing_behind() {
    let world = World::start("a_probe_leaves_nothing_behind");
    let mut leader = world.around(5);
    assert_eq!(attempt(&mut leader, "REPEATABLE READ", &["SELECT unnamed()", "SELECT unnamed()"]), "");
    assert_eq!(world.postgres.value("SELECT count(*) FROM fencegate_state.admission WHERE proxy = 'probe'"), "0");
}
