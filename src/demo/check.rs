//! Expected and actual results of the scenes.
//!
//! Owns the verdict on the demo. Must never rely on the story itself: it uses only the table's content and the servers'
//! responses.

use std::fmt;

/// A tick in the table, read through a separate direct connection to PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) run_by: Option<String>,
    pub(super) token: Option<i64>,
}

impl Row {
    pub(super) fn of(leader: &str, token: i64) -> Self {
        Row { run_by: Some(leader.to_owned()), token: Some(token) }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.run_by, self.token) {
            (Some(leader), Some(token)) => write!(formatter, "run_by = {leader}, token = {token}"),
            (None, None) => formatter.write_str("not run"),
            (leader, token) => write!(formatter, "run_by = {leader:?}, token = {token:?}"),
        }
    }
}

/// Response of a server or the proxy to a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DemoReply {
    Done(String),
    /// An error with its SQLSTATE.
    Refused {
        severity: String,
        code: String,
        message: String,
        detail: String,
    },
    /// The connection failed without an SQLSTATE.
    Lost(String),
}

impl fmt::Display for DemoReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DemoReply::Done(what) => formatter.write_str(what),
            DemoReply::Refused { severity, code, message, .. } => write!(formatter, "{severity} {code}: {message}"),
            DemoReply::Lost(why) => write!(formatter, "connection lost: {why}"),
        }
    }
}

/// Expected fate of the old leader's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The write succeeds, although it should not.
    Lands,
    /// ERROR LF001; the session continues.
    Rejected,
    /// FATAL LF001, with this outcome in its DETAIL.
    CutOff(&'static str),
}

/// A finished scene, to be compared with the tick in the table.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) tick: &'static str,
    /// Expected fate of the old leader's write.
    pub(super) fate: Fate,
    pub(super) expected: Row,
    /// Response to the new leader's first write.
    pub(super) successor: DemoReply,
    /// Response to the old leader's last statement.
    pub(super) zombie: DemoReply,
}

/// Differences between the expectation and the evidence. Empty if the scene succeeded.
pub(super) fn contradictions(scene: &Scene, row: &Row) -> Vec<String> {
    let Scene { fate, expected, successor, zombie, .. } = scene;
    let mut found = Vec::new();
    if !matches!(successor, DemoReply::Done(_)) {
        found.push(format!("the new leader could not write: {successor}"));
    }
    if !is_expected(*fate, zombie) {
        found.push(format!("the old leader received {zombie:?}, not {fate:?}"));
    }
    if row != expected {
        found.push(format!("the table has \"{row}\", not \"{expected}\""));
    }
    found
}

fn is_expected(fate: Fate, answer: &DemoReply) -> bool {
    match (fate, answer) {
        (Fate::Lands, DemoReply::Done(_)) => true,
        (Fate::Rejected, DemoReply::Refused { severity, code, .. }) => severity == "ERROR" && code == "LF001",
        (Fate::CutOff(outcome), DemoReply::Refused { severity, code, detail, .. }) => {
            severity == "FATAL" && code == "LF001" && detail.ends_with(&format!("outcome={outcome}"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(severity: &str, code: &str, detail: &str) -> DemoReply {
        DemoReply::Refused {
            severity: severity.into(),
            code: code.into(),
            message: String::new(),
            detail: detail.into(),
        }
    }

    /// Contradictions in a scene that expects B's row.
    fn found(fate: Fate, zombie: DemoReply, row: Row) -> Vec<String> {
        let (expected, successor) = (Row::of("B", 42), DemoReply::Done("UPDATE 1".into()));
        contradictions(&Scene { tick: "12:00", fate, expected, successor, zombie }, &row)
    }

    #[test]
    fn expected_results_contradict_nothing() {
        let stale = refused("ERROR", "LF001", "highest=42");
        assert_eq!(found(Fate::Rejected, stale, Row::of("B", 42)), Vec::<String>::new());
        let cut_off = refused("FATAL", "LF001", "highest=42 outcome=rolled_back");
        assert_eq!(found(Fate::CutOff("rolled_back"), cut_off, Row::of("B", 42)), Vec::<String>::new());
    }

    #[test]
    fn a_broken_fence_is_reported() {
        assert_eq!(found(Fate::Rejected, DemoReply::Done("UPDATE 1".into()), Row::of("A", 41)).len(), 2);
        // The reply reports a rejection, but the row has the zombie's value.
        let lied = found(Fate::Rejected, refused("ERROR", "LF001", ""), Row::of("A", 41));
        assert_eq!(lied, ["the table has \"run_by = A, token = 41\", not \"run_by = B, token = 42\""]);
    }

    #[test]
    fn other_errors_do_not_count_as_a_rejection() {
        for zombie in [
            refused("ERROR", "LF006", ""),
            refused("FATAL", "57P01", "outcome=rolled_back"),
            refused("FATAL", "LF001", "outcome=unknown"),
            refused("ERROR", "LF001", "outcome=rolled_back"),
            DemoReply::Lost("connection closed".into()),
        ] {
            let found = found(Fate::CutOff("rolled_back"), zombie, Row::of("B", 42));
            assert_eq!(found.len(), 1, "{found:?}");
        }
    }

    #[test]
    fn a_successor_that_cannot_write_is_reported() {
        let (expected, successor) = (Row::of("B", 42), refused("ERROR", "LF006", ""));
        let zombie = refused("ERROR", "LF001", "");
        let blocked = Scene { tick: "12:00", fate: Fate::Rejected, expected, successor, zombie };
        assert_eq!(contradictions(&blocked, &Row::of("B", 42)).len(), 1);
    }
}
