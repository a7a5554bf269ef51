//! `fencegate lead` against a real etcd: a command runs while leadership lasts, and no process of it longer.
//!
//! Commands are small shell scripts that leave files in a folder: what they wrote is what the tests wait for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod campaign;
mod command;
mod death;
mod log;
mod loss;
mod stage;
mod standstill;
mod terminal;
