//! Output of the demo: one line per event, with the time since the start of its scene.
//!
//! Owns the formatting. Must never print colors to an output that is not a terminal.

use super::check::DemoReply;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

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
    pub(super) fn statement(&self, who: &str, sql: &str, answer: &DemoReply) {
        let color = match answer {
            DemoReply::Done(_) => "32",
            DemoReply::Refused { .. } | DemoReply::Lost(_) => "31",
        };
        let shown = self.painted(color, &format!("-> {answer}"));
        if let DemoReply::Refused { detail, .. } = answer {
            self.event(who, sql);
            self.line(&format!("{MARGIN:24} {shown}"));
            self.line(&format!("{MARGIN:24}    DETAIL: {detail}"));
        } else {
            self.event(who, &format!("{sql:STATEMENT$} {shown}"));
        }
    }

    /// Prints another event.
    pub(super) fn event(&self, who: &str, what: &str) {
        let offset = self.start.elapsed().as_millis();
        self.line(&format!("  {} {who:12} {what}", self.painted("2", &format!("{offset:>6} ms"))));
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
