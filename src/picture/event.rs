//! Events that a picture shows, their times, and signs of life: when a leader acted under its token, and from these when it
//! stalled, or was killed.
//!
//! Must never show a leader as stalled while one of its sessions may have been writing: the log has only a session's first write.

use super::history::Term;
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

/// Signs of life of a node under a token.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Writes, admitted and rejected, in order.
    signs: Vec<Micros>,
    /// Sessions from the first write to the end, if they have ended.
    sessions: Vec<((u64, String), Micros, Option<Micros>)>,
}

impl Life {
    /// Records a rejected write.
    pub(super) fn sign(&mut self, at: Micros) {
        self.signs.push(at);
    }

    /// Records a session's first admitted write.
    pub(super) fn write(&mut self, at: Micros, session: (u64, String)) {
        self.sign(at);
        self.sessions.push((session, at, None));
    }

    /// Records the end of a session.
    pub(super) fn end(&mut self, at: Micros, session: &(u64, String)) {
        self.sessions.iter_mut().filter(|it| it.0 == *session).for_each(|it| it.2 = Some(at));
    }

    /// Determines when the leader stalled, and when it ended without a line in its log.
    pub(super) fn settle(&self, term: &mut Term, end: Micros) {
        let has_expired = term.reason.as_deref() == Some("expired");
        let Some(overtaken) = term.overtaken.or(term.to.filter(|_| has_expired)) else { return };
        let next = self.signs.iter().copied().find(|it| *it > overtaken);
        if term.resource.is_some() {
            // A client that does not return may have ended or be idle.
            term.stalled = next.map(|next| (overtaken, next));
            term.to = Some(next.and(self.signs.last().copied()).unwrap_or(overtaken));
            return;
        }
        if term.to.is_some_and(|to| to < overtaken) || (term.to.is_some() && !has_expired) {
            return;
        }
        let silent = if self.is_open(overtaken) { overtaken } else { self.last(overtaken).unwrap_or(term.from) };
        match (next, term.to) {
            (None, None) if self.is_open(overtaken) => term.stalled = Some((silent, end)),
            // Killed: its sessions have ended, and nothing follows.
            (None, None) if silent > term.from => term.to = Some(silent),
            (None, None) => {
                term.stalled = Some((term.from, overtaken));
                term.to = Some(overtaken);
            }
            (next, to) => term.stalled = next.into_iter().chain(to).min().map(|next| (silent, next)),
        }
    }

    /// True if a session that has written was open then.
    fn is_open(&self, at: Micros) -> bool {
        self.sessions.iter().any(|(_, from, to)| *from <= at && to.is_none_or(|to| to > at))
    }

    /// The last sign of life until then.
    fn last(&self, at: Micros) -> Option<Micros> {
        let ends = self.sessions.iter().filter_map(|it| it.2);
        self.signs.iter().copied().chain(ends).filter(|it| *it <= at).max()
    }
}
