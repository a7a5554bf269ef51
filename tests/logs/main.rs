//! The log, for machines: what each event says, how storms are kept out of it, and what is never in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod events;
mod line;
mod secrets;
mod sessions;
mod storms;
