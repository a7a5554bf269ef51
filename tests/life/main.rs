//! The life of a proxy: start, reload, limits, time-outs, the end; against the real program, by its signals.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod limits;
mod reload;
mod start;
mod stop;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
