//! To a client, a rejected statement looks like one that the server refuses: the same messages in the same order, the
//! same transaction state, nothing written, and the session continues.
//!
//! The tests form a matrix: each rejected statement (`rejected.rs`), in each state of a session (`states.rs`), in each
//! message form of the protocol (`shapes.rs`). Each cell runs on the server with a division by zero at the same place,
//! and on the proxy with the rejected statement; the responses are compared (`compare.rs`). `make test` runs every
//! other cell.

mod calls;
mod compare;
mod conversation;
mod pipeline;
mod rejected;
mod shapes;
mod states;
mod undecided;

use crate::support::share;
use compare::World;
use rejected::Rejected;
use shapes::{RESUMED, SHAPES, Shape};
use states::{FAILED, STATES, State};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn a_stale_token() {
    let world = World::start();
    world.raise(100);
    everywhere(&world, &rejected::stale());
}

#[test]
fn no_token() {
    everywhere(&World::start(), &rejected::missing());
}

#[test]
fn an_invalid_token() {
    everywhere(&World::start(), &rejected::invalid());
}

#[test]
fn code_that_the_proxy_cannot_see() {
    everywhere(&World::start(), &rejected::unverifiable());
}

#[test]
fn a_transaction_prepared_by_a_holder() {
    let world = World::start();
    everywhere(&world, &[rejected::prepare_transaction()]);
    assert_eq!(world.fenced.postgres.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

/// A failed PREPARE TRANSACTION ends the transaction.
#[test]
fn an_open_transaction_that_a_holder_prepares() {
    let world = World::start();
    let mut cells = Cells::default();
    let rejected = Rejected { reference: rejected::UNPREPARABLE, ..rejected::prepare_transaction() };
    for (state, shape) in pairs(SHAPES) {
        let is_open = state.is_block && !state.failed || shape.begins;
        // Outside a transaction the server only warns, as it would for the repeated statement.
        if is_open && !state.failed && !state.copying && !shape.repeats {
            cells.compare(&world, &rejected, state, shape);
        }
    }
    cells.finish();
    assert_eq!(world.fenced.postgres.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

/// The server itself rolls back the transaction, so the proxy need not reject anything.
#[test]
fn a_failed_transaction_that_a_holder_prepares() {
    let world = World::start();
    let mut cells = Cells::default();
    let rejected = rejected::prepare_transaction();
    let itself = Rejected { reference: rejected.statement, ..rejected };
    let comes_first = ["a string", "the first of a string", "the extended protocol", "with Describe"];
    for shape in SHAPES.iter().filter(|shape| comes_first.contains(&shape.name)) {
        cells.compare(&world, &itself, &FAILED, shape);
    }
    cells.finish();
}

#[test]
fn a_database_without_a_fence() {
    everywhere(&World::start(), &rejected::unavailable());
}

/// Only a verdict that depends on the token can change between the start of a portal and its resumption. A newer token
/// would end the session, because its transaction may have written.
#[test]
fn a_portal_that_is_resumed() {
    let world = World::start();
    let mut cells = Cells::default();
    for rejected in rejected::resumed() {
        for (state, shape) in pairs(RESUMED) {
            // In a failed transaction and during COPY no portal starts, and only a transaction block keeps one.
            if !state.failed && !state.copying && (state.is_block || !shape.needs_block) {
                cells.compare(&world, &rejected, state, shape);
            }
        }
    }
    cells.finish();
}

#[track_caller]
fn everywhere(world: &World, rejected: &[Rejected]) {
    let mut cells = Cells::default();
    for rejected in rejected {
        for (state, shape) in pairs(SHAPES) {
            // See `an_open_transaction_that_a_holder_prepares` and `a_failed_transaction_that_a_holder_prepares`.
            let is_open = state.is_block || shape.begins;
            if !(rejected.ends_transaction && is_open) {
                cells.compare(world, rejected, state, shape);
            }
        }
    }
    cells.finish();
}

fn pairs(shapes: &'static [Shape]) -> Vec<(&'static State, &'static Shape)> {
    share(STATES.iter().flat_map(|state| shapes.iter().map(move |shape| (state, shape))).collect(), 4)
}

/// On a panic, prints the cell and the activity on both sides.
struct UnderWay<'a> {
    world: &'a World,
    cell: &'a str,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the cell {}\n{}", self.cell, self.world.situation());
        }
    }
}

/// Number of cells that all tests have compared.
static COMPARED: AtomicUsize = AtomicUsize::new(0);

/// Cells of one test.
#[derive(Default)]
struct Cells {
    compared: usize,
    differences: Vec<String>,
}

impl Cells {
    fn compare(&mut self, world: &World, rejected: &Rejected, state: &State, shape: &Shape) {
        self.compared += 1;
        let cell = format!("{} {} × {} × {}", rejected.code, rejected.name, state.name, shape.name);
        let under_way = UnderWay { world, cell: &cell };
        let compared = world.compare(rejected, state, shape);
        drop(under_way);
        if let Err(difference) = compared {
            self.differences.push(format!("{cell}\n{difference}"));
        }
    }

    #[track_caller]
    fn finish(self) {
        let all = COMPARED.fetch_add(self.compared, Relaxed) + self.compared;
        println!("{} cells, {all} so far", self.compared);
        let (count, first) = (self.differences.len(), self.differences.first());
        let names: Vec<_> = self.differences.iter().filter_map(|text| text.lines().next()).collect();
        assert_eq!(count, 0, "cells differ:\n{}\n\nthe first: {}", names.join("\n"), first.unwrap());
    }
}
