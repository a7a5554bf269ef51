//! `fencegate policy`: checks policies before a proxy reads them, and explains what they cover.

use super::output::{complain, counted, load_policies, print, table};
use super::{Ended, database, failed, runtime};
use crate::catalogue::{Covered, Explanation, Unnamed};
use crate::fence;
use crate::policy::{Opaque, PolicySet, Resource};
use clap::Subcommand;
use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

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
        /// Also warn of the functions of this database that may write a fenced table and that the policies do not name
        #[arg(long, visible_alias = "control", value_name = "URL")]
        database: Option<String>,
    },
    /// Show which relations of a database the policies cover, and by which path
    Explain {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The database, as any role that can connect: postgres://user@host/database
        #[arg(long, visible_alias = "control", value_name = "URL")]
        database: String,
    },
}

pub(super) fn run(arguments: Arguments) -> Ended {
    match arguments.command {
        Command::Check { directory, database } => check(&load_policies(&directory)?, database.as_deref()),
        Command::Explain { directory, database } => explain(&load_policies(&directory)?, &database),
    }
}

fn check(set: &PolicySet, url: Option<&str>) -> Ended {
    for warning in [warning(set), opaque_warning(set)].into_iter().flatten() {
        complain(&format!("warning: {warning}"));
    }
    if let Some(url) = url {
        let explanation = explained(set, url)?;
        let unresolved = explanation.covered.iter().filter(|it| it.kind.is_none());
        unresolved.for_each(|it| complain(&format!("warning: {} is unresolved: {}", it.relation, it.path)));
        warn_of_functions(set, &explanation.unnamed);
    }
    print(&summary(set));
    Ok(ExitCode::SUCCESS)
}

/// Exit code 1 also where something that the policies name does not exist, or they are not for that database.
fn explain(set: &PolicySet, url: &str) -> Ended {
    let Explanation { covered, unnamed, .. } = &explained(set, url)?;
    let header = ["RESOURCE", "RELATION", "KIND", "OPERATIONS", "PATH"];
    let lines: Vec<[&str; 5]> = std::iter::once(header).chain(covered.iter().map(line)).collect();
    print(&table(&lines));
    warn_of_functions(set, unnamed);
    Ok(if covered.iter().any(|it| it.kind.is_none()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Only of a database that the policies are for.
fn explained(set: &PolicySet, url: &str) -> Result<Explanation, ExitCode> {
    let config = database("--database", url)?;
    let explanation = runtime()?.block_on(fence::explain(&config, set)).map_err(failed)?;
    if !set.applies_to(&explanation.database) {
        return Err(failed(format!("the policies fence nothing in database {}", explanation.database)));
    }
    Ok(explanation)
}

/// A line for each function, then for each resource what to write in its policy.
fn warn_of_functions(set: &PolicySet, unnamed: &[Unnamed]) {
    for Unnamed { function, table, is_direct, .. } in unnamed {
        let mentions = if *is_direct { "mentions" } else { "calls what mentions" };
        complain(&format!(
            "warning: function {function} {mentions} {table}, and a call of it is no write to the proxy"
        ));
    }
    for resource in &set.resources {
        let of_it = unnamed.iter().filter(|it| it.resource == resource.name);
        let more: BTreeSet<String> = of_it.map(|it| it.function.to_string()).collect();
        if more.is_empty() {
            continue;
        }
        let advice = match resource.keyed {
            Some(_) => "a keyed resource cannot name them".to_owned(),
            None => {
                let all = resource.functions.iter().map(ToString::to_string).chain(more);
                let all: Vec<String> = all.map(|name| in_yaml(&name)).collect();
                format!("write those that write into its policy, functions: [{}]", all.join(", "))
            }
        };
        complain(&format!("resource {}: {advice}; or install the guard", resource.name));
    }
}

/// An SQL name as an element of a list.
fn in_yaml(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.*".contains(c));
    if is_plain { name.to_owned() } else { format!("'{}'", name.replace('\'', "''")) }
}

fn line(covered: &Covered) -> [&str; 5] {
    let kind = covered.kind.as_deref().unwrap_or("unresolved");
    [&covered.resource, &covered.relation, kind, &covered.operations, &covered.path]
}

/// Nothing is fenced; or a plain token raises every resource that its session writes: with several resources, or keys, that
/// is rarely meant.
fn warning(set: &PolicySet) -> Option<String> {
    if set.resources.is_empty() {
        return Some("the policies name no resource: nothing is fenced".to_owned());
    }
    let without: Vec<_> = set.resources.iter().filter(|it| it.issuer_shown().is_none()).collect();
    let names = |resource: &Resource| match &resource.keyed {
        Some(keyed) => vec![keyed.names.fill("1"), keyed.names.fill("2")],
        None => vec![resource.name.clone()],
    };
    let names: Vec<String> = without.iter().flat_map(|resource| names(resource)).collect();
    let [first, second, ..] = &names[..] else { return None };
    let who = match &without[..] {
        [one] => format!("{} has", one.name),
        several => format!("{} resources have", several.len()),
    };
    Some(format!(
        "{who} neither election nor lease: a session that writes several of them should name each token, \
         lease.fence = '{first}=1, {second}=2'"
    ))
}

/// What passes the proxy unseen, the guard sees.
fn opaque_warning(set: &PolicySet) -> Option<String> {
    const GUARD: &str = "install the guard (fencegate guard install)";
    let allowed = set.opaque_roles.iter().filter(|(_, opaque)| **opaque == Opaque::Allow);
    let roles: Vec<&str> = allowed.map(|(role, _)| role.as_str()).collect();
    match set.opaque {
        Opaque::Allow => {
            Some(format!("`opaque: allow` lets DO, CALL and the like past the proxy: {GUARD}, which stops them"))
        }
        _ if !roles.is_empty() => {
            Some(format!("DO, CALL and the like of {} pass the proxy: {GUARD}, which stops them", roles.join(", ")))
        }
        Opaque::RequireToken => {
            Some(format!("`opaque: require_token` is the narrower way: {GUARD}, and `opaque: allow` is complete"))
        }
        Opaque::Reject => None,
    }
}

/// How many resources and tables, in a line.
pub(super) fn summary(set: &PolicySet) -> String {
    let tables = set.resources.iter().map(|resource| resource.tables.len()).sum();
    format!(
        "policies: {}, {}, in {}\n",
        counted(set.resources.len(), "resource"),
        counted(tables, "table"),
        counted(set.files, "file")
    )
}
