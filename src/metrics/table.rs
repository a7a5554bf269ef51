//! The table of metrics: what each is called, how it is labelled, and what it says.
//!
//! The metrics themselves and the table in docs/operations.md are made from it or held against it.

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name, with the unit.
    pub name: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// What tells its series apart.
    pub labels: &'static [&'static str],
    /// What it says, in words.
    pub help: &'static str,
    /// It is served by `fencegate lead`; the others are by `fencegate proxy`.
    pub of_leader: bool,
}

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Up only, from 0 at the start of the process.
    Counter,
    /// Up and down.
    Gauge,
    /// It counts how long things took, in seconds.
    Histogram,
}

impl Kind {
    /// As Prometheus calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

const fn of_proxy(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Described {
    Described { name, kind, labels, help, of_leader: false }
}

const fn of_leader(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Described {
    Described { name, kind, labels, help, of_leader: true }
}

pub(crate) const WRITES: Described = of_proxy(
    "fencegate_writes_total",
    Kind::Counter,
    &["database", "resource", "verdict", "mode"],
    "Statements that met a fence, one for each resource they write or lock, by what became of them; a portal once, in however many parts its rows are fetched",
);
pub(crate) const FENCE_TOKEN: Described = of_proxy(
    "fencegate_fence_token",
    Kind::Gauge,
    &["database", "resource"],
    "The highest fencing token of a resource that is not keyed, as this proxy last read it",
);
pub(crate) const ADVANCES: Described =
    of_proxy("fencegate_advances_total", Kind::Counter, &[], "Fences that this proxy has raised and drained");
pub(crate) const DRAIN_SECONDS: Described = of_proxy(
    "fencegate_drain_seconds",
    Kind::Histogram,
    &[],
    "How long it took until nobody admitted under a lower token was left, or until that was given up",
);
pub(crate) const DRAINED_SESSIONS: Described = of_proxy(
    "fencegate_drained_sessions_total",
    Kind::Counter,
    &["how"],
    "Admissions that a newer token ended: of an idle session, of one that had not written (released), of a process that was terminated, or that had died",
);
pub(crate) const ADMISSIONS: Described = of_proxy(
    "fencegate_admissions_total",
    Kind::Counter,
    &[],
    "Sessions that were admitted to a resource under a token",
);
pub(crate) const SESSIONS: Described =
    of_proxy("fencegate_sessions", Kind::Gauge, &[], "Sessions that are open, those of the console left out");
pub(crate) const RELAYED_BYTES: Described = of_proxy(
    "fencegate_relayed_bytes_total",
    Kind::Counter,
    &["direction"],
    "Bytes of sessions, from clients and to clients",
);
pub(crate) const QUERIES: Described = of_proxy(
    "fencegate_queries_total",
    Kind::Counter,
    &[],
    "Simple queries, executions of prepared statements and function calls, also those that were rejected",
);
pub(crate) const REFUSED: Described = of_proxy(
    "fencegate_connections_refused_total",
    Kind::Counter,
    &["reason"],
    "Clients that got no session: because of themselves or of a limit (client), because the server refused them (server), or could not be reached (upstream)",
);
pub(crate) const RELOADS: Described = of_proxy(
    "fencegate_policy_reloads_total",
    Kind::Counter,
    &["result"],
    "Reloads of settings, certificates and policies, applied or failed; after a failed one those before stay in force",
);
pub(crate) const RELOAD_SUCCESSFUL: Described = of_proxy(
    "fencegate_reload_successful",
    Kind::Gauge,
    &[],
    "0 from a reload that failed until one that is applied, otherwise 1",
);
pub(crate) const READY: Described =
    of_proxy("fencegate_ready", Kind::Gauge, &[], "1 while /readyz says yes, otherwise 0");
pub(crate) const BUILD_INFO: Described =
    of_proxy("fencegate_build_info", Kind::Gauge, &["version"], "1, with the version of the program");
pub(crate) const LEADER: Described =
    of_leader("fencegate_leader", Kind::Gauge, &["election"], "1 while this candidate leads the election, otherwise 0");
pub(crate) const LEADER_TRANSITIONS: Described = of_leader(
    "fencegate_leader_transitions_total",
    Kind::Counter,
    &["election"],
    "How often this candidate has begun to lead, or has ceased to",
);
pub(crate) const RENEW_SECONDS: Described = of_leader(
    "fencegate_lease_renew_seconds",
    Kind::Histogram,
    &[],
    "How long renewals of the lease took, those that nobody answered in time too",
);

/// All metrics.
pub static METRICS: [Described; 17] = [
    WRITES,
    FENCE_TOKEN,
    ADVANCES,
    DRAIN_SECONDS,
    DRAINED_SESSIONS,
    ADMISSIONS,
    SESSIONS,
    RELAYED_BYTES,
    QUERIES,
    REFUSED,
    RELOADS,
    RELOAD_SUCCESSFUL,
    READY,
    BUILD_INFO,
    LEADER,
    LEADER_TRANSITIONS,
    RENEW_SECONDS,
];
