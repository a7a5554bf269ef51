//! How long the random suites run, and from which seed. `make test` runs a little of each, `make soak` all.

use std::env;

/// Returns `small`, or that percentage of `full` which FENCEGATE_LENGTH gives, if it is more.
pub fn length(small: u64, full: u64) -> u64 {
    number("FENCEGATE_LENGTH").map_or(small, |percent| small.max(full * percent / 100))
}

/// Returns every `parts`-th, from a start that depends on the seed; or that percentage which FENCEGATE_LENGTH gives, if it is
/// more.
pub fn share<T>(all: Vec<T>, parts: u64) -> Vec<T> {
    let parts = number("FENCEGATE_LENGTH").map_or(parts, |percent| parts.min(100 / percent.clamp(1, 100)));
    let first = seed() % parts.min(all.len() as u64).max(1);
    all.into_iter().zip((0..parts).cycle()).filter(|(_, part)| *part == first).map(|(it, _)| it).collect()
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
