//! Tests that take long, need the network, or flood the machine. Run by `make soak`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod clients;
mod compat;
mod corpus;
mod deb;
mod demo;
mod drivers;
mod examples;
mod failover;
mod faults;
mod frameworks;
mod haproxy;
mod kubernetes;
mod languages;
mod pgbench;
mod pgbouncer;
mod readme;
mod status;
mod tokens;
mod torture;
