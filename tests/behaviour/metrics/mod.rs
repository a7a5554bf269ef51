//! Metrics and health of a real proxy and a real leader: their values, access limits, and the dashboard and alerts of
//! `deploy/` in a real Prometheus.

mod documents;
mod health;
mod hostile;
mod labels;
mod names;
pub mod page;
mod prometheus;
mod status;
pub mod world;
