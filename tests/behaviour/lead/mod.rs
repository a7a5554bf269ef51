//! `fencegate lead` against a real etcd, and against leases in PostgreSQL: a command runs while leadership lasts, and no process of it longer.
//!
//! Commands are small shell scripts that leave files in a folder: what they wrote is what the tests wait for.

mod campaign;
mod command;
mod conflict;
mod death;
mod log;
mod loss;
pub mod stage;
mod standstill;
mod terminal;
