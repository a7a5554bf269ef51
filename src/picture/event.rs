//! Events that a picture shows, and their times.

use serde::Deserialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// An event. The fields are those of a log line, as documented in docs/reference/events.md.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Event {
    /// Time in a log line. [`Self::at`] is the same time.
    #[serde(default)]
    pub(crate) timestamp: String,
    pub(crate) event: Kind,
    pub(crate) election: Option<String>,
    pub(crate) holder: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) resource: Option<String>,
    pub(crate) token: Option<i64>,
    pub(crate) presented: Option<i64>,
    pub(crate) highest: Option<i64>,
    pub(crate) session: Option<u64>,
    pub(crate) user: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) application_name: Option<String>,
    pub(crate) statement: Option<String>,
    pub(crate) code: Option<String>,
    pub(crate) outcome: Option<String>,
    /// Time of the event; not a field of the line.
    #[serde(skip)]
    pub(crate) at: Micros,
}

/// The events that are shown.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    LeaseAwaited,
    LeaseAcquired,
    LeaseLost,
    SessionAdmitted,
    SessionEnded,
    SessionCutOff,
    StaleWriteBlocked,
    WriteRejected,
    FenceAdvanced,
    FenceReset,
}

impl Event {
    /// An event without fields.
    pub(crate) fn new(event: Kind, at: Micros) -> Self {
        Event {
            timestamp: String::new(),
            event,
            election: None,
            holder: None,
            reason: None,
            database: None,
            resource: None,
            token: None,
            presented: None,
            highest: None,
            session: None,
            user: None,
            address: None,
            application_name: None,
            statement: None,
            code: None,
            outcome: None,
            at,
        }
    }

    /// Session numbers are unique within a proxy; the address distinguishes proxies.
    pub(crate) fn session(&self) -> (u64, String) {
        (self.session.unwrap_or_default(), self.address.clone().unwrap_or_default())
    }
}

/// The time as microseconds since 1970.
pub(crate) fn micros(time: SystemTime) -> Micros {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// Format: `2026-01-31 12:00:00`. `timestamp` is the time in a log line.
pub(super) fn date_and_time(timestamp: &str) -> String {
    timestamp.chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect()
}
