//! The command line: one file per subcommand or group of them.
//!
//! Owns the exit codes: 0 success, 1 failure, 2 wrong usage or configuration; `lead` has more. Must never make other
//! decisions: a subcommand parses its arguments and calls the module that does the work. Must never print the value of an
//! environment variable: it may contain a password.

mod database;
mod lead;
mod logging;
mod output;
mod policy;
mod proxy;
#[cfg(test)]
mod tests;
mod tools;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use fencegate_leader::command::{GUARD_COMMAND, START_COMMAND};
use fencegate_policy::nearest::nearest;
use fencegate_statement::reader_process::{READER_COMMAND, read_for_another};
use output::{Ended, failed, unusable};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// A fencing-aware storage proxy for PostgreSQL
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Log format (standard error). Set RUST_LOG to change the level
    #[arg(long, global = true, env = "FENCEGATE_LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    log_format: logging::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the proxy
    Proxy(Box<proxy::Arguments>),
    /// Check whether the local proxy is ready; exit with code 1 if it is not
    Healthcheck(tools::HealthcheckArguments),
    /// Create or upgrade the schema that a database with fenced tables needs
    Init(database::InitArguments),
    /// Remove all fencegate objects from a database
    Remove(database::RemoveArguments),
    /// Manage the guard: triggers that enforce fences inside the database
    Guard(database::GuardArguments),
    /// Campaign in an election and run a command while leadership lasts
    Lead(Box<lead::Arguments>),
    /// List the current leaders
    Leases(lead::LeasesArguments),
    /// Process that kills the command when `lead` cannot
    #[command(name = GUARD_COMMAND, hide = true)]
    LeadGuard(Box<lead::GuardArguments>),
    /// Process that becomes the command
    #[command(name = START_COMMAND, hide = true)]
    LeadStart(lead::StartArguments),
    /// Process that parses expensive texts for `proxy`
    #[command(name = READER_COMMAND, hide = true)]
    ReadTexts,
    /// Show a deposed leader's write succeed without the proxy and fail with it, on temporary servers
    Demo(tools::DemoArguments),
    /// Draw leaders, tokens, writes and rejections as SVG
    Timeline(tools::TimelineArguments),
    /// Check and explain policies
    Policy(policy::Arguments),
    /// Print shell completions
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write one man page per command
    Man {
        /// Output directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// The error in one line, without clap's usage text.
fn in_one_line(error: &clap::Error, arguments: &[OsString]) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see --help".to_owned();
    }
    let text = error.to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let what = what.join(" ");
    let what = what.trim_start_matches("error: ");
    let mut program = Arguments::command();
    // Copies the global flags to the subcommands.
    program.build();
    let command = subcommand(&program, arguments);
    match meant(error, command) {
        Some(meant) => format!("{what}: did you mean `{meant}`? See --help"),
        None if lacks_separator(error, command, arguments) => {
            format!("{what}: put the command to run after `--`; see --help")
        }
        None => format!("{what}; see --help"),
    }
}

/// The most specific subcommand that the arguments name.
fn subcommand<'a>(program: &'a clap::Command, arguments: &[OsString]) -> &'a clap::Command {
    let names = arguments.iter().take_while(|argument| *argument != "--");
    names.fold(program, |command, name| command.find_subcommand(name).unwrap_or(command))
}

/// The subcommand, flag or value that is closest to the unknown one.
fn meant(error: &clap::Error, command: &clap::Command) -> Option<String> {
    let given = |kind| match error.get(kind)? {
        ContextValue::String(given) => Some(given.as_str()),
        _ => None,
    };
    let (given, known) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
            (given(ContextKind::InvalidSubcommand)?, shown.map(|it| it.get_name().to_owned()).collect())
        }
        ErrorKind::UnknownArgument => {
            let flags = command.get_arguments().filter_map(clap::Arg::get_long).map(|name| format!("--{name}"));
            (given(ContextKind::InvalidArg)?, flags.collect())
        }
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue)? {
            ContextValue::Strings(values) => (given(ContextKind::InvalidValue)?, values.clone()),
            _ => return None,
        },
        _ => return None,
    };
    nearest(given, known.iter().map(String::as_str)).map(str::to_owned)
}

