//! How long the random suites run, and from which seed. `make test` runs a little of each, `make soak` all.

use std::env;

/// Returns `small`, or `full` times FENCEGATE_LENGTH.
pub fn length(small: u64, full: u64) -> u64 {
    number("FENCEGATE_LENGTH").map_or(small, |times| full * times)
}

/// Returns all of them in a run at full length; otherwise every `parts`-th, from a start that depends on the seed.
pub fn share<T>(all: Vec<T>, parts: u64) -> Vec<T> {
    if number("FENCEGATE_LENGTH").is_some() {
        return all;
    }
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
