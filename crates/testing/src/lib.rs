//! Test support shared by several crates.
//!
//! Owns seeds, random numbers, hostile texts, and properties of decoders. Must never be part of the program.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "only tests use it")]

pub mod bombs;
pub mod dice;
pub mod length;
pub mod literals;
pub mod properties;
