//! `fencegate guard`: the second layer, inside the database.

use super::exit::{Ended, failed, load_policies, runtime};
use super::output::{complain, counted, print, print_done, script, table};
use clap::Subcommand;
use fencegate_fence::guard::{self, GuardState, GuardStatus, Installed, StatusLine};
use fencegate_policy::PolicySet;
use fencegate_postgres::tls::ControlConfig;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the guard that the policies require in a database
    Install {
        #[command(flatten)]
        guarded: Guarded,
        /// Continue even if the proxies enforce other policies or a name is probably misspelled
        #[arg(long)]
        force: bool,
    },
    /// List the parts of the guard that are missing, changed or disabled; exit with code 1 if there are any
    Status(Guarded),
    /// Remove the guard
    Remove {
        #[command(flatten)]
        database: ControlDatabase,
    },
}

#[derive(clap::Args)]
struct ControlDatabase {
    /// Database URL, as a superuser or the owner of the fenced tables: postgres://user@host/database
    #[arg(long, visible_alias = "database", env = "FENCEGATE_CONTROL", hide_env_values = true, value_name = "URL")]
    control: String,
}

#[derive(clap::Args)]
struct Guarded {
    #[command(flatten)]
    database: ControlDatabase,
    /// Directory of the proxies' policies
    #[arg(long, env = "FENCEGATE_POLICIES", value_name = "DIR")]
    policies: PathBuf,
}

pub(super) fn run(arguments: Arguments) -> Ended {
    let runtime = runtime()?;
    match arguments.command {
        Command::Install { guarded, force } => {
            let (config, policies) = guarded.read()?;
            Ok(print_installed(&runtime.block_on(guard::install(&config, &policies, force)).map_err(failed)?))
        }
        Command::Status(guarded) => {
            let (config, policies) = guarded.read()?;
            Ok(print_status(&runtime.block_on(guard::status(&config, &policies)).map_err(failed)?))
        }
        Command::Remove { database } => {
            let removed = runtime.block_on(guard::remove(&database.config()?)).map_err(failed)?;
            let lines = removed.iter().map(|what| format!("removed {what}\n"));
            let text = if removed.is_empty() { "no guard to remove\n".to_owned() } else { lines.collect() };
            print(&text);
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Guarded {
    fn read(&self) -> Result<(ControlConfig, PolicySet), ExitCode> {
        Ok((self.database.config()?, load_policies(&self.policies)?))
    }
}

impl ControlDatabase {
    fn config(&self) -> Result<ControlConfig, ExitCode> {
        super::exit::database("--control", &self.control)
    }
}

fn print_installed(installed: &Installed) -> ExitCode {
    warn(&installed.warnings);
    let Installed { wanted, there, tables, changes, released, to_run, .. } = installed;
    let is_done = to_run.is_empty();
    let done = if *changes == 0 && is_done { "up to date".to_owned() } else { counted(*changes, "change") };
    let triggers = counted(*wanted, "trigger");
    let triggers = if there == wanted { triggers } else { format!("{there} of {triggers}") };
    let scripts: Vec<String> = to_run.iter().map(|rest| script(&rest.by, &rest.statements)).collect();
    let released: String = released
        .iter()
        .map(|table| format!("\nremoved the guard from {table}: the policies no longer fence it"))
        .collect();
    print_done(&format!("guard: {triggers} on {}, {done}{released}", counted(*tables, "table")), &scripts);
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_status(status: &GuardStatus) -> ExitCode {
    warn(&status.warnings);
    let header = ["TABLE", "RESOURCE", "GUARD", "DIFFERENCE"];
    let cells = status.lines.iter().map(|it| [it.table.as_str(), &it.resource, it.state.name(), &it.difference]);
    let lines: Vec<[&str; 4]> = std::iter::once(header).chain(cells).collect();
    print(&table(&lines));
    if status.lines.iter().all(|line| line.state.is_well()) {
        return ExitCode::SUCCESS;
    }
    let is_rejected = |line: &StatusLine| line.state == GuardState::Rejected;
    if status.lines.iter().any(is_rejected) {
        complain(
            "fencegate: to let a subscription write guarded tables, name its owner under exempt_roles in the policies \
             and run `fencegate guard install`",
        );
    }
    if status.lines.iter().any(|line| !line.state.is_well() && !is_rejected(line)) {
        complain(
            "fencegate: run `fencegate guard install` with these policies; it prints the steps that your role may not run",
        );
    }
    ExitCode::FAILURE
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
}
