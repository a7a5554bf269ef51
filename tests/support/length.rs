//! How long the random suites run, and from which seed. `make test` runs a little of each, `make soak` all.

use std::env;

/// `small`, or `full` as many times as FENCEGATE_LENGTH says.
pub fn length(small: u64, full: u64) -> u64 {
    number("FENCEGATE_LENGTH").map_or(small, |times| full * times)
}

/// FENCEGATE_SEED, or always the same. It is printed: with it a run can be repeated.
pub fn seed() -> u64 {
    let seed = number("FENCEGATE_SEED").unwrap_or(1);
    println!("FENCEGATE_SEED={seed}");
    seed
}

/// A variable of the environment.
pub fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
