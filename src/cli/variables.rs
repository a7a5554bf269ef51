//! Environment variables that look like the program's own but set nothing.
//!
//! Must never print a value: it may contain a password.

use fencegate_policy::nearest::nearest;
use std::collections::BTreeSet;

const PREFIX: &str = "FENCEGATE_";

/// Warns of each unknown variable and names the closest known one. A misspelled setting would otherwise silently keep
/// its default.
pub(super) fn warn_of_ignored(program: &clap::Command) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known = BTreeSet::from(["FENCEGATE_TLS", "FENCEGATE_TTL"].map(str::to_owned));
        assert_eq!(nearest_variable("FENCEGATE_TLSS", &known).as_deref(), Some("FENCEGATE_TLS"));
        assert_eq!(nearest_variable("FENCEGATE_SOMETHING", &known), None);
    }
}
