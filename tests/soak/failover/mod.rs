//! A promotion under load: three proxies, a synchronous standby, and clients that write all the time.

mod patroni;
mod pools;
mod world;

use crate::support::cluster::Replication;
use crate::support::postgres::Rows;
use crate::support::{DEADLINE, wait_until};
use std::collections::BTreeMap;
use std::time::Instant;
use world::{Committed, WRITERS, World};

#[test]
fn a_killed_primary_loses_no_acknowledged_write() {
    let mut world = World::start();
    world.wait_for_all_writers(0, 20);
    let failed = Instant::now();
    world.cluster[0].kill9();
    promote_and_judge(&mut world, "killed", failed);
}

#[test]
fn writers_leave_an_old_primary_that_runs() {
    let mut world = World::start();
    world.wait_for_all_writers(0, 20);
    promote_and_judge(&mut world, "running", Instant::now());
}

#[test]
fn an_old_primary_that_was_cut_off_receives_no_write() {
    let mut world = World::start();
    world.wait_for_all_writers(0, 20);
    let failed = Instant::now();
    world.cluster.cut_off(0);
    // From now on, the old primary would acknowledge a write at once.
    world.cluster[0].sql("ALTER SYSTEM SET synchronous_standby_names = ''");
    world.cluster[0].sql("SELECT pg_reload_conf()");
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    wait_until("the sessions have ended", DEADLINE, || world.cluster[0].value(sessions) == "0");
    world.cluster.catch_up(1);
    let before = content(&world, 0);
    promote_and_judge(&mut world, "cut off", failed);

    world.cluster.reconnect(0);
    for proxy in &world.proxies {
        proxy.wait_for_log("upstream_superseded", DEADLINE);
    }
    let seen = world.committed().len();
    wait_until("the writers have opened new sessions", DEADLINE, || world.committed().len() > seen + 2_000);
    judge(&mut world);
    assert_eq!(content(&world, 0), before, "the old primary received a write");
}

/// Rows, tokens and admissions of a server.
fn content(world: &World, node: usize) -> String {
    world.cluster[node].value(
        "SELECT (SELECT count(*) FROM entries) || ' ' || (SELECT sum(token) FROM fencegate_state.epoch) || ' ' \
         || (SELECT count(*) FROM fencegate_state.admission)",
    )
}

/// Promotes the standby, waits until all writers have continued, and prints the time without writes.
fn promote_and_judge(world: &mut World, old: &str, failed: Instant) {
    world.cluster.promote(1);
    let promoted = Instant::now();
    // The new primary has no standby.
    world.cluster.set_replication(Replication::Asynchronous);
    world.wait_for_all_writers(1, 20);
    let port = world.cluster[1].port();
    let committed = world.committed();
    let new: Vec<&Committed> = committed.iter().filter(|row| row.server == port).collect();
    let first_of = |writer: i32| new.iter().filter(|row| row.writer == writer).map(|row| row.at).min();
    let first = new.iter().map(|row| row.at).min().expect("a commit");
    let all = (0..WRITERS).filter_map(first_of).max().expect("a commit");
    println!(
        "old primary {old}: first commit {} ms after the failure, {} ms after the promotion; of the last writer {} ms; \
         errors: {:?}",
        first.duration_since(failed).as_millis(),
        // Both are polled, so the commit may be noticed first.
        first.saturating_duration_since(promoted).as_millis(),
        all.duration_since(failed).as_millis(),
        world.errors(),
    );
    judge(world);
}

fn judge(world: &mut World) {
    let acknowledged = world.committed();
    judge_rows(&acknowledged, |query| world.cluster[1].sql(query));
    assert_only_expected(&world.errors());
}

/// Each acknowledged row is on the new primary, and each writer's rows were committed in the order of its tokens.
fn judge_rows(acknowledged: &[Committed], query: impl Fn(&str) -> Rows) {
    let rows = query(
        "SELECT writer, token, number, pg_xact_commit_timestamp(xmin) FROM entries \
         ORDER BY pg_xact_commit_timestamp(xmin), token",
    );
    let mut tokens: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    let mut present = std::collections::HashSet::new();
    for row in rows {
        let number = |column: usize| row[column].as_ref().expect("not null").parse::<i64>().expect("a number");
        assert!(row[3].is_some(), "the time of the commit is unknown");
        tokens.entry(number(0) as i32).or_default().push(number(1));
        present.insert((number(0) as i32, number(2)));
    }
    let lost = acknowledged.iter().filter(|row| !present.contains(&(row.writer, row.number))).count();
    assert_eq!(lost, 0, "lost of {} acknowledged rows", acknowledged.len());
    for (writer, tokens) in tokens {
        assert_eq!(crate::support::ticks::out_of_order(&tokens), 0, "of the rows of writer {writer}");
    }
}

/// The only permitted errors are a terminated session, a server that is not ready, and a lost connection: the session's
/// or, while it is not admitted, the control connection.
pub fn assert_only_expected(errors: &BTreeMap<String, usize>) {
    let lost_control = |kind: &str| kind.starts_with("LF006") && kind.contains("control connection");
    let is_expected =
        |kind: &str| ["57P01", "57P02", "57P03", LOST].contains(&kind) || kind.starts_with("08") || lost_control(kind);
    let others: Vec<_> = errors.iter().filter(|(kind, _)| !is_expected(kind)).collect();
    assert!(others.is_empty(), "{others:?} of {errors:?}");
}

/// An error without SQLSTATE.
pub const LOST: &str = "connection lost";
