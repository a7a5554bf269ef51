//! Hostile clients, hostile servers and hostile texts: bounded memory, a clear error, and no other session harmed.
//!
//! Each test has a bystander, whose session goes on through the same proxy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bombs;
mod clients;
mod encodings;
mod floods;
mod servers;
mod statements;
#[path = "../support/mod.rs"]
mod support;
mod world;
