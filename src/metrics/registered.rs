//! Creating metrics from the table, and formatting them.

use super::table::LOG_LINES_DROPPED;
use super::{Described, MetricsError};
use crate::log_queue::dropped_lines;
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Upper bounds in seconds, from a fast drain to the TTL of a lease.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics of one process.
#[derive(Debug)]
pub(crate) struct Registered {
    registry: Registry,
    /// Locked while the counter is updated.
    log_lines_dropped: Mutex<IntCounter>,
}

impl Registered {
    /// Creates the metrics that every process has.
    pub(crate) fn new() -> Result<Self, MetricsError> {
        let log_lines_dropped = IntCounter::with_opts(options(&LOG_LINES_DROPPED))?;
        let registry = Registry::new();
        registry.register(Box::new(log_lines_dropped.clone()))?;
        Ok(Registered { registry, log_lines_dropped: Mutex::new(log_lines_dropped) })
    }

    pub(crate) fn counter(&self, described: &Described) -> Result<IntCounter, MetricsError> {
        self.register(IntCounter::with_opts(options(described))?)
    }

    pub(crate) fn counters(&self, described: &Described) -> Result<IntCounterVec, MetricsError> {
        self.register(IntCounterVec::new(options(described), described.labels)?)
    }

    pub(crate) fn gauge(&self, described: &Described) -> Result<IntGauge, MetricsError> {
        self.register(IntGauge::with_opts(options(described))?)
    }

    pub(crate) fn gauges(&self, described: &Described) -> Result<IntGaugeVec, MetricsError> {
        self.register(IntGaugeVec::new(options(described), described.labels)?)
    }

    /// Gauges from 0 to 1.
    pub(crate) fn ratios(&self, described: &Described) -> Result<GaugeVec, MetricsError> {
        self.register(GaugeVec::new(options(described), described.labels)?)
    }

    pub(crate) fn histogram(&self, described: &Described) -> Result<Histogram, MetricsError> {
        let options = HistogramOpts { common_opts: options(described), buckets: SECONDS.to_vec() };
        self.register(Histogram::with_opts(options)?)
    }

    /// All metrics in Prometheus's text format.
    pub(crate) fn text(&self) -> String {
        let dropped = self.log_lines_dropped.lock();
        dropped.inc_by(dropped_lines().saturating_sub(dropped.get()));
        drop(dropped);
        let mut text = String::new();
        // Fails only for a metric without series, which the registry omits.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: M) -> Result<M, MetricsError> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

fn options(described: &Described) -> Opts {
    Opts::new(described.name, described.help)
}
