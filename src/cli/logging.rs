//! The log: to standard error, for people or for machines.
//!
//! Must never fail or block its caller: standard error may be closed, or a pipe that is not read.

use super::json_line::JsonLine;
use super::text_line::TextFields;
use crate::log_queue::{FlushOnDrop, LogQueue};
use clap::ValueEnum;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::{env, panic, thread};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Log format.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// Human-readable lines
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Waits until all lines are written or can no longer be written.
pub(super) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Starts the process's log at the level in RUST_LOG, or `info`. Later calls do nothing. The returned guard writes the
/// last lines when dropped; None if there is no queue, because callers then write directly.
pub(super) fn start(format: Format) -> Option<FlushOnDrop> {
    let levels = levels(&env::var("RUST_LOG").unwrap_or_default());
    let report = |dropped| tracing::warn!(dropped, "log_lines_dropped");
    let queue = standard_error().and_then(|output| LogQueue::start(output, report)).ok();
    let queue = queue.map(|queue| QUEUE.get_or_init(|| queue).clone());
    let writer = match queue.clone() {
        Some(queue) => BoxMakeWriter::new(move || queue.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    // Reporting an error of standard error there would panic if that fails too.
    let log = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(writer).log_internal_errors(false);
    // The only possible error is that a log has already been started.
    let _ = match format {
        Format::Text => {
            log.with_ansi(io::stderr().is_terminal()).fmt_fields(TextFields).finish().with(levels).try_init()
        }
        Format::Json => log.event_format(JsonLine).finish().with(levels).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
    queue.map(FlushOnDrop)
}

/// Parses RUST_LOG: a level, or levels by target (`fencegate=debug,hyper=warn`). Returns `info` if it is unset or
/// invalid. The program has no spans, so it needs no filter of spans.
fn levels(given: &str) -> Targets {
    let usual = Targets::new().with_default(Level::INFO);
    match given.replace(' ', "").trim_matches(',') {
        "" => usual,
        given => given.parse().unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "fencegate: RUST_LOG is ignored: {error}");
            usual
        }),
    }
}

/// Replaces the standard hook, which writes to standard error directly and could block the panicking thread.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread = thread::current().name(), error = %panic, backtrace, "panicked");
}

/// Duplicates standard error. While the parser reads a text, it redirects the usual descriptor into a pipe of its own;
/// lines written there would be lost.
fn standard_error() -> io::Result<File> {
    io::stderr().as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_set_by_target() {
        for (given, info, debug) in [
            ("", true, false),
            ("warn", false, false),
            ("debug", true, true),
            ("fencegate=debug, hyper=warn,", true, true),
            ("hyper=debug", false, false),
            ("fencegate=many", true, false),
        ] {
            let enabled = [Level::INFO, Level::DEBUG].map(|level| levels(given).would_enable("fencegate::net", &level));
            assert_eq!(enabled, [info, debug], "{given}");
        }
    }
}
