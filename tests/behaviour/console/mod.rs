//! The console from its users' point of view: psql, drivers in both protocols, and clients that violate them.
//!
//! tests/behaviour/authority covers admission, and FENCE RESET with an election.

mod columns;
mod control;
mod drivers;
mod frames;
mod outage;
mod policies;
mod psql;
mod reload;
mod reset;
mod world;

/// Number of commands that SHOW HELP lists.
const COMMANDS: usize = 18;
