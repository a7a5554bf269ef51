//! Behavior of the programs with real servers: a module per subject.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod authority;
mod builds;
mod check;
mod command_line;
mod compose;
mod console;
mod copies;
mod decoders;
mod drain;
mod election;
mod elsewhere;
mod etcd;
mod failures;
mod fence;
mod field;
mod guard;
mod harness;
mod holes;
mod hostile;
mod hosts;
mod hygiene;
mod keyed;
mod keys;
mod layers;
mod lead;
mod leaders;
mod leases;
mod life;
mod literals;
mod logs;
mod managed;
mod metrics;
mod missing_tables;
mod observe;
mod opaque;
mod operations;
mod pages;
mod parameter;
mod passwords;
mod policies;
mod policy_check;
mod prepared;
mod proxy_protocol;
mod reach;
mod reads;
mod reference;
mod refusals_cli;
mod rejections;
mod relay;
mod remove;
mod robustness;
mod search_path;
mod servers;
mod startup;
mod strangers;
mod superseded;
mod take_over;
mod tls;
mod tokens;
mod transparency;
mod words;
