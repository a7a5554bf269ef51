//! Making metrics from the table, and writing them down.

use super::{Described, MetricsError};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Upper bounds, in seconds: from what a good drain takes to what a lease lives.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics of one process.
#[derive(Debug, Default)]
pub(crate) struct Registered(Registry);

impl Registered {
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

    pub(crate) fn histogram(&self, described: &Described) -> Result<Histogram, MetricsError> {
        let options = HistogramOpts { common_opts: options(described), buckets: SECONDS.to_vec() };
        self.register(Histogram::with_opts(options)?)
    }

    /// All of them, as Prometheus reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // It fails for a metric without series, which a registry leaves out.
        let _ = TextEncoder::new().encode_utf8(&self.0.gather(), &mut text);
        text
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: M) -> Result<M, MetricsError> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

fn options(described: &Described) -> Opts {
    Opts::new(described.name, described.help)
}
