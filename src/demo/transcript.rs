//! What the demo prints: one line for each thing that happens, with the time since its scene began.
//!
//! Owns the looks. Must never use colours where they would be seen as bytes.

use super::check::DemoReply;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Columns of a statement, before its answer.
const STATEMENT: usize = 56;
/// Under what who did.
const MARGIN: &str = "";

/// The printer of the story.
pub(super) struct Transcript {
    coloured: bool,
    start: Instant,
}

impl Transcript {
    pub(super) fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Transcript { coloured: io::stdout().is_terminal() && !plain, start: Instant::now() }
    }

    /// Begins a scene: its clock starts at 0.
    pub(super) fn scene(&mut self, title: &str) {
        self.line(&format!("\n{}", self.painted("1", title)));
        self.start = Instant::now();
    }

    /// Somebody's statement, and what came back.
    pub(super) fn statement(&self, who: &str, sql: &str, answer: &DemoReply) {
        let colour = match answer {
            DemoReply::Done(_) => "32",
            DemoReply::Refused { .. } | DemoReply::Lost(_) => "31",
        };
        let shown = self.painted(colour, &format!("-> {answer}"));
        if let DemoReply::Refused { detail, .. } = answer {
            self.event(who, sql);
            self.line(&format!("{MARGIN:24} {shown}"));
            self.line(&format!("{MARGIN:24}    DETAIL: {detail}"));
        } else {
            self.event(who, &format!("{sql:STATEMENT$} {shown}"));
        }
    }

    /// Anything else that happens.
    pub(super) fn event(&self, who: &str, what: &str) {
        let offset = self.start.elapsed().as_millis();
        self.line(&format!("  {} {who:12} {what}", self.painted("2", &format!("{offset:>6} ms"))));
    }

    pub(super) fn result(&self, is_good: bool, what: &str) {
        let colour = if is_good { "1;32" } else { "1;31" };
        self.line(&format!("{MARGIN:11} {}", self.painted(colour, what)));
    }

    pub(super) fn line(&self, text: &str) {
        // Whoever reads may have gone; the exit code tells the result all the same.
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush()).ok();
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

pub(super) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
