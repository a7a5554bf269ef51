//! The identity of a session's server process.
//!
//! Owns the facts that distinguish one server process from every other, and the reasons why they may be unknown. Must
//! never contain a fact that the session itself has not reported: Admit compares the identity with what a control
//! connection sees.

/// The identity of a session's server process, as the session itself reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `pg_backend_pid()`, which also equals the process id in BackendKeyData.
    pub pid: i32,
    /// `extract(epoch from backend_start)` of pg_stat_get_activity, as the text of a numeric: exact to the µs.
    pub backend_start: String,
    /// `system_identifier` of `pg_control_system()`.
    pub system_identifier: String,
    /// `extract(epoch from pg_postmaster_start_time())`, as the text of a numeric.
    pub postmaster_start: String,
}

/// Why the identity of a session's server process is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A physical replication session cannot report its identity.
    #[error("it is a physical replication session")]
    PhysicalReplication,
    /// The session returned no row.
    #[error("the server did not identify the session's process")]
    NoAnswer,
    /// The session's row lacks a value.
    #[error("the server did not fully identify the session's process")]
    Incomplete,
    /// The reported process id differs from the one in BackendKeyData.
    #[error("the session does not keep its server process: is there a pooler between the proxy and the server?")]
    OtherProcess,
    /// Something stands between the proxy and the server, and a notification did not reach the idle session.
    #[error("a notification did not reach the idle session: is there a pooler between the proxy and the server?")]
    NotNotified,
    /// Something stands between the proxy and the server, and the proxy could not find out more. With the reason.
    #[error(
        "the connection to the server is forwarded, and nothing proves that the session keeps its server process: {0}"
    )]
    Unproved(String),
    /// The server's error message.
    #[error("{0}")]
    Refused(String),
}
