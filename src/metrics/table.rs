//! The table of metrics: names, labels and help texts.
//!
//! The metrics are created from it. A test compares it with the table in docs/operations.md.

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
        pub static METRICS: [Described; 27] = [$($metric),*];
    };
}

/// Values of [`Described::served_by`].
const OF_PROXY: &[&str] = &["proxy"];
const OF_LEADER: &[&str] = &["lead"];
const OF_BOTH: &[&str] = &["proxy", "lead"];

metrics! {
    OF_PROXY WRITES: Counter "fencegate_writes_total" ["database", "resource", "verdict", "mode"]
        "Statements that met a fence, one for each resource they write or lock, by what became of them; a portal once, in however many parts its rows are fetched";
    OF_PROXY FENCE_TOKEN: Gauge "fencegate_fence_token" ["database", "resource"]
        "The highest fencing token of a resource that is not keyed, as this proxy last read it";
    OF_PROXY ADVANCES: Counter "fencegate_advances_total" []
        "Fences that this proxy has raised and drained";
    OF_PROXY DRAIN_SECONDS: Histogram "fencegate_drain_seconds" []
        "How long it took until nobody admitted under a lower token was left, or until that was given up";
    OF_PROXY DRAINED_SESSIONS: Counter "fencegate_drained_sessions_total" ["how"]
        "Admissions that a newer token ended: of an idle session, of one that had not written (released), of a process that was terminated, or that had died";
    OF_PROXY ADMISSIONS: Counter "fencegate_admissions_total" []
        "Sessions that were admitted to a resource under a token";
    OF_PROXY SESSIONS: Gauge "fencegate_sessions" []
        "Sessions that are open, those of the console left out";
    OF_PROXY RELAYED_BYTES: Counter "fencegate_relayed_bytes_total" ["direction"]
        "Bytes of sessions, from clients and to clients";
    OF_PROXY QUERIES: Counter "fencegate_queries_total" []
        "Simple queries, executions of prepared statements and function calls, also those that were rejected";
    OF_PROXY REFUSED: Counter "fencegate_connections_refused_total" ["reason"]
        "Clients that got no session: because of themselves or of a limit (client), because the server refused them (server), or could not be reached (upstream)";
    OF_PROXY RELOADS: Counter "fencegate_policy_reloads_total" ["result"]
        "Reloads of settings, certificates and policies, applied or failed; after a failed one those before stay in force";
    OF_PROXY RELOAD_SUCCESSFUL: Gauge "fencegate_reload_successful" []
        "0 from a reload that failed until one that is applied, otherwise 1";
    OF_PROXY READY: Gauge "fencegate_ready" []
        "1 while /readyz says yes, otherwise 0";
    OF_PROXY UPSTREAM_UP: Gauge "fencegate_upstream_up" []
        "1 while the server that --upstream names accepts connections, otherwise 0";
    OF_PROXY ETCD_UP: Gauge "fencegate_etcd_up" []
        "1 while etcd says who leads the elections of the policies, otherwise 0; without etcd there is none";
    OF_PROXY ELECTION_TOKEN: Gauge "fencegate_election_token" ["election"]
        "The token of the election's leader, 0 while nobody leads; none while that is not known. Not of the elections of keys";
    OF_PROXY LEASE_TOKEN: Gauge "fencegate_lease_token" ["database", "lease"]
        "The token of the lease while it is in force, 0 while nobody leads; none while that is not known. Not of the leases of keys";
    OF_PROXY TOKENS_GONE_BACK: Gauge "fencegate_tokens_gone_back" ["database", "resource"]
        "1 while the token of the leader of the election or lease is below that of the fence, otherwise 0; none while nobody leads";
    OF_PROXY SUPERSEDED: Gauge "fencegate_policies_superseded" ["database"]
        "1 while another proxy's policies count in the database, which were loaded later than those of this proxy, otherwise 0";
    OF_PROXY POLICY_TABLES: Gauge "fencegate_policy_tables" ["state"]
        "Tables that the policies name: those that exist in a database (resolved), those that exist in none (unresolved), and those whose state is unknown (unknown)";
    OF_PROXY QUEUE_USAGE: Gauge "fencegate_notification_queue_usage" []
        "How full the server's queue of notifications (NOTIFY) is, from 0 to 1; from 0.5 on fencegate sends none. None while no control connection listens";
    OF_PROXY BUILD_INFO: Gauge "fencegate_build_info" ["version"]
        "1, with the version of the program";
    OF_LEADER LEADER: Gauge "fencegate_leader" ["election"]
        "1 while this candidate leads the election, otherwise 0";
    OF_LEADER LEADER_TRANSITIONS: Counter "fencegate_leader_transitions_total" ["election"]
        "How often this candidate has begun to lead, or has ceased to";
    OF_LEADER LEASE_LOSSES: Counter "fencegate_lease_losses_total" ["election", "reason"]
        "How often this candidate has ceased to lead: of its own accord (resigned), because nobody answered (unreachable), the coordinator refused to renew the lease (refused), it stood still (expired), the lease was ended (revoked), its key deleted (key_gone), or another leads (superseded)";
    OF_LEADER RENEW_SECONDS: Histogram "fencegate_lease_renew_seconds" []
        "How long renewals of the lease took, those that nobody answered in time too";
    OF_BOTH LOG_LINES_DROPPED: Counter "fencegate_log_lines_dropped_total" []
        "Lines of the log that were dropped because standard error was not read fast enough, or could not be written";
}
