//! The console, as its users see it: psql, drivers in both protocols, and whoever breaks them.
//!
//! Who gets in, and what FENCE RESET does with an election, is in tests/behaviour/authority.

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

/// The commands that SHOW HELP lists.
const COMMANDS: usize = 18;
