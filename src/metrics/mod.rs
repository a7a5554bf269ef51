//! What is counted and measured, for Prometheus, and the server that shows it.
//!
//! Owns the names of the metrics and the bounds on their labels. Imports how to listen, and what `leader` is counted by: else nothing of ours, so that everybody may count.
//! Must never take a label from a client that no server has let in, nor one for each key of a keyed resource.

pub mod http;
mod leader;
mod proxy;
mod registered;
mod table;

pub use leader::LeaderMetrics;
pub use proxy::{Metrics, Now, VERDICTS, WriteCount};
pub use table::{Described, Kind, METRICS};

/// A count of one series.
pub type Counter = prometheus::IntCounter;

/// A metric could not be made: two have the same name, or its name is none.
pub type MetricsError = prometheus::Error;
