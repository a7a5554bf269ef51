//! Output of the demo (one line per event, with the time since the start of its scene), and why the demo could not run.
//!
//! Owns the formatting. Must never print colors to an output that is not a terminal.

use super::check::DemoReply;
use crate::stage::StageError;
use fencegate_leader::etcd::EtcdError;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Columns of a statement, before its response.
const STATEMENT: usize = 56;
/// Indentation of further lines.
const MARGIN: &str = "";

/// Prints the story.
pub(super) struct Transcript {
    colored: bool,
    start: Instant,
}

impl Transcript {
    pub(super) fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Transcript { colored: io::stdout().is_terminal() && !plain, start: Instant::now() }
    }

    /// Starts a scene and its clock.
    pub(super) fn scene(&mut self, title: &str) {
        self.line(&format!("\n{}", self.painted("1", title)));
        self.start = Instant::now();
    }

    /// Prints a statement and its response.
    pub(super) fn statement(&self, participant: &str, sql: &str, answer: &DemoReply) {
        let color = match answer {
            DemoReply::Done(_) => "32",
            DemoReply::Refused { .. } | DemoReply::Lost(_) => "31",
        };
        let shown = self.painted(color, &format!("-> {answer}"));
        if let DemoReply::Refused { detail, .. } = answer {
            self.event(participant, sql);
            self.line(&format!("{MARGIN:24} {shown}"));
            self.line(&format!("{MARGIN:24}    DETAIL: {detail}"));
        } else {
            self.event(participant, &format!("{sql:STATEMENT$} {shown}"));
        }
    }

    /// Prints another event.
    pub(super) fn event(&self, participant: &str, event: &str) {
        let offset = self.start.elapsed().as_millis();
        self.line(&format!("  {} {participant:12} {event}", self.painted("2", &format!("{offset:>6} ms"))));
    }

    pub(super) fn result(&self, is_good: bool, what: &str) {
        let color = if is_good { "1;32" } else { "1;31" };
        self.line(&format!("{MARGIN:11} {}", self.painted(color, what)));
    }

    pub(super) fn line(&self, text: &str) {
        // The reader may have gone; the exit code still reports the result.
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush()).ok();
    }

    fn painted(&self, color: &str, text: &str) -> String {
        if self.colored { format!("\x1b[{color}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

pub(super) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Time limit for an event that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks for the event.
const LOOK: Duration = Duration::from_millis(2);

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The servers could not be started.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A process could not be started.
    #[error("cannot set up the demo: {0}")]
    Start(#[from] std::io::Error),
    /// etcd did not answer.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A statement that only prepares the story failed.
    #[error("the demo's database: {}", fencegate_postgres::sql::message(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The story took an unexpected course.
    #[error("the demo is stuck: {0}")]
    Story(String),
}

/// Polls until an event that must happen has happened.
pub(super) async fn until<T>(what: &str, look: impl AsyncFn() -> Result<Option<T>, DemoError>) -> Result<T, DemoError> {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            return Err(DemoError::Story(what.to_owned()));
        }
        sleep(LOOK).await;
    }
}
