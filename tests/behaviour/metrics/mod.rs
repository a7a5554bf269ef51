//! Metrics and health of a real proxy and a real leader: what each counts, who may ask, and what a real Prometheus makes
//! of the dashboard and the alerts in `deploy/`.

mod documents;
mod health;
mod hostile;
mod labels;
mod names;
pub mod page;
mod prometheus;
mod status;
pub mod world;
