//! Metrics for Prometheus, and the HTTP server that serves them.
//!
//! Owns the table of metrics, from which they are created: names, labels, help texts, and the bounds on labels. A test compares the
//! table with docs/reference/metrics.md. Imports only `waiting_connections`, `listen` and `log_queue` of this crate, so that all
//! layers above can count.
//! Must never use a label that an unauthenticated client supplied, nor a label per key of a keyed resource.

pub mod http;
mod proxy;

pub use proxy::{LeaderMetrics, Metrics, Now, VERDICTS, WriteCount};

use crate::log_queue::dropped_lines;
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Counter of one series.
pub type Counter = prometheus::IntCounter;

/// Why a metric cannot be created: its name is invalid or already in use.
pub type MetricsError = prometheus::Error;

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

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    /// Name, including the unit.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricKind,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Help text.
    pub help: &'static str,
    /// Subcommands that serve the metric.
    pub served_by: &'static [&'static str],
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases, from 0 at process start.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Distribution of durations, in seconds.
    Histogram,
}

impl MetricKind {
    /// Name of the type in Prometheus.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Defines a constant per metric, and [`METRICS`].
macro_rules! metrics {
    ($($served_by:ident $metric:ident: $kind:ident $name:literal $labels:tt $help:literal;)*) => {
        $(pub(crate) const $metric: Described =
            Described { name: $name, kind: MetricKind::$kind, labels: &$labels, help: $help, served_by: $served_by };)*

        /// All metrics.
        pub static METRICS: [Described; 29] = [$($metric),*];
    };
}

/// Values of [`Described::served_by`].
const OF_PROXY: &[&str] = &["proxy"];
const OF_LEADER: &[&str] = &["lead"];
const OF_BOTH: &[&str] = &["proxy", "lead"];

metrics! {
    OF_PROXY WRITES: Counter "fencegate_writes_total" ["database", "resource", "verdict", "mode"]
        "Writes to fences, one for each resource that a statement writes or locks, by verdict. A portal counts once, however many fetches it needs";
    OF_PROXY FENCE_TOKEN: Gauge "fencegate_fence_token" ["database", "resource"]
        "Highest fencing token of a resource without keys, as this proxy last read it";
    OF_PROXY ADVANCES: Counter "fencegate_advances_total" []
        "Fences that this proxy has raised and drained";
    OF_PROXY DRAIN_SECONDS: Histogram "fencegate_drain_seconds" []
        "Duration of drains: the time until no session with a lower token remained, or until the proxy gave up";
    OF_PROXY DRAINED_SESSIONS: Counter "fencegate_drained_sessions_total" ["how"]
        "Admissions that a newer token ended: the session was idle (idle) or had not written (released), or the server process was terminated (terminated) or had died (dead)";
    OF_PROXY ADMISSIONS: Counter "fencegate_admissions_total" []
        "Sessions that were admitted to a resource under a token";
    OF_PROXY SESSIONS: Gauge "fencegate_sessions" []
        "Open sessions, without those of the console";
    OF_PROXY RELAYED_BYTES: Counter "fencegate_relayed_bytes_total" ["direction"]
        "Bytes relayed for sessions, from clients and to clients";
    OF_PROXY QUERIES: Counter "fencegate_queries_total" []
        "Simple queries, executions of prepared statements and function calls, including rejected ones";
    OF_PROXY REFUSED: Counter "fencegate_connections_refused_total" ["reason"]
        "Clients without a session, by reason: the client itself or a limit (client), a refusal by the server (server), or an unreachable server (upstream)";
    OF_PROXY RELOADS: Counter "fencegate_policy_reloads_total" ["result"]
        "Reloads of settings, certificates and policies, by result. After a failed reload the previous configuration stays in force";
    OF_PROXY RELOAD_SUCCESSFUL: Gauge "fencegate_reload_successful" []
        "1 if the last reload was applied or there was none, 0 if it failed";
    OF_PROXY READY: Gauge "fencegate_ready" []
        "1 while /readyz reports ready, otherwise 0";
    OF_PROXY UPSTREAM_UP: Gauge "fencegate_upstream_up" []
        "1 while the server of --upstream accepts connections, otherwise 0";
    OF_PROXY UPSTREAM_ROLE: Gauge "fencegate_upstream_role" ["host"]
        "Role of each server in a list: 2 the primary, 1 a standby, 0 unknown, -1 a server that accepts writes and is not the primary. Absent if --upstream has only one server";
    OF_PROXY UPSTREAM_TIMELINE: Gauge "fencegate_upstream_timeline" ["host"]
        "Timeline of each server in a list, when it was last seen; absent before";
    OF_PROXY ETCD_UP: Gauge "fencegate_etcd_up" []
        "1 while etcd reports the leaders of the policies' elections, otherwise 0; absent without etcd";
    OF_PROXY ELECTION_TOKEN: Gauge "fencegate_election_token" ["election"]
        "Token of the election's leader, 0 without a leader; absent while unknown. Elections with keys are not included";
    OF_PROXY LEASE_TOKEN: Gauge "fencegate_lease_token" ["database", "lease"]
        "Token of the lease while it is in force, 0 without a leader; absent while unknown. Leases with keys are not included";
    OF_PROXY TOKENS_GONE_BACK: Gauge "fencegate_tokens_gone_back" ["database", "resource"]
        "1 while the token of the election's or lease's leader is below the fence's, otherwise 0; absent without a leader";
    OF_PROXY SUPERSEDED: Gauge "fencegate_policies_superseded" ["database"]
        "1 while newer policies of another proxy are in force in the database, otherwise 0";
    OF_PROXY POLICY_TABLES: Gauge "fencegate_policy_tables" ["state"]
        "Tables in the policies: those that exist in a database (resolved), those that exist in none (unresolved), and those whose state is unknown (unknown)";
    OF_PROXY QUEUE_USAGE: Gauge "fencegate_notification_queue_usage" []
        "Usage of the server's notification queue (NOTIFY), from 0 to 1. From 0.5 on, fencegate sends no notifications. Absent while no control connection listens";
    OF_PROXY BUILD_INFO: Gauge "fencegate_build_info" ["version"]
        "Always 1; the label has the program's version";
    OF_LEADER LEADER: Gauge "fencegate_leader" ["election"]
        "1 while this candidate leads the election, otherwise 0";
    OF_LEADER LEADER_TRANSITIONS: Counter "fencegate_leader_transitions_total" ["election"]
        "Number of times that this candidate became the leader or stopped leading";
    OF_LEADER LEASE_LOSSES: Counter "fencegate_lease_losses_total" ["election", "reason"]
        "Number of times that this candidate stopped leading, by reason: it resigned (resigned), no renewal was answered (unreachable), the coordinator refused to renew the lease (refused), the process was suspended (expired), the lease was revoked (revoked), its key was deleted (key_gone), or another candidate leads (superseded)";
    OF_LEADER RENEW_SECONDS: Histogram "fencegate_lease_renew_seconds" []
        "Duration of lease renewals, including unanswered ones";
    OF_BOTH LOG_LINES_DROPPED: Counter "fencegate_log_lines_dropped_total" []
        "Log lines dropped because standard error was not read fast enough or could not be written";
}
