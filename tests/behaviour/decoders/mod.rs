//! The decoders of external input, with random and damaged input: they never panic, never read past the end, and return
//! the encoded values.
//!
//! The properties are in `fencegate_testing::properties`, which the fuzz targets in `fuzz/` use too. Every case can be
//! repeated: random input is seeded, and a failure prints its input.

mod agreement;
mod corpus;

use crate::support::{length, seed};
use fencegate_testing::dice::Dice;
use fencegate_testing::properties;

/// Number of cases that this run tries, out of `full`.
fn share(full: u64) -> usize {
    usize::try_from(length(full / 20, full)).unwrap()
}

/// Tries random bytes and damaged valid input in equal shares. Prints the number of cases that the decoder accepts,
/// which must not be too small: a corpus that is always rejected would test nothing.
fn check(decoder: &str, full: u64, corpus: &[&[u8]], property: impl Fn(&[u8]) -> bool) {
    let cases = share(full);
    let mut dice = Dice::new(seed());
    let mut good = 0;
    for case in 0..cases {
        let input = if case % 2 == 0 { dice.mutated(corpus) } else { dice.random_bytes(64) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| property(&input)));
        let is_good = result.unwrap_or_else(|_| panic!("{decoder}, case {case}: {}", input.escape_ascii()));
        good += usize::from(is_good);
    }
    println!("{decoder}: {cases} cases, {good} of them good");
    assert!(good > cases / 20, "{decoder}: only {good} of {cases} cases were good");
}

#[test]
fn frames() {
    let corpus = corpus::frames();
    check("frames", 40_000, &corpus::borrow(&corpus), properties::frame::check);
}

#[test]
fn startup_packets() {
    let corpus = corpus::startup_packets();
    check("startup packets", 40_000, &corpus::borrow(&corpus), properties::startup::check);
}

#[test]
fn messages_of_a_server() {
    let corpus = corpus::bodies();
    check("messages", 40_000, &corpus::borrow(&corpus), properties::message::check);
}

#[test]
fn parameters_bound_by_clients() {
    let corpus = corpus::binds();
    check("what is bound", 40_000, &corpus::borrow(&corpus), properties::bind::check);
}

#[test]
fn values_of_the_parameter() {
    check("values", 40_000, &corpus::VALUES.map(str::as_bytes), properties::fence_value::check);
}

#[test]
fn policy_files() {
    let corpus = corpus::POLICIES.map(str::as_bytes);
    assert!(corpus.iter().all(|file| properties::policy::check(file)));
    check("policy files", 20_000, &corpus, properties::policy::check);
}

#[test]
fn texts_of_statements() {
    check("texts", 10_000, &corpus::TEXTS.map(str::as_bytes), properties::statement::check);
}

/// Damaged texts, and random sequences of all words that the lexer knows.
#[test]
fn tokens_of_statements() {
    check("tokens", 10_000, &corpus::PLAIN.map(str::as_bytes), properties::tokens::check);
    let (mut dice, cases) = (Dice::new(seed()), share(20_000));
    let proved = (0..cases).filter(|_| properties::tokens::check(corpus::sentence(&mut dice).as_bytes())).count();
    println!("{proved} sentences of {cases} are proved");
    assert!(proved > cases / 40, "{proved}");
}
