//! Phases of the proxy's life, and their signals to sessions.

use fencegate_wire::error::ErrorText;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The SQLSTATE of every refusal that means "try elsewhere, or later". pg_isready counts the server as not accepting
/// connections, and libpq tries the next host of its list, for this one only.
pub const CANNOT_CONNECT_NOW: &str = "57P03";

/// Time for an ended session to send its last messages to both sides.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// A phase of the proxy's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Normal operation.
    #[default]
    Running,
    /// Sessions end as soon as they are idle outside of a transaction.
    Draining,
    /// Sessions end.
    Ending,
}

/// The orders to running sessions.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The phase.
    pub phase: Phase,
    /// Maximum idle time outside a transaction.
    pub idle_timeout: Option<Duration>,
    /// The databases whose sessions are held as soon as they are idle outside of a transaction.
    pub paused: Arc<BTreeSet<String>>,
}

/// The error for a client that connects during shutdown. This and the following errors use the server's words.
pub fn too_late() -> ErrorText {
    ErrorText::new(CANNOT_CONNECT_NOW, "the database system is shutting down")
        .hint("The proxy is shutting down: connect again.")
}

/// The error for a client whose session ends with the proxy.
pub fn session_ends() -> ErrorText {
    ended_by_command().hint("The proxy is shutting down: connect again.")
}

/// The error for a client whose session an operator ends.
pub fn session_killed() -> ErrorText {
    ended_by_command().hint("An operator ended this session with KILL in the proxy's console.")
}

/// The error for a client whose server is not the primary anymore.
pub fn session_replaced() -> ErrorText {
    ended_by_command().hint("Another server is the primary now: connect again.")
}

fn ended_by_command() -> ErrorText {
    ErrorText::new("57P01", "terminating connection due to administrator command")
}

/// The error for a client whose login has waited for too long.
pub fn paused(database: &str) -> ErrorText {
    ErrorText::new(CANNOT_CONNECT_NOW, format!("database \"{database}\" is paused"))
        .hint("An operator paused it in the proxy's console. RESUME ends the pause.")
}
