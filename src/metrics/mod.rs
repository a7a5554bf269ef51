//! What is counted and measured, for Prometheus, and the server that shows it.
//!
//! Owns the names of the metrics and the bounds on their labels. Imports only `crowd`, `listen` and `log_queue` of this crate,
//! so that all layers above may count.
//! Must never take a label from a client that no server has let in, nor one for each key of a keyed resource.

pub mod http;
mod proxy;
mod registered;
pub(crate) mod table;

pub use proxy::{Metrics, Now, VERDICTS, WriteCount};
pub(crate) use registered::Registered;
pub use table::{Described, METRICS, MetricKind};

/// A count of one series.
pub type Counter = prometheus::IntCounter;

/// A metric could not be made: two have the same name, or its name is none.
pub type MetricsError = prometheus::Error;
