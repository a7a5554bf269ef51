//! `fencegate policy`: checks policies before a proxy loads them, and explains their coverage.

use super::output::{Ended, counted, database, failed, load_policies, print, print_stderr, runtime, table};
use clap::Subcommand;
use fencegate_catalog::{Covered, DatabaseNames, Explanation, Unnamed, missing_text, with_tables};
use fencegate_policy::{Opaque, PolicySet, Resource};
use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Validate a directory of policies
    Check {
        /// Directory of policies
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Also look for the tables in this database: exit with code 1 if a resource has none, and warn of unlisted
        /// functions that may write a fenced table
        #[arg(long, visible_alias = "control", value_name = "URL")]
        database: Option<String>,
    },
    /// Show the relations that the policies cover, and why
    Explain {
        /// Directory of policies
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Database URL, as any role that can connect: postgres://user@host/database
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
    let databases = databases_warning(set).filter(|_| url.is_none());
    for warning in [warning(set), opaque_warning(set), databases].into_iter().flatten() {
        print_stderr(&format!("warning: {warning}"));
    }
    let resolved = url.map_or(Ok(true), |url| resolve(set, url))?;
    print(&summary(set));
    Ok(if resolved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Warns of missing tables and functions. Returns false if a resource that needs a table has none.
fn resolve(set: &PolicySet, url: &str) -> Result<bool, ExitCode> {
    let Explanation { database, covered, unnamed } = explained(set, url)?;
    let config = super::output::database("--database", url)?;
    let (control, here) = (|name: &str| config.with_database(name), BTreeSet::from([database.clone()]));
    let reading = async {
        match set.databases {
            Some(_) => Ok(fencegate_fence::read_names_in(control, &[set], here.clone()).await),
            None => fencegate_fence::read_names(control, &[set], &database, &here).await,
        }
    };
    let names = runtime()?.block_on(reading).map_err(failed)?;
    let found = match names.get(&database) {
        Some(DatabaseNames::Found(found)) => found,
        Some(DatabaseNames::Unread(reason)) => return Err(failed(reason)),
        Some(DatabaseNames::NoDatabase) | None => return Err(failed(format!("database {database} does not exist"))),
    };
    let mut missing = BTreeSet::new();
    let mut is_resolved = true;
    for resource in &set.resources {
        let mut expected = resource.tables.iter().filter(|table| table.is_expected_in(&database)).peekable();
        is_resolved &= found.has_some_of(resource) || !resource.tables.is_empty() && expected.peek().is_none();
        for table in expected.filter(|table| !found.has_table(&table.name)) {
            let text = missing_text(&table.name.to_string(), &database, found.nearest(&table.name));
            let placed = set.fault_at(&table.name, &text).map_or(text, |fault| fault.to_string());
            print_stderr(&format!("warning: {placed}"));
            missing.insert(table.name.to_string());
        }
        for function in resource.functions.iter().filter(|it| !found.has_function(it)) {
            print_stderr(&format!("warning: {}", missing_text(&format!("function {function}"), &database, None)));
            missing.insert(function.to_string());
        }
    }
    // Keys that distinguish no rows.
    let unresolved = covered.iter().filter(|it| it.kind.is_none() && !missing.contains(&it.relation));
    unresolved.for_each(|it| print_stderr(&format!("warning: {} is unresolved: {}", it.relation, it.path)));
    let fenced = with_tables(set, &names);
    if fenced.len() > 1 {
        let text = "without `databases`, the policies fence tables in";
        print_stderr(&format!("warning: {text} {}: list the intended ones", fenced.join(", ")));
    }
    warn_of_functions(set, &unnamed);
    Ok(is_resolved)
}

/// Policies without `databases` fence tables of these names in every database.
fn databases_warning(set: &PolicySet) -> Option<String> {
    let has_tables = set.resources.iter().any(|resource| !resource.tables.is_empty());
    let opaque = if set.opaque == Opaque::Reject { ", and reject DO and CALL there (LF004)" } else { "" };
    (set.databases.is_none() && has_tables).then(|| {
        format!(
            "without `databases` the tables are fenced in every database that has them{opaque}: list the intended ones, \
             as databases: [app]; --database URL lists them"
        )
    })
}

/// Also exits with code 1 if a table or function is missing, or the policies exclude that database.
fn explain(set: &PolicySet, url: &str) -> Ended {
    let Explanation { covered, unnamed, .. } = &explained(set, url)?;
    let header = ["RESOURCE", "RELATION", "KIND", "OPERATIONS", "PATH"];
    let lines: Vec<[&str; 5]> = std::iter::once(header).chain(covered.iter().map(line)).collect();
    print(&table(&lines));
    warn_of_functions(set, unnamed);
    Ok(if covered.iter().any(|it| it.kind.is_none()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Fails for a database that the policies exclude.
fn explained(set: &PolicySet, url: &str) -> Result<Explanation, ExitCode> {
    let config = database("--database", url)?;
    let explanation = runtime()?.block_on(fencegate_fence::explain(&config, set)).map_err(failed)?;
    if !set.applies_to(&explanation.database) {
        return Err(failed(format!("the policies do not fence anything in database {}", explanation.database)));
    }
    Ok(explanation)
}

/// Prints a line per function, then the suggested policy entry per resource.
fn warn_of_functions(set: &PolicySet, unnamed: &[Unnamed]) {
    for Unnamed { function, table, is_direct, .. } in unnamed {
        let mentions = if *is_direct { "mentions" } else { "calls a function that mentions" };
        print_stderr(&format!(
            "warning: function {function} {mentions} {table}, but the proxy does not treat calls of it as writes"
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
                format!("list those that write in its policy: functions: [{}]", all.join(", "))
            }
        };
        print_stderr(&format!("resource {}: {advice}; or install the guard", resource.name));
    }
}

/// Quotes an SQL name as a YAML list element.
fn in_yaml(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.*".contains(c));
    if is_plain { name.to_owned() } else { format!("'{}'", name.replace('\'', "''")) }
}

fn line(covered: &Covered) -> [&str; 5] {
    let kind = covered.kind.as_deref().unwrap_or("unresolved");
    [&covered.resource, &covered.relation, kind, &covered.operations, &covered.path]
}

/// Warns if nothing is fenced, or if a plain token raises several resources or keys. The latter is rarely intended.
fn warning(set: &PolicySet) -> Option<String> {
    if set.resources.is_empty() {
        return Some("the policies have no resource: nothing is fenced".to_owned());
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
        "{who} neither an election nor a lease: a session that writes to several of them should set a token for each, lease.fence = '{first}=1, {second}=2'"
    ))
}

/// Warns of writes that the proxy cannot see but the guard can.
fn opaque_warning(set: &PolicySet) -> Option<String> {
    const GUARD: &str = "install the guard (fencegate guard install)";
    let allowed = set.opaque_roles.iter().filter(|(_, opaque)| **opaque == Opaque::Allow);
    let roles: Vec<&str> = allowed.map(|(role, _)| role.as_str()).collect();
    match set.opaque {
        Opaque::Allow => {
            Some(format!("`opaque: allow` lets DO, CALL and similar statements bypass the proxy: {GUARD} to stop them"))
        }
        _ if !roles.is_empty() => Some(format!(
            "DO, CALL and similar statements of {} bypass the proxy: {GUARD} to stop them",
            roles.join(", ")
        )),
        Opaque::RequireToken => Some(format!(
            "`opaque: require_token` does not cover every write: to cover all, {GUARD} and set `opaque: allow`"
        )),
        Opaque::Reject => None,
    }
}

/// Number of resources and tables, in one line.
pub(super) fn summary(set: &PolicySet) -> String {
    let tables = set.resources.iter().map(|resource| resource.tables.len()).sum();
    format!(
        "policies: {}, {}, in {}\n",
        counted(set.resources.len(), "resource"),
        counted(tables, "table"),
        counted(set.files, "file")
    )
}
