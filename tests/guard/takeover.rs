//! A next leader, while a transaction is open that wrote where only the guard saw it.

use super::support::commit_order::CommitOrder;
use super::support::fenced::{code, ok};
use super::support::ticks::{self, WRITE, refused, tokens, wait_for_process, wait_until_harmless};
use super::support::{Options, message, wire::error_in};
use super::world::{LEVELS, POLICIES, World, attempt, without_token};

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
        // What it is told: as the answer to its statement, or to its next.
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

/// It would wait for itself.
#[test]
fn a_session_that_raises_its_own_token() {
    let world = World::start("a_session_that_raises_its_own_token");
    for level in LEVELS {
        // Not admitted: it holds the lock of the resource. Admitted: it holds that of its process.
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

/// As if the guard had let it write at the very moment in which its proxy takes its admission away: it is ended.
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

/// Everybody may take advisory locks. Who takes that of the process makes nobody wait.
#[test]
fn a_lock_that_somebody_else_takes() {
    let world = World::start("a_lock_that_somebody_else_takes");
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
    // The fence holds all the same: the next leader ends who writes then.
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

/// Nobody can end it but who knows of it.
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
