//! Torture: PostgreSQL, three members of etcd, proxies and leaders, all real, with faults drawn from a seed. The
//! server's own log of commits is the judge. Leaders without the proxy, and those that only check before the write,
//! must fail.
//!
//! A seed repeats the faults and their order, but not their timing on the machine.

mod faults;
mod leader;
mod world;

use crate::support::ticks::out_of_order;
use crate::support::{DEADLINE, seed, wait_until};
use faults::Faults;
use fencegate_testing::dice::Dice;
use fencegate_testing::length::number;
use std::collections::HashSet;
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
    endure(world, Faults::default(), |world| {
        world.take_inserted().into_iter().map(|row| (row.number("token"), row.columns["note"].clone())).collect()
    });
}

/// With a synchronous standby, which is promoted. The old primary returns as the standby.
#[test]
fn nothing_stale_is_committed_through_promotions() {
    let world = World::start(Way::Fenced, true);
    endure(world, Faults::with_promotions(), |world| {
        let rows = world.surviving_rows().into_iter();
        rows.map(|mut row| (row[0].as_ref().unwrap().parse().unwrap(), row[1].take())).collect()
    });
}

/// Runs the faults. Then checks the committed tokens and notes in the order of commits.
fn endure(mut world: World, mut faults: Faults, committed: impl Fn(&World) -> Vec<(i64, Option<String>)>) {
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
    let diaries = world.diaries();
    let rows = committed(&world);
    let tokens: Vec<i64> = rows.iter().map(|(token, _)| *token).collect();
    let committed: HashSet<&str> = rows.iter().filter_map(|(_, note)| note.as_deref()).collect();
    let said = |word: &str| diaries.iter().filter_map(|line| line.strip_prefix(word)).collect::<Vec<_>>();
    let lost: Vec<_> = said("committed ").into_iter().filter(|note| !committed.contains(note)).collect();
    let ghosts: Vec<_> = said("refused ").into_iter().filter(|note| committed.contains(note)).collect();
    let reigns = tokens.iter().collect::<HashSet<_>>().len();
    println!(
        "{} writes under {reigns} tokens, {} acknowledged, {} refused as stale, {} cut off",
        tokens.len(),
        said("committed ").len(),
        said("refused ").len(),
        said("cut off ").len()
    );
    println!("{faults}");
    assert_eq!(out_of_order(&tokens), 0, "of {} writes", tokens.len());
    assert!(lost.is_empty(), "acknowledged but not committed: {lost:?}");
    assert!(ghosts.is_empty(), "refused but committed: {ghosts:?}");
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
    let mut tokens = Vec::new();
    let start = Instant::now();
    while out_of_order(&tokens) == 0 {
        assert!(start.elapsed() < 3 * DEADLINE, "{} writes in order", tokens.len());
        for _ in 0..10 {
            faults.next(&mut world, &mut dice);
            world.start_ended_leaders();
        }
        tokens.extend(world.take_inserted().iter().map(|row| row.number("token")));
    }
    println!("{way:?}: {} of {} writes out of order", out_of_order(&tokens), tokens.len());
}
