//! The log: to standard error, for people or for machines.
//!
//! Must never fail the caller, nor block it: standard error may be closed, or a pipe that nobody reads.

use super::json_line::JsonLine;
use super::text_line::TextFields;
use crate::log_queue::{FlushOnDrop, LogQueue};
use clap::ValueEnum;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::{panic, thread};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// A line for people
    #[default]
    Text,
    /// A JSON object in every line
    Json,
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Waits until all lines have been written, unless nobody reads them.
pub(super) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Starts the log of the process, of the level that RUST_LOG says, otherwise info. Later calls do nothing.
/// What is returned writes the last lines. None where there is no queue: callers then write for themselves.
pub(super) fn start(format: Format) -> Option<FlushOnDrop> {
    let level = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let report = |dropped| tracing::warn!(dropped, "log_lines_dropped");
    let queue = standard_error().and_then(|output| LogQueue::start(output, report)).ok();
    let queue = queue.map(|queue| QUEUE.get_or_init(|| queue).clone());
    let writer = match queue.clone() {
        Some(queue) => BoxMakeWriter::new(move || queue.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    // An error of standard error would be reported there, with a panic where that fails too.
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(writer).log_internal_errors(false);
    // The only error is that a log has been started before.
    let _ = match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).fmt_fields(TextFields).try_init(),
        Format::Json => log.event_format(JsonLine).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
    queue.map(FlushOnDrop)
}

/// The standard hook would write to standard error itself, and block the thread that panics.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread = thread::current().name(), error = %panic, backtrace, "panicked");
}

/// Standard error by a descriptor of its own: while it reads a text, the parser puts a pipe of its own in the usual place, and
/// what is written there meanwhile is lost.
fn standard_error() -> io::Result<File> {
    io::stderr().as_fd().try_clone_to_owned().map(File::from)
}
