//! Torture: PostgreSQL, three members of etcd, proxies and leaders, all real, with faults drawn from a seed. The
//! server's own log of commits is the evidence, for two judges. Leaders without the proxy, and those that only check
//! before the write, must fail.
//!
//! A seed repeats the faults and their order, but not their timing on the machine.

mod faults;
pub mod history;
mod leader;
mod world;

use crate::support::ticks::out_of_order;
use crate::support::{DEADLINE, seed, wait_until};
use faults::Faults;
use fencegate_testing::dice::Dice;
use fencegate_testing::length::number;
use history::History;
use std::str::FromStr;
use std::time::{Duration, Instant};
use world::World;

const ELECTION: &str = "/torture/leader";

/// How the leaders of a run reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through proxies.
    Fenced,
    /// Without a proxy.
    Direct,
    /// Without a proxy. Each write first checks for a higher token.
    Checked,
}

impl FromStr for Way {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Way::Fenced, Way::Direct, Way::Checked].into_iter().find(|way| format!("{way:?}") == text).ok_or(())
    }
}

impl Way {
    fn insert(self, token: i64, note: &str) -> String {
        match self {
            Way::Fenced | Way::Direct => format!("INSERT INTO ticks (token, note) VALUES ({token}, '{note}')"),
            Way::Checked => format!(
                "INSERT INTO ticks (token, note) SELECT {token}, '{note}' \
                 WHERE NOT EXISTS (SELECT FROM ticks WHERE token > {token})"
            ),
        }
    }
}

/// The duration, which FENCEGATE_TORTURE sets in seconds.
fn length() -> Duration {
    Duration::from_secs(number("FENCEGATE_TORTURE").unwrap_or(60))
}

#[test]
fn nothing_stale_is_committed() {
    let world = World::start(Way::Fenced, false);
    endure(world, Faults::default(), "torture", World::take_inserted);
}

/// With a synchronous standby, which is promoted. The old primary returns as the standby.
#[test]
fn nothing_stale_is_committed_through_promotions() {
    let world = World::start(Way::Fenced, true);
    endure(world, Faults::with_promotions(), "torture_with_promotions", World::surviving_rows);
}

/// Runs the faults. Then checks the history, which has this name.
fn endure(mut world: World, mut faults: Faults, name: &str, committed: impl Fn(&World) -> Vec<(i64, String)>) {
    let time = length();
    let mut dice = Dice::new(seed());
    let start = Instant::now();
    while start.elapsed() < time {
        faults.next(&mut world, &mut dice);
        world.start_ended_leaders();
    }
    faults.end_all(&mut world);

    // The current leader writes through every proxy.
    let before = world.diaries().len();
    wait_until("leaders write when all faults have ended", DEADLINE, || {
        world.start_ended_leaders();
        world.diaries().len() > before + 50
    });
    world.stop_leaders();
    let history = History::new(world.diaries(), committed(&world));
    println!("{history}\n{faults}\n{}", history.export(name).display());
    assert_eq!(history.violations(), [""; 0]);
    assert!(history.is_linearizable(), "the checker rejects a history in which we see no violation");
    for (mistake, wrong) in history.falsified() {
        assert!(!wrong.violations().is_empty() && !wrong.is_linearizable(), "{mistake}: not found");
    }
    let reigns = history.count_tokens();
    assert!(reigns as u64 > time.as_secs() / 10, "only {reigns} tokens have written");
}

#[test]
fn without_a_proxy_stale_writes_are_committed() {
    is_caught(Way::Direct);
}

#[test]
fn a_check_before_the_write_lets_stale_writes_in() {
    is_caught(Way::Checked);
}

/// Only pauses leaders, until stale writes are committed.
fn is_caught(way: Way) {
    let mut dice = Dice::new(seed());
    let mut world = World::start(way, false);
    let mut faults = Faults::of_leaders();
    let mut rows = Vec::new();
    let tokens = |rows: &[(i64, String)]| rows.iter().map(|row| row.0).collect::<Vec<_>>();
    let start = Instant::now();
    while out_of_order(&tokens(&rows)) == 0 {
        assert!(start.elapsed() < 3 * DEADLINE, "{} writes in order", rows.len());
        for _ in 0..10 {
            faults.next(&mut world, &mut dice);
            world.start_ended_leaders();
        }
        rows.extend(world.take_inserted());
    }
    world.stop_leaders();
    rows.extend(world.take_inserted());
    // A checked write that has found a higher token succeeds without a row.
    let mut diaries = world.diaries();
    diaries.retain(|write| rows.iter().any(|(_, note)| *note == write.value));
    let history = History::new(diaries, rows);
    println!(
        "{way:?}: {history}: {:?}\n{}",
        history.violations(),
        history.export(&format!("torture_{way:?}")).display()
    );
    assert_eq!(history.violations().len(), 1, "only the order is wrong");
    assert!(!history.is_linearizable(), "the checker accepts stale writes");
}
