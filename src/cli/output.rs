//! Output and exit codes of subcommands, and the steps that most of them begin with.
//!
//! Must never fail because the reader has gone: the exit code still reports the result.

use super::logging;
use crate::config;
use crate::server::process;
use fencegate_policy::PolicySet;
use fencegate_postgres::tls::{Connector, ControlConfig};
use std::fmt::Display;
use std::io;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Prints to standard output.
pub(super) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Prints a line to standard error, after pending log lines.
pub(super) fn print_stderr(line: &str) {
    logging::flush();
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints completed and remaining steps. If steps remain, the whole output is a psql script.
pub(super) fn print_done(done: &str, rest: &[String]) {
    let comment = if rest.is_empty() { "" } else { "-- " };
    let lines = done.lines().map(|line| format!("{comment}{}\n", one_line(line)));
    print(&lines.chain(rest.iter().cloned()).collect::<String>());
}

/// A transaction of a script, with the role that must run it.
pub(super) fn script(by: &str, statements: &[String]) -> String {
    let statements: String = statements.iter().map(|statement| format!("{statement};\n")).collect();
    format!("-- remaining steps, to be run by {}:\nBEGIN;\n{statements}COMMIT;\n", one_line(by))
}

/// Names may contain line breaks, which would end an SQL comment.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Aligns the lines in columns.
pub(super) fn table<const N: usize>(lines: &[[&str; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats a count: `1 table`, `2 tables`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Wrong usage or configuration.
pub(super) const EXIT_USAGE: u8 = 2;

/// Result of a subcommand. Err is the exit code of a subcommand that cannot continue.
pub(super) type Ended = Result<ExitCode, ExitCode>;

/// Prints a failure and returns its exit code.
pub(super) fn failed(error: impl Display) -> ExitCode {
    print_stderr(&format!("fencegate: {error}"));
    ExitCode::FAILURE
}

/// Prints a usage or configuration error and returns its exit code.
pub(super) fn unusable(error: impl Display) -> ExitCode {
    print_stderr(&format!("fencegate: {error}"));
    ExitCode::from(EXIT_USAGE)
}

/// The asynchronous runtime, or the exit code if it cannot be created.
pub(super) fn runtime() -> Result<Runtime, ExitCode> {
    process::runtime("shared", None).map_err(no_runtime)
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
        errors.iter().for_each(|error| print_stderr(&error.to_string()));
        ExitCode::from(EXIT_USAGE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_a_comment() {
        let printed = script("the owner of public.\"a\r\nDROP TABLE b\"", &["SELECT 1".to_owned()]);
        let expected =
            "-- remaining steps, to be run by the owner of public.\"a  DROP TABLE b\":\nBEGIN;\nSELECT 1;\nCOMMIT;\n";
        assert_eq!(printed, expected);
    }
}
