//! Metrics and health of a real proxy and a real leader: what each counts, who may ask, and what a real Prometheus makes
//! of the dashboard and the alerts in `deploy/`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod health;
mod hostile;
mod labels;
mod names;
mod page;
mod prometheus;
mod world;