/// True if a program's command line must follow `--` and `--` is missing.
fn lacks_separator(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> bool {
    let is_about_program = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(given))) => !given.starts_with('-'),
        (ErrorKind::MissingRequiredArgument, _) => true,
        _ => false,
    };
    let takes_program = command.get_arguments().any(clap::Arg::is_last_set);
    is_about_program && takes_program && !arguments.iter().any(|argument| argument == "--")
}

/// Runs the program. The first argument is the program's own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let given: Vec<OsString> = arguments.into_iter().collect();
    let arguments = match Arguments::try_parse_from(&given) {
        Ok(arguments) => arguments,
        Err(error) => {
            if error.use_stderr() {
                return unusable(in_one_line(&error, &given));
            }
            // Help or version. Ignore errors: the reader may have closed the pipe.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    // The program starts these processes for itself. They inherit its environment and log nothing.
    let is_internal = matches!(arguments.command, Command::LeadGuard(_) | Command::LeadStart(_) | Command::ReadTexts);
    let _log = (!is_internal).then(|| logging::start(arguments.log_format));
    if !is_internal {
        warn_of_ignored(&Arguments::command());
    }
    let (Ok(code) | Err(code)) = run_command(arguments.command);
    code
}

fn run_command(command: Command) -> Ended {
    match command {
        Command::Proxy(arguments) => proxy::run(*arguments),
        Command::Healthcheck(arguments) => tools::run_healthcheck(&arguments),
        Command::Init(arguments) => database::run_init(arguments),
        Command::Remove(arguments) => database::run_remove(&arguments),
        Command::Guard(arguments) => database::run_guard(arguments),
        Command::Lead(arguments) => lead::run(*arguments),
        Command::Leases(arguments) => lead::run_leases(arguments),
        Command::LeadGuard(arguments) => Ok(lead::guard(*arguments)),
        Command::LeadStart(arguments) => Ok(lead::start(&arguments)),
        Command::ReadTexts => Ok(read_for_another()),
        Command::Demo(arguments) => tools::run_demo(&arguments),
        Command::Timeline(arguments) => tools::run_timeline(&arguments),
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

const PREFIX: &str = "FENCEGATE_";

/// Warns of each unknown variable and names the closest known one. A misspelled setting would otherwise silently keep
/// its default.
fn warn_of_ignored(program: &clap::Command) {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let given: BTreeSet<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    let known = known(program);
    for variable in given.iter().filter(|name| !known.contains(*name) && !is_of_kubernetes(name, &given)) {
        let nearest = nearest_variable(variable, &known);
        tracing::warn!(variable, nearest, "variable_ignored");
    }
}

/// Variables that any command reads.
fn known(program: &clap::Command) -> BTreeSet<String> {
    let own = program.get_arguments().filter_map(|argument| Some(argument.get_env()?.to_string_lossy().into_owned()));
    own.chain(program.get_subcommands().flat_map(known)).collect()
}

/// Kubernetes sets variables for each service in the namespace: for `fencegate`, `FENCEGATE_SERVICE_HOST`,
/// `FENCEGATE_PORT` and others that begin with them.
fn is_of_kubernetes(name: &str, given: &BTreeSet<String>) -> bool {
    let mut services = given.iter().filter_map(|name| name.strip_suffix("_SERVICE_HOST"));
    services.any(|service| {
        let rest = name.strip_prefix(service).unwrap_or_default();
        rest == "_PORT" || ["_SERVICE_", "_PORT_"].iter().any(|start| rest.starts_with(start))
    })
}

/// Compares names without their common prefix, which would make all of them look similar.
fn nearest_variable(name: &str, known: &BTreeSet<String>) -> Option<String> {
    let names = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
    nearest(name.strip_prefix(PREFIX)?, names).map(|nearest| format!("{PREFIX}{nearest}"))
}
