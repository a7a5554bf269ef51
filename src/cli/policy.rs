//! `fencegate policy`: checks policies before a proxy reads them, and explains what they cover.

use super::{EXIT_USAGE, runtime};
use crate::config;
use crate::fence::{self, Covered, Explanation};
use crate::policy::{self, PolicyError, PolicySet};
use clap::Subcommand;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read a directory of policies and say what is wrong with it
    Check {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Show which relations of a database the policies cover, and by which path
    Explain {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The database, as any role that can connect: postgres://user@host/database
        #[arg(long, value_name = "URL")]
        database: String,
    },
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        Command::Check { directory } => check(&directory),
        Command::Explain { directory, database } => explain(&directory, &database),
    }
}

fn check(directory: &Path) -> ExitCode {
    // Whoever reads the output may have gone: the exit code tells the result all the same.
    match policy::load(directory) {
        Ok(set) => {
            if let Some(warning) = warning(&set) {
                let _ = writeln!(io::stderr(), "warning: {warning}");
            }
            let _ = writeln!(io::stdout(), "{}", summary(&set));
            ExitCode::SUCCESS
        }
        Err(errors) => print_errors(&errors),
    }
}

fn print_errors(errors: &[PolicyError]) -> ExitCode {
    for error in errors {
        let _ = writeln!(io::stderr(), "{error}");
    }
    ExitCode::from(EXIT_USAGE)
}

/// Exit code 1 also where something that the policies name does not exist, or they are not for that database.
fn explain(directory: &Path, url: &str) -> ExitCode {
    let set = match policy::load(directory) {
        Ok(set) => set,
        Err(errors) => return print_errors(&errors),
    };
    let config = match config::connection(url) {
        Ok(config) => config,
        Err(why) => {
            let _ = writeln!(io::stderr(), "fencegate: --database {why}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    match runtime.block_on(fence::explain(&config, &set)) {
        Ok(explanation) => print_explanation(&set, &explanation),
        Err(error) => {
            let _ = writeln!(io::stderr(), "fencegate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_explanation(set: &PolicySet, explanation: &Explanation) -> ExitCode {
    if !set.applies_to(&explanation.database) {
        let _ = writeln!(io::stderr(), "fencegate: the policies fence nothing in database {}", explanation.database);
        return ExitCode::FAILURE;
    }
    let rows: Vec<[&str; 5]> = explanation.covered.iter().map(row).collect();
    let _ = io::stdout().write_all(table(&rows).as_bytes());
    if explanation.covered.iter().any(|covered| covered.kind.is_none()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn row(covered: &Covered) -> [&str; 5] {
    let kind = covered.kind.as_deref().unwrap_or("unresolved");
    [&covered.resource, &covered.relation, kind, &covered.operations, &covered.path]
}

/// In columns, under their names.
fn table(rows: &[[&str; 5]]) -> String {
    let header = ["RESOURCE", "RELATION", "KIND", "OPERATIONS", "PATH"];
    let lines = || std::iter::once(&header).chain(rows);
    let widths: Vec<usize> =
        (0..header.len()).map(|column| lines().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines() {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A plain token raises every resource that its session writes: with several resources that is rarely meant.
fn warning(set: &PolicySet) -> Option<String> {
    let without: Vec<&str> = set
        .resources
        .iter()
        .filter(|it| it.election_shown().is_none())
        .map(|resource| resource.name.as_str())
        .collect();
    let [first, second, ..] = without[..] else { return None };
    Some(format!(
        "{} resources have no election: a session that writes several of them should name each token, \
         lease.fence = '{first}=1, {second}=2'",
        without.len()
    ))
}

fn summary(set: &PolicySet) -> String {
    let tables = set.resources.iter().map(|resource| resource.tables.len()).sum();
    format!(
        "policies: {}, {}, in {}",
        counted(set.resources.len(), "resource"),
        counted(tables, "table"),
        counted(set.files, "file")
    )
}

fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
