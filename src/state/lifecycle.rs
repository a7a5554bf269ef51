//! The phases of the proxy's life, and what sessions are told of them.

use crate::wire::error::ErrorText;
use std::time::Duration;

/// Sessions that are ended have this long to say goodbye to both sides.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// A phase of the proxy's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It does its work.
    #[default]
    Running,
    /// Sessions end as soon as they are idle outside of a transaction.
    Draining,
    /// Sessions end.
    Ending,
}

/// The orders to running sessions.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    pub phase: Phase,
    /// How long they may be idle outside of a transaction.
    pub idle_timeout: Option<Duration>,
}

/// The error for a client that connects too late. In the server's words, here and below.
pub fn too_late() -> ErrorText {
    ErrorText::new("57P03", "the database system is shutting down").hint("The proxy is shutting down: connect again.")
}

/// The error for a client whose session ends.
pub fn session_ends() -> ErrorText {
    let text = ErrorText::new("57P01", "terminating connection due to administrator command");
    text.hint("The proxy is shutting down: connect again.")
}
