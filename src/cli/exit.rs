//! The exit codes of subcommands, and the steps that most of them begin with.

use super::output::complain;
use crate::config;
use crate::server::workers;
use fencegate_policy::PolicySet;
use fencegate_postgres::tls::{Connector, ControlConfig};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Wrong usage or configuration.
pub(super) const EXIT_USAGE: u8 = 2;

/// Result of a subcommand. Err is the exit code of a subcommand that cannot continue.
pub(super) type Ended = Result<ExitCode, ExitCode>;

/// Prints a failure and returns its exit code.
pub(super) fn failed(error: impl Display) -> ExitCode {
    complain(&format!("fencegate: {error}"));
    ExitCode::FAILURE
}

/// Prints a usage or configuration error and returns its exit code.
pub(super) fn unusable(error: impl Display) -> ExitCode {
    complain(&format!("fencegate: {error}"));
    ExitCode::from(EXIT_USAGE)
}

/// The asynchronous runtime, or the exit code if it cannot be created.
pub(super) fn runtime() -> Result<Runtime, ExitCode> {
    workers::runtime("shared", None).map_err(no_runtime)
}

pub(super) fn no_runtime(error: io::Error) -> ExitCode {
    tracing::error!(%error, "runtime_not_started");
    ExitCode::FAILURE
}

/// Connection settings of the database that a flag names, or the exit code if they are invalid.
pub(super) fn database(flag: &str, url: &str) -> Result<ControlConfig, ExitCode> {
    let (config, tls) = config::connection(url).map_err(|why| unusable(format!("{flag} {why}")))?;
    let connector = Connector::new(tls).map_err(|why| unusable(format!("{flag} {why}")))?;
    Ok(ControlConfig::new(config, Arc::new(connector)))
}

/// Loads a directory of policies and prints any errors.
pub(super) fn load_policies(directory: &Path) -> Result<PolicySet, ExitCode> {
    fencegate_policy::load(directory).map_err(|errors| {
        errors.iter().for_each(|error| complain(&error.to_string()));
        ExitCode::from(EXIT_USAGE)
    })
}
