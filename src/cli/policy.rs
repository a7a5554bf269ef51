//! `fencegate policy`: checks policies before a proxy reads them.

use super::EXIT_USAGE;
use crate::policy::{self, PolicySet};
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
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        Command::Check { directory } => check(&directory),
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
        Err(errors) => {
            for error in errors {
                let _ = writeln!(io::stderr(), "{error}");
            }
            ExitCode::from(EXIT_USAGE)
        }
    }
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
