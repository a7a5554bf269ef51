//! Tests that measure memory: of a proxy with the longest messages, and of this process. No other test runs in this
//! process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod buffers;
mod keys;
mod sessions;
