//! The log: to standard error, for people or for machines.
//!
//! Must never fail or block its caller: standard error may be closed, or a pipe that is not read.

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
    let level = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let report = |dropped| tracing::warn!(dropped, "log_lines_dropped");
    let queue = standard_error().and_then(|output| LogQueue::start(output, report)).ok();
    let queue = queue.map(|queue| QUEUE.get_or_init(|| queue).clone());
    let writer = match queue.clone() {
        Some(queue) => BoxMakeWriter::new(move || queue.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    // Reporting an error of standard error there would panic if that fails too.
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(writer).log_internal_errors(false);
    // The only possible error is that a log has already been started.
    let _ = match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).fmt_fields(TextFields).try_init(),
        Format::Json => log.event_format(JsonLine).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
    queue.map(FlushOnDrop)
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
