//! Metrics of `fencegate proxy`, and those of a candidate in an election.

use super::http::{Pages, StatusPage};
use super::{MetricsError, Registered};
use crate::metrics;
use fencegate_fence::FenceMetrics;
use fencegate_leader::{ElectionName, Lost, Meter};
use parking_lot::{Mutex, RwLock};
use prometheus::core::Collector;
use prometheus::{GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

/// Values of the label `verdict`.
pub const VERDICTS: [&str; 8] =
    ["admitted", "stale", "missing", "invalid", "unverifiable", "unissued", "unavailable", "exempt"];

/// Maximum number of databases with their own label; the others share one.
const MOST_DATABASES: usize = 64;
/// Label shared by the remaining databases. The parentheses make a clash with a real name unlikely.
const OTHER_DATABASES: &str = "(other)";

/// Counters of one proxy process. Counting takes a lock only to look up a series by its labels.
#[derive(Debug)]
pub struct Metrics {
    registered: Registered,
    writes: IntCounterVec,
    fence_token: IntGaugeVec,
    /// Steps of the protocol.
    pub fence: FenceMetrics,
    sessions: IntGauge,
    /// Bytes from clients.
    pub bytes_from_clients: IntCounter,
    /// Bytes to clients.
    pub bytes_to_clients: IntCounter,
    /// Simple queries, and executions of prepared statements.
    pub queries: IntCounter,
    /// Refused clients, by reason.
    pub connections_refused: IntCounterVec,
    /// Policy reloads, by result.
    pub policy_reloads: IntCounterVec,
    /// 0 if the last reload failed, otherwise 1.
    pub reload_successful: IntGauge,
    ready: IntGauge,
    upstream_up: IntGauge,
    upstream_role: IntGaugeVec,
    upstream_timeline: IntGaugeVec,
    etcd_up: IntGaugeVec,
    election_token: IntGaugeVec,
    lease_token: IntGaugeVec,
    gone_back: IntGaugeVec,
    superseded: IntGaugeVec,
    policy_tables: IntGaugeVec,
    queue_usage: GaugeVec,
    databases: RwLock<HashSet<String>>,
    /// Held while the gauges are set and written, so that a concurrent scrape does not mix with this one.
    scrape: Mutex<()>,
}

/// Values that are read at each scrape.
#[derive(Debug, Default)]
pub struct Now {
    /// Open sessions.
    pub sessions: usize,
    /// True if the proxy is ready.
    pub ready: bool,
    /// Known fences: database, resource, token.
    pub tokens: Vec<(String, String, i64)>,
    /// True if the server accepts connections.
    pub upstream: bool,
    /// Servers of a list: host, role as in the metric, timeline if known.
    pub servers: Vec<(String, i64, Option<u32>)>,
    /// True if etcd answers; None without etcd.
    pub etcd: Option<bool>,
    /// Known tokens of elections; 0: no leader.
    pub elections: Vec<(String, i64)>,
    /// Known tokens of leases: database, lease, token; 0: no leader.
    pub leases: Vec<(String, String, i64)>,
    /// True if the leader's token is below the fence's: database, resource.
    pub gone_back: Vec<(String, String, bool)>,
    /// True if other policies are in force: database.
    pub superseded: Vec<(String, bool)>,
    /// Number of tables in the policies, by state.
    pub policy_tables: Vec<(&'static str, usize)>,
    /// Usage of the server's notification queue, from 0 to 1, if known.
    pub queue_usage: Option<f64>,
}

/// Number of writes to a resource of a database, by verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteCount {
    /// Database; `(other)` stands for all beyond the first 64.
    pub database: String,
    /// Resource, as named in its policy; empty if the statement does not reveal it.
    pub resource: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// One of [`VERDICTS`].
    pub verdict: String,
    /// Number of writes.
    pub count: u64,
}

impl Metrics {
    /// Creates the counters.
    pub fn new() -> Result<Self, MetricsError> {
        let registered = Registered::new()?;
        let relayed_bytes = registered.counters(&metrics::RELAYED_BYTES)?;
        let build_info = registered.gauges(&metrics::BUILD_INFO)?;
        build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let metrics = Metrics {
            writes: registered.counters(&metrics::WRITES)?,
            fence_token: registered.gauges(&metrics::FENCE_TOKEN)?,
            fence: FenceMetrics {
                advances: registered.counter(&metrics::ADVANCES)?,
                drain_seconds: registered.histogram(&metrics::DRAIN_SECONDS)?,
                drained_sessions: registered.counters(&metrics::DRAINED_SESSIONS)?,
                admissions: registered.counter(&metrics::ADMISSIONS)?,
            },
            sessions: registered.gauge(&metrics::SESSIONS)?,
            bytes_from_clients: relayed_bytes.with_label_values(&["from_client"]),
            bytes_to_clients: relayed_bytes.with_label_values(&["to_client"]),
            queries: registered.counter(&metrics::QUERIES)?,
            connections_refused: registered.counters(&metrics::REFUSED)?,
            policy_reloads: registered.counters(&metrics::RELOADS)?,
            reload_successful: registered.gauge(&metrics::RELOAD_SUCCESSFUL)?,
            ready: registered.gauge(&metrics::READY)?,
            upstream_up: registered.gauge(&metrics::UPSTREAM_UP)?,
            upstream_role: registered.gauges(&metrics::UPSTREAM_ROLE)?,
            upstream_timeline: registered.gauges(&metrics::UPSTREAM_TIMELINE)?,
            etcd_up: registered.gauges(&metrics::ETCD_UP)?,
            election_token: registered.gauges(&metrics::ELECTION_TOKEN)?,
            lease_token: registered.gauges(&metrics::LEASE_TOKEN)?,
            gone_back: registered.gauges(&metrics::TOKENS_GONE_BACK)?,
            superseded: registered.gauges(&metrics::SUPERSEDED)?,
            policy_tables: registered.gauges(&metrics::POLICY_TABLES)?,
            queue_usage: registered.ratios(&metrics::QUEUE_USAGE)?,
            databases: RwLock::default(),
            scrape: Mutex::default(),
            registered,
        };
        metrics.reload_successful.set(1);
        // Created at startup, so that the first event already shows as a rate.
        for how in ["idle", "released", "terminated", "dead"] {
            metrics.fence.drained_sessions.with_label_values(&[how]);
        }
        for reason in ["client", "server", "upstream"] {
            metrics.connections_refused.with_label_values(&[reason]);
        }
        for result in ["applied", "failed"] {
            metrics.policy_reloads.with_label_values(&[result]);
        }
        Ok(metrics)
    }

    /// Counter of the writes with these labels. Keep it for frequent use: the lookup takes a lock.
    pub fn write(&self, database: &str, resource: &str, mode: &str, verdict: &str) -> IntCounter {
        self.writes.with_label_values(&[self.label(database), resource, verdict, mode])
    }

    /// Creates the counters of a resource, so that they start at 0.
    pub fn expect_writes(&self, database: &str, resource: &str, mode: &str) {
        for verdict in VERDICTS {
            self.write(database, resource, mode, verdict);
        }
    }

    /// All counts of writes, sorted.
    pub fn writes(&self) -> Vec<WriteCount> {
        let families = self.writes.collect();
        let series = families.iter().flat_map(|family| family.get_metric());
        let mut counts: Vec<_> = series
            .map(|series| {
                let label = |name: &str| {
                    let found = series.get_label().iter().find(|label| label.name() == name);
                    found.map(|label| label.value().to_owned()).unwrap_or_default()
                };
                WriteCount {
                    database: label("database"),
                    resource: label("resource"),
                    mode: label("mode"),
                    verdict: label("verdict"),
                    // The counter is always a whole number, so the conversion is exact.
                    count: series.get_counter().get_value() as u64,
                }
            })
            .collect();
        counts.sort();
        counts
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self, now: Now) -> String {
        let _alone = self.scrape.lock();
        self.sessions.set(i64::try_from(now.sessions).unwrap_or(i64::MAX));
        self.ready.set(now.ready.into());
        self.upstream_up.set(now.upstream.into());
        let of_moment = [
            &self.fence_token,
            &self.etcd_up,
            &self.election_token,
            &self.lease_token,
            &self.gone_back,
            &self.superseded,
        ];
        of_moment.iter().for_each(|gauges| gauges.reset());
        self.queue_usage.reset();
        now.queue_usage.iter().for_each(|usage| self.queue_usage.with_label_values::<&str>(&[]).set(*usage));
        now.etcd.iter().for_each(|is_up| self.etcd_up.with_label_values::<&str>(&[]).set((*is_up).into()));
        for (host, role, timeline) in &now.servers {
            self.upstream_role.with_label_values(&[host]).set(*role);
            timeline.iter().for_each(|it| self.upstream_timeline.with_label_values(&[host]).set((*it).into()));
        }
        for (election, token) in &now.elections {
            self.election_token.with_label_values(&[election]).set(*token);
        }
        for (database, lease, token) in &now.leases {
            self.set(&self.lease_token, database, lease, *token);
        }
        for (database, resource, is_so) in &now.gone_back {
            self.set(&self.gone_back, database, resource, (*is_so).into());
        }
        for (database, is_so) in &now.superseded {
            // One of the databases that share the label is enough.
            let gauge = self.superseded.with_label_values(&[self.label(database)]);
            gauge.set(gauge.get().max((*is_so).into()));
        }
        for (state, tables) in now.policy_tables {
            self.policy_tables.with_label_values(&[state]).set(i64::try_from(tables).unwrap_or(i64::MAX));
        }
        for (database, resource, token) in &now.tokens {
            self.set(&self.fence_token, database, resource, *token);
        }
        self.registered.text()
    }

    /// Sets the gauge of a resource or lease, unless the database shares a label: the others there have other values.
    fn set(&self, gauges: &IntGaugeVec, database: &str, name: &str, value: i64) {
        let database = self.label(database);
        if database != OTHER_DATABASES {
            gauges.with_label_values(&[database, name]).set(value);
        }
    }

    /// Label of the database.
    fn label<'a>(&self, database: &'a str) -> &'a str {
        let known = |databases: &HashSet<String>| databases.contains(database);
        if known(&self.databases.read()) {
            return database;
        }
        let mut databases = self.databases.write();
        if databases.len() >= MOST_DATABASES && !known(&databases) {
            return OTHER_DATABASES;
        }
        databases.insert(database.to_owned());
        database
    }
}

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
            leader: registered.gauges(&metrics::LEADER)?,
            transitions: registered.counters(&metrics::LEADER_TRANSITIONS)?,
            losses: registered.counters(&metrics::LEASE_LOSSES)?,
            renew_seconds: registered.histogram(&metrics::RENEW_SECONDS)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn count(metrics: &Metrics, database: &str, verdict: &str) -> u64 {
        let counts = metrics.writes();
        counts.iter().filter(|it| it.database == database && it.verdict == verdict).map(|it| it.count).sum()
    }

    #[test]
    fn writes_are_counted_by_their_labels() {
        let metrics = Metrics::new().unwrap();
        metrics.expect_writes("app", "r", "enforce");
        assert_eq!(metrics.writes().len(), VERDICTS.len());
        metrics.write("app", "r", "enforce", "stale").inc();
        metrics.write("app", "", "enforce", "unverifiable").inc_by(2);
        assert_eq!((count(&metrics, "app", "stale"), count(&metrics, "app", "unverifiable")), (1, 2));
    }

    #[test]
    fn databases_beyond_the_limit_are_counted_together() {
        let metrics = Metrics::new().unwrap();
        metrics.write("other", "r", "enforce", "stale").inc();
        for number in 0..MOST_DATABASES + 2 {
            metrics.write(&format!("d{number}"), "r", "enforce", "stale").inc();
        }
        assert_eq!((count(&metrics, "d0", "stale"), count(&metrics, OTHER_DATABASES, "stale")), (1, 3));
        assert_eq!(count(&metrics, "other", "stale"), 1, "a database may have that name");
        let tokens = vec![("d0".into(), "r".into(), 7), ("unheard of".into(), "r".into(), 8)];
        let text = metrics.text(Now { tokens, ..Now::default() });
        assert_eq!(text.matches("\nfencegate_fence_token{").count(), 1, "{text}");
    }

    #[test]
    fn a_removed_fence_has_no_token() {
        let metrics = Metrics::new().unwrap();
        let known = Now { tokens: vec![("d".into(), "r".into(), 7)], ..Now::default() };
        assert!(metrics.text(known).contains("fencegate_fence_token{database=\"d\",resource=\"r\"} 7\n"));
        assert!(!metrics.text(Now::default()).contains("fencegate_fence_token{"));
    }
}
