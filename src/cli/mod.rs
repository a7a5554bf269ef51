//! The command line: one file per subcommand.
//!
//! Owns the exit codes: 0 done, 1 failed, 2 wrong usage or configuration; `lead` has more. Must never decide
//! anything else: a subcommand reads its arguments and calls the module that does the work.

mod demo;
mod guard;
mod init;
mod json_line;
mod lead;
mod leases;
mod logging;
mod output;
mod policy;
mod proxy;
mod timeline;
mod variables;

use crate::apart::{READER_COMMAND, read_for_another};
use crate::config;
use crate::leader::command::{GUARD_COMMAND, START_COMMAND};
use crate::server::workers;
use crate::tls::{Connector, ControlConfig};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::{ffi::OsString, fmt::Display, io, path::PathBuf, process::ExitCode, sync::Arc};
use tokio::runtime::Runtime;

/// Wrong usage or configuration.
const EXIT_USAGE: u8 = 2;

/// A fencing-aware storage proxy for PostgreSQL
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How to write the log, which goes to standard error; RUST_LOG says how much
    #[arg(long, global = true, env = "FENCEGATE_LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    log_format: logging::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the proxy
    Proxy(Box<proxy::Arguments>),
    /// Create or upgrade the schema that a database with fenced tables needs
    Init(init::Arguments),
    /// Guard the fenced tables inside their database as well: a second layer of triggers
    Guard(guard::Arguments),
    /// Campaign in an election, and run a command while leadership lasts
    Lead(Box<lead::Arguments>),
    /// List who leads what
    Leases(leases::Arguments),
    /// The process that kills the command when `lead` cannot
    #[command(name = GUARD_COMMAND, hide = true)]
    LeadGuard(Box<lead::GuardArguments>),
    /// The process that becomes the command
    #[command(name = START_COMMAND, hide = true)]
    LeadStart(lead::StartArguments),
    /// The process that reads texts for `proxy` that may be too much for the parsers
    #[command(name = READER_COMMAND, hide = true)]
    ReadTexts,
    /// Show a deposed leader's write land without the proxy, and be rejected with it, on throwaway servers
    Demo(demo::Arguments),
    /// Draw who led under which token, what was written and what was rejected, as SVG
    Timeline(timeline::Arguments),
    /// Work with the policies that say what is fenced
    Policy(policy::Arguments),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages, one for each command
    Man {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// How a subcommand ends: with an exit code, also where it cannot go on.
type Ended = Result<ExitCode, ExitCode>;

/// Says what went wrong.
fn failed(error: impl Display) -> ExitCode {
    output::complain(&format!("fencegate: {error}"));
    ExitCode::FAILURE
}

/// Says what is wrong with the usage or the configuration.
fn unusable(error: impl Display) -> ExitCode {
    output::complain(&format!("fencegate: {error}"));
    ExitCode::from(EXIT_USAGE)
}

/// A runtime for what is asynchronous; where there cannot be one, the exit code.
fn runtime() -> Result<Runtime, ExitCode> {
    workers::runtime(None).map_err(no_runtime)
}

fn no_runtime(error: io::Error) -> ExitCode {
    tracing::error!(%error, "cannot start the runtime");
    ExitCode::FAILURE
}

/// How to connect to the database that a flag names; where that cannot be, the exit code.
fn database(flag: &str, url: &str) -> Result<ControlConfig, ExitCode> {
    let (config, tls) = config::connection(url).map_err(|why| unusable(format!("{flag} {why}")))?;
    let connector = Connector::new(tls).map_err(|why| unusable(format!("{flag} {why}")))?;
    Ok(ControlConfig::new(config, Arc::new(connector)))
}

/// What is wrong, without the usage that follows it.
fn in_one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see --help".to_owned();
    }
    let text = error.to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let what = what.join(" ");
    let what = what.trim_start_matches("error: ");
    match similar(error) {
        Some(similar) => format!("{what}: did you mean `{similar}`? See --help"),
        None => format!("{what}; see --help"),
    }
}

/// The name of a subcommand, a flag or a value that is much like what was given.
fn similar(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(similar) => Some(similar.as_str()),
        ContextValue::Strings(similar) => similar.first().map(String::as_str),
        _ => None,
    })
}

/// Runs the program with its arguments, the first of which is its own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            if error.use_stderr() {
                return unusable(in_one_line(&error));
            }
            // Help and version. The reader may not read to the end.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    // The command shares standard error: a leader must not block when it is full.
    let leads = matches!(arguments.command, Command::Lead(_));
    let delivery = if leads { logging::Delivery::GoesOn } else { logging::Delivery::Waits };
    let log = logging::start(arguments.log_format, delivery);
    // The two that `lead` starts have its environment, and it has been told.
    if !matches!(arguments.command, Command::LeadGuard(_) | Command::LeadStart(_) | Command::ReadTexts) {
        variables::warn_of_ignored(&Arguments::command());
    }
    let (Ok(code) | Err(code)) = run_command(arguments.command);
    if let Some(log) = log {
        log.finish();
    }
    code
}

fn run_command(command: Command) -> Ended {
    match command {
        Command::Proxy(arguments) => proxy::run(*arguments),
        Command::Init(arguments) => init::run(arguments),
        Command::Guard(arguments) => guard::run(arguments),
        Command::Lead(arguments) => lead::run(*arguments),
        Command::Leases(arguments) => leases::run(arguments),
        Command::LeadGuard(arguments) => Ok(lead::guard(*arguments)),
        Command::LeadStart(arguments) => Ok(lead::start(&arguments)),
        Command::ReadTexts => Ok(read_for_another()),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Timeline(arguments) => timeline::run(&arguments),
        Command::Policy(arguments) => policy::run(arguments),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "fencegate", &mut text);
            output::print(&String::from_utf8_lossy(&text));
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => {
            let pages = clap_mangen::generate_to(Arguments::command(), &directory);
            pages.map(|()| ExitCode::SUCCESS).map_err(|error| failed(format!("{}: {error}", directory.display())))
        }
    }
}
