//! The log: to standard error, for people or for machines.

use clap::ValueEnum;
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// A line for people
    #[default]
    Text,
    /// A JSON object in every line
    Json,
}

/// Starts the log of the process, of the level that RUST_LOG says, otherwise info. Later calls do nothing.
pub(super) fn start(format: Format) {
    let level = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(io::stderr);
    // The only error is that a log has been started before.
    let _ = match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        Format::Json => log.json().flatten_event(true).try_init(),
    };
}
