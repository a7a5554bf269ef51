//! Checks the protocol alone, with every interleaving of its steps: see docs/internals/verification.md.
//!
//! Owns the checks: the correct protocol holds within the bounds of each scenario, and a protocol without one of its
//! protections fails. Must never share code with the proxy: the model is an independent implementation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod advance;
mod firsts;
mod judge;
mod protocol;
mod scenario;
mod server;
mod state;

use judge::{ALWAYS, SOMETIMES};
use protocol::{Action, Protocol};
use scenario::{BROKEN, SCENARIOS, Scenario, Variant, WIDE};
use stateright::{Checker, HasDiscoveries, Model};
use std::thread;
use std::time::Instant;

#[test]
fn the_protocol_holds() {
    SCENARIOS.into_iter().for_each(check);
    for (name, _) in SOMETIMES {
        assert!(SCENARIOS.iter().any(|it| it.reaches.contains(&name)), "no scenario has to reach: {name}");
    }
}

#[test]
fn the_protocol_holds_within_wider_bounds() {
    WIDE.into_iter().for_each(check);
}

fn check(scenario: Scenario) {
    let start = Instant::now();
    let checker = Protocol { scenario, variant: Variant::Right }.checker().threads(2).spawn_bfs().join();
    let (states, depth, took) = (checker.unique_state_count(), checker.max_depth() - 1, start.elapsed());
    println!("{}: {states} states, up to {depth} steps, {took:.1?}", scenario.name);
    for name in ALWAYS {
        if let Some(path) = checker.discovery(name) {
            panic!("{}: not always: {name}: {:?}", scenario.name, path.into_actions());
        }
    }
    for name in scenario.reaches {
        assert!(checker.discovery(name).is_some(), "{}: never: {name}", scenario.name);
    }
}

#[test]
fn without_any_of_its_protections_it_fails() {
    const THREADS: usize = 2;
    thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || BROKEN.into_iter().skip(first).step_by(THREADS).for_each(fails));
        }
    });
}

fn fails((variant, scenario, property): (Variant, Scenario, &'static str)) {
    let protocol = Protocol { scenario: Scenario { reaches: &[], ..scenario }, variant };
    let trace = shortest(protocol, property).unwrap_or_else(|| panic!("{variant:?}: {property} still holds"));
    println!("{variant:?}, {}: not always: {property}, {} steps: {trace:?}", scenario.name, trace.len());
}

/// The checker continues for a while after it has found a trace, and keeps the last one.
fn shortest(protocol: Protocol, property: &'static str) -> Option<Vec<Action>> {
    let mut best: Option<Vec<Action>> = None;
    loop {
        let found = HasDiscoveries::AnyOf([property].into());
        let mut checker = protocol.checker().finish_when(found);
        if let Some(best) = &best {
            // A path with one step has two states.
            checker = checker.target_max_depth(best.len() + 1);
        }
        match checker.spawn_bfs().join().discovery(property) {
            Some(path) => best = Some(path.into_actions()),
            None => return best,
        }
    }
}
