//! The phases of the proxy's life, and what sessions are told of them.

use crate::wire::error::ErrorText;
use std::time::Duration;

/// Sessions that are ended have this long to say goodbye to both sides.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// How far the proxy is in its life.
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

/// What sessions are told while they run.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    pub phase: Phase,
    /// How long they may be idle outside of a transaction.
    pub idle_timeout: Option<Duration>,
}

/// What a client is told that comes too late. As the server says it, here and below.
pub fn too_late() -> ErrorText {
    ErrorText::new("57P03", "the database system is shutting down").hint("The proxy is shutting down: connect again.")
}

/// What a client is told whose session ends.
pub fn session_ends() -> ErrorText {
    let text = ErrorText::new("57P01", "terminating connection due to administrator command");
    text.hint("The proxy is shutting down: connect again.")
}
