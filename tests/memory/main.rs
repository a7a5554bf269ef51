//! What is measured is the memory of this program or of a proxy at its limit: the rest of the tests would only be in the
//! way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod buffers;
mod keys;
