//! What subcommands print.
//!
//! Must never fail because the reader of the output has gone: the exit code tells the result all the same.

use super::{EXIT_USAGE, logging};
use crate::policy::{self, PolicySet};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// To standard output.
pub(super) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// A line to standard error, after those of the log.
pub(super) fn complain(line: &str) {
    logging::flush();
    let _ = writeln!(io::stderr(), "{line}");
}

/// Reads a directory of policies; what is wrong with it is printed.
pub(super) fn load_policies(directory: &Path) -> Result<PolicySet, ExitCode> {
    policy::load(directory).map_err(|errors| {
        errors.iter().for_each(|error| complain(&error.to_string()));
        ExitCode::from(EXIT_USAGE)
    })
}

/// What was done, and what somebody else has still to run. If there is any of that, all of it is a script for psql.
pub(super) fn print_done(done: &str, rest: &[String]) {
    let comment = if rest.is_empty() { "" } else { "-- " };
    let lines = done.lines().map(|line| format!("{comment}{}\n", one_line(line)));
    print(&lines.chain(rest.iter().cloned()).collect::<String>());
}

/// A transaction in a script, and the role that has to run it.
pub(super) fn script(by: &str, statements: &[String]) -> String {
    let statements: String = statements.iter().map(|statement| format!("{statement};\n")).collect();
    format!("-- still to be run by {}:\nBEGIN;\n{statements}COMMIT;\n", one_line(by))
}

/// A name in it may hold what ends a line, and with it a comment.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Lines in columns.
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

/// `1 table`, `2 tables`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_a_comment() {
        let printed = script("the owner of public.\"a\r\nDROP TABLE b\"", &["SELECT 1".to_owned()]);
        let expected = "-- still to be run by the owner of public.\"a  DROP TABLE b\":\nBEGIN;\nSELECT 1;\nCOMMIT;\n";
        assert_eq!(printed, expected);
    }
}
