//! How a proxy is operated while it runs.

pub mod console;
pub mod status;
