//! Output of subcommands.
//!
//! Must never fail because the reader has gone: the exit code still reports the result.

use super::logging;
use std::io::{self, Write};

/// Prints to standard output.
pub(super) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Prints a line to standard error, after pending log lines.
pub(super) fn complain(line: &str) {
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
