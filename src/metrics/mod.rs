//! Metrics for Prometheus, and the HTTP server that serves them.
//!
//! Owns the names of the metrics and the bounds on their labels. Imports only `waiting_connections`, `listen` and
//! `log_queue` of this crate, so that all layers above can count.
//! Must never use a label that an unauthenticated client supplied, nor a label per key of a keyed resource.

pub mod http;
mod leader;
mod proxy;
mod registered;
pub(crate) mod table;

pub use leader::LeaderMetrics;
pub use proxy::{Metrics, Now, VERDICTS, WriteCount};
pub(crate) use registered::Registered;
pub use table::{Described, METRICS, MetricKind};

/// Counter of one series.
pub type Counter = prometheus::IntCounter;

/// Why a metric cannot be created: its name is invalid or already in use.
pub type MetricsError = prometheus::Error;
