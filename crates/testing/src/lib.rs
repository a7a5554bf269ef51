//! Test support shared by several crates.
//!
//! Owns seeds, random numbers, hostile texts, and properties of decoders. Must never be part of the program.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "only tests use it")]

pub mod bombs;
pub mod dice;
pub mod literals;
pub mod properties;

/// Length and seed of the random suites. `make test` runs a small part of each suite, `make soak` the whole.
pub mod length {
    use std::env;

    /// Returns `small`, or FENCEGATE_LENGTH percent of `full` if that is more.
    pub fn length(small: u64, full: u64) -> u64 {
        number("FENCEGATE_LENGTH").map_or(small, |percent| small.max(full * percent / 100))
    }

    /// Returns one of every `parts` items, or FENCEGATE_LENGTH percent of all items if that is more. The seed determines
    /// the first one.
    pub fn share<T>(all: Vec<T>, parts: u64) -> Vec<T> {
        let parts = number("FENCEGATE_LENGTH").map_or(parts, |percent| parts.min(100 / percent.clamp(1, 100)));
        let first = seed() % parts.min(all.len() as u64).max(1);
        all.into_iter().zip((0..parts).cycle()).filter(|(_, part)| *part == first).map(|(it, _)| it).collect()
    }

    /// Returns FENCEGATE_SEED (default 1), and prints it so that the run can be repeated.
    pub fn seed() -> u64 {
        let seed = number("FENCEGATE_SEED").unwrap_or(1);
        println!("FENCEGATE_SEED={seed}");
        seed
    }

    /// Returns the value of a numeric environment variable, if it is set.
    pub fn number(name: &str) -> Option<u64> {
        env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    }
}
