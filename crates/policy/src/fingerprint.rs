//! A hash by which two proxies know that they fence a resource alike.
//!
//! Must never depend on the order or the place in which something is written, nor on how a library prints it.

use super::{FencedFunction, FencedTable, PolicySet, QualifiedName, Resource};
use sha2::{Digest, Sha256};

/// The settings of a set that decide with every resource's fence, as [`fingerprint`] needs them.
pub(super) fn settings(set: &PolicySet) -> String {
    let mut text = String::from("fencegate policy 1\n");
    line(&mut text, "opaque", [set.opaque.name()]);
    for (role, opaque) in &set.opaque_roles {
        line(&mut text, "opaque role", [role.as_str(), opaque.name()]);
    }
    for database in sorted(set.databases.iter().flatten()) {
        line(&mut text, "database", [database.as_str()]);
    }
    for role in sorted(set.exempt_roles.iter()) {
        line(&mut text, "exempt role", [role.as_str()]);
    }
    text
}

/// 32 hex digits.
pub(super) fn fingerprint<'r>(settings: &str, resource: &'r Resource) -> String {
    let mut text = settings.to_owned();
    line(&mut text, "resource", [resource.name.as_str()]);
    if let Some(issuer) = &resource.issuer {
        line(&mut text, issuer.kind(), [issuer.name().as_str()]);
    }
    if let Some(issuers) = resource.keyed.as_ref().and_then(|keyed| keyed.issuers.as_ref()) {
        line(&mut text, &format!("{}s", issuers.kind()), [issuers.names().before(), issuers.names().after()]);
    }
    line(&mut text, "rule", [resource.on_missing.name(), resource.mode.name()]);
    let of_table = |table: &'r FencedTable| table.operation_names().into_iter().map(|word| (&table.name, word));
    let operations = resource.tables.iter().flat_map(of_table);
    for (QualifiedName { schema, name }, word) in sorted(operations) {
        line(&mut text, "table", [schema, name, word]);
    }
    let keys = resource.tables.iter().filter_map(|table| Some((&table.name, table.key.as_deref()?)));
    for (QualifiedName { schema, name }, column) in sorted(keys) {
        line(&mut text, "key", [schema, name, column]);
    }
    for FencedFunction { name: QualifiedName { schema, name }, is_prefix } in sorted(resource.functions.iter()) {
        let kind = if *is_prefix { "functions" } else { "function" };
        line(&mut text, kind, [schema.as_str(), name]);
    }
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Each part with its length before it, so that no two lists of parts are written alike.
fn line<const N: usize>(text: &mut String, kind: &str, parts: [&str; N]) {
    text.push_str(kind);
    for part in parts {
        text.push_str(&format!(" {}:{part}", part.len()));
    }
    text.push('\n');
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<_> = items.collect();
    items.sort();
    items.dedup();
    items
}
