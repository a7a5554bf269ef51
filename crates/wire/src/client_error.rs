//! Errors that a client receives.
//!
//! Owns how an error becomes a message, a SQLSTATE and a metric label.

use super::error::ErrorText;

/// An error that a client receives. Only its text is public.
pub trait ClientError {
    /// The message, DETAIL, HINT and SQLSTATE.
    fn text(&self) -> ErrorText;

    /// The kind of the error, which is also its metric label.
    fn kind(&self) -> ErrorKind;

    /// The reason in the log. Contains no part of a statement.
    fn log_reason(&self) -> String {
        self.text().message
    }
}

/// The kind of a rejection. Metrics, events and the console call it the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// LF001.
    Stale,
    /// LF002.
    Missing,
    /// LF003.
    Invalid,
    /// LF004.
    Unverifiable,
    /// LF005.
    Unissued,
    /// 42501. The server would also refuse the statement.
    Denied,
    /// LF006.
    Unavailable,
}

impl ErrorKind {
    /// The metric label.
    pub fn label(self) -> &'static str {
        match self {
            ErrorKind::Stale => "stale",
            ErrorKind::Missing => "missing",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unverifiable => "unverifiable",
            ErrorKind::Unissued => "unissued",
            ErrorKind::Denied => "denied",
            ErrorKind::Unavailable => "unavailable",
        }
    }
}
