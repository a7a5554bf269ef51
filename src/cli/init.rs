//! `fencegate init`: creates or upgrades the schema in a protected database.

use super::exit::{Ended, database, failed, runtime};
use super::output::{print_done, script};
use clap::builder::NonEmptyStringValueParser;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Database URL, as a role that may create the schema: postgres://user@host/database
    #[arg(long, visible_alias = "database", env = "FENCEGATE_CONTROL", hide_env_values = true, value_name = "URL")]
    control: String,
    /// Role that will own the schema (the proxy's control role). Default: keep the current owner; a new schema belongs to the
    /// connecting role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Role that may lead through leases in this database; see also --elections
    #[arg(long, value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    leases_for: Option<String>,
    /// Elections that this role may lead; `*` matches any text
    #[arg(long, value_name = "PATTERN", default_value = "*", requires = "leases_for", value_parser = NonEmptyStringValueParser::new())]
    elections: String,
}

pub(super) fn run(arguments: Arguments) -> Ended {
    let config = database("--control", &arguments.control)?;
    let runtime = runtime()?;
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
