//! Subcommands that change a protected database: `init` creates or upgrades the schemas, `guard` manages the second layer inside
//! the database, and `remove` removes all fencegate objects.

use super::output::{
    Ended, counted, database, failed, load_policies, print, print_done, print_stderr, runtime, script, table,
};
use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use fencegate_fence::Effect;
use fencegate_fence::guard::{self, GuardState, GuardStatus, Installed, StatusLine};
use fencegate_policy::PolicySet;
use fencegate_postgres::tls::ControlConfig;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct GuardArguments {
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
        /// Print the SQL script instead of running it
        #[arg(long)]
        print_sql: bool,
    },
    /// Show the state of each part of the guard; exit with code 1 if one is missing, changed, disabled or rejected
    Status(Guarded),
    /// Remove the guard
    Remove {
        #[command(flatten)]
        database: ControlDatabase,
        /// Print the SQL script instead of running it
        #[arg(long)]
        print_sql: bool,
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

pub(super) fn run_guard(arguments: GuardArguments) -> Ended {
    let runtime = runtime()?;
    match arguments.command {
        Command::Install { guarded, force, print_sql } => {
            let (config, policies) = guarded.read()?;
            let installed = guard::install(&config, &policies, force, effect(print_sql));
            let (installed, script) = runtime.block_on(installed).map_err(failed)?;
            if !print_sql {
                return Ok(print_installed(&installed));
            }
            warn(&installed.warnings);
            print(&format!("{}{}", script.text(), rest(&installed).concat()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Status(guarded) => {
            let (config, policies) = guarded.read()?;
            Ok(print_status(&runtime.block_on(guard::status(&config, &policies)).map_err(failed)?))
        }
        Command::Remove { database, print_sql } => {
            let config = database.config()?;
            let removed = runtime.block_on(guard::remove(&config, effect(print_sql)));
            let (removed, script) = removed.map_err(failed)?;
            let lines = removed.iter().map(|what| format!("removed {what}\n"));
            let text = if removed.is_empty() { "no guard to remove\n".to_owned() } else { lines.collect() };
            print(&if print_sql { script.text() } else { text });
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A command that prints the script rolls its statements back.
fn effect(print_sql: bool) -> Effect {
    if print_sql { Effect::Script } else { Effect::Commit }
}

impl Guarded {
    fn read(&self) -> Result<(ControlConfig, PolicySet), ExitCode> {
        Ok((self.database.config()?, load_policies(&self.policies)?))
    }
}

impl ControlDatabase {
    fn config(&self) -> Result<ControlConfig, ExitCode> {
        super::output::database("--control", &self.control)
    }
}

fn print_installed(installed: &Installed) -> ExitCode {
    warn(&installed.warnings);
    let Installed { wanted, there, tables, changes, released, to_run, .. } = installed;
    let is_done = to_run.is_empty();
    let done = if *changes == 0 && is_done { "up to date".to_owned() } else { counted(*changes, "change") };
    let triggers = counted(*wanted, "trigger");
    let triggers = if there == wanted { triggers } else { format!("{there} of {triggers}") };
    let released: String = released
        .iter()
        .map(|table| format!("\nremoved the guard from {table}: the policies no longer fence it"))
        .collect();
    print_done(&format!("guard: {triggers} on {}, {done}{released}", counted(*tables, "table")), &rest(installed));
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The scripts that other roles must run.
fn rest(installed: &Installed) -> Vec<String> {
    installed.to_run.iter().map(|rest| script(&rest.by, &rest.statements)).collect()
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
        print_stderr(
            "fencegate: to let a subscription write guarded tables, name its owner under exempt_roles in the policies \
             and run `fencegate guard install`",
        );
    }
    if status.lines.iter().any(|line| !line.state.is_well() && !is_rejected(line)) {
        print_stderr(
            "fencegate: run `fencegate guard install` with these policies; it prints the steps that your role may not run",
        );
    }
    ExitCode::FAILURE
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| print_stderr(&format!("warning: {warning}")));
}

#[derive(clap::Args)]
pub(super) struct RemoveArguments {
    /// Database URL, as a superuser or a member of the roles that own the schema and the guarded tables:
    /// postgres://user@host/database
    #[arg(long, visible_alias = "database", env = "FENCEGATE_CONTROL", hide_env_values = true, value_name = "URL")]
    control: String,
    /// Keep the function fencegate.token for column defaults that call it
    #[arg(long)]
    keep_token: bool,
    /// Print the SQL script instead of running it
    #[arg(long)]
    print_sql: bool,
}

pub(super) fn run_remove(arguments: &RemoveArguments) -> Ended {
    let config = database("--control", &arguments.control)?;
    let runtime = runtime()?;
    let removed = guard::remove_everything(&config, arguments.keep_token, effect(arguments.print_sql));
    let (removed, script) = runtime.block_on(removed).map_err(failed)?;
    if arguments.print_sql {
        print(&script.text());
        return Ok(ExitCode::SUCCESS);
    }
    let mut text: String = removed.objects.iter().map(|object| format!("removed {object}\n")).collect();
    if removed.objects.is_empty() {
        text.push_str("nothing to remove\n");
    }
    if let Some((role, groups)) = &removed.memberships {
        text.push_str(&format!(
            "role {role} keeps its grants, which count in all databases of the server. If no other database needs them: \
             REVOKE {groups} FROM {role}\n"
        ));
    }
    print(&text);
    Ok(ExitCode::SUCCESS)
}

#[derive(clap::Args)]
pub(super) struct InitArguments {
    /// Database URL, as a role that may create the schema: postgres://user@host/database
    #[arg(long, visible_alias = "database", env = "FENCEGATE_CONTROL", hide_env_values = true, value_name = "URL")]
    control: String,
    /// Role that will own the schema (the proxy's control role). Default: keep the current owner; a new schema belongs to the
    /// connecting role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Role that may lead with leases in this database; see also --elections
    #[arg(long, value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    leases_for: Option<String>,
    /// Elections that this role may lead; `*` matches any text
    #[arg(long, value_name = "PATTERN", default_value = "*", requires = "leases_for", value_parser = NonEmptyStringValueParser::new())]
    elections: String,
    /// Print the SQL script instead of running it
    #[arg(long)]
    print_sql: bool,
}

pub(super) fn run_init(arguments: InitArguments) -> Ended {
    let config = database("--control", &arguments.control)?;
    let runtime = runtime()?;
    if arguments.print_sql {
        let leases = arguments.leases_for.as_deref().map(|role| (role, arguments.elections.as_str()));
        let script = fencegate_fence::init_script(&config, arguments.role.as_deref(), leases);
        print(&runtime.block_on(script).map_err(failed)?);
        return Ok(ExitCode::SUCCESS);
    }
    let report = runtime.block_on(fencegate_fence::init(&config, arguments.role.as_deref())).map_err(failed)?;
    let leases = arguments.leases_for.as_ref().map(|role| {
        let patterns = runtime.block_on(fencegate_fence::grant_leases(&config, role, &arguments.elections));
        patterns.map(|patterns| format!("{role} may lead {}\n", patterns.join(", ")))
    });
    print_report(&report, &leases.transpose().map_err(failed)?.unwrap_or_default());
    Ok(if report.to_run.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_report(report: &fencegate_fence::InitReport, leases: &str) {
    let done = match report.versions {
        Some((before, now)) if before > now => format!("downgraded from version {before} to {now}"),
        Some((before, now)) => format!("upgraded from version {before} to {now}"),
        None if report.created => "created".to_owned(),
        None => "up to date".to_owned(),
    };
    let mut lines = format!("schema fencegate: {done}, owned by {}\n", report.role);
    for role in &report.granted {
        lines.push_str(&format!("granted {role} to {}\n", report.role));
    }
    lines.push_str(leases);
    let rest = (!report.to_run.is_empty()).then(|| script("a role that may grant them", &report.to_run));
    print_done(&lines, rest.as_slice());
}
