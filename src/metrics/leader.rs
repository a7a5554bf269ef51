//! The metrics of a candidate in an election.

use super::http::{Pages, StatusPage};
use super::{MetricsError, Registered, table};
use fencegate_leader::{ElectionName, Lost, Meter};
use prometheus::{Histogram, IntCounterVec, IntGaugeVec};
use std::convert::Infallible;
use std::time::Duration;

/// Counters of a process that campaigns in one or more elections.
#[derive(Debug)]
pub struct LeaderMetrics {
    registered: Registered,
    leader: IntGaugeVec,
    transitions: IntCounterVec,
    losses: IntCounterVec,
    renew_seconds: Histogram,
}

impl LeaderMetrics {
    /// Creates the counters.
    pub fn new() -> Result<Self, MetricsError> {
        let registered = Registered::new()?;
        Ok(LeaderMetrics {
            leader: registered.gauges(&table::LEADER)?,
            transitions: registered.counters(&table::LEADER_TRANSITIONS)?,
            losses: registered.counters(&table::LEASE_LOSSES)?,
            renew_seconds: registered.histogram(&table::RENEW_SECONDS)?,
            registered,
        })
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        self.registered.text()
    }
}

impl Meter for LeaderMetrics {
    fn campaigns(&self, election: &ElectionName) {
        self.leader.with_label_values(&[election.as_str()]);
        self.transitions.with_label_values(&[election.as_str()]);
        for reason in Lost::LABELS {
            self.losses.with_label_values(&[election.as_str(), reason]);
        }
    }

    fn leads(&self, election: &ElectionName) {
        self.leader.with_label_values(&[election.as_str()]).set(1);
        self.transitions.with_label_values(&[election.as_str()]).inc();
    }

    fn lost(&self, election: &ElectionName, lost: &Lost) {
        self.leader.with_label_values(&[election.as_str()]).set(0);
        self.transitions.with_label_values(&[election.as_str()]).inc();
        self.losses.with_label_values(&[election.as_str(), lost.label()]).inc();
    }

    fn renewed(&self, took: Duration) {
        self.renew_seconds.observe(took.as_secs_f64());
    }
}

impl Pages for LeaderMetrics {
    const PATHS: &'static [&'static str] = &["/metrics", "/healthz", "/readyz"];

    /// A candidate is ready while its process runs.
    type NotReady = Infallible;

    async fn metrics(&self) -> String {
        self.text()
    }

    async fn ready(&self) -> Result<Vec<String>, Infallible> {
        Ok(Vec::new())
    }

    async fn status(&self) -> Option<StatusPage> {
        None
    }
}
