//! Differences between two sets of policies: a hash by which two proxies determine that they fence a resource in the
//! same way, and a human-readable list.
//!
//! Must never depend on the order or position of declarations or, for the hash, on how a library prints a value. The
//! differences must include every attribute that affects the hash, and omit unchanged ones.

use super::{FencedFunction, FencedTable, OnMissing, PolicySet, QualifiedName, Resource};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The settings of a set that affect every resource's fence, for [`fingerprint`].
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

/// Each part follows its length, so that no two lists of parts have the same encoding.
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

/// A difference between two sets of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// The resource; None for an attribute of the whole set.
    pub resource: Option<String>,
    /// The change: `added`, `removed`, or the key in the policy.
    pub what: String,
    /// The old value; None if it did not exist.
    pub before: Option<String>,
    /// The new value; None if it no longer exists.
    pub after: Option<String>,
}

impl PolicySet {
    /// The differences in `new`: those of the whole set first, then those of each resource, by name.
    pub fn difference(&self, new: &PolicySet) -> Vec<PolicyChange> {
        let mut changes = changes(None, of_set(self), of_set(new));
        let (old, new) = (by_name(self), by_name(new));
        let names: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
        for name in names {
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) => changes.extend(self::changes(Some(name), of_resource(old), of_resource(new))),
                (Some(old), None) => changes.push(whole(name, "removed", Some(tables(old)), None)),
                (None, Some(new)) => changes.push(whole(name, "added", None, Some(tables(new)))),
                (None, None) => {}
            }
        }
        changes
    }
}

impl FencedTable {
    /// The operations that are fenced, as a policy names them.
    pub fn operation_names(&self) -> Vec<&'static str> {
        let named = super::document::OPERATIONS.iter().filter(|(_, operation)| self.operations.contains(operation));
        named.map(|(name, _)| *name).collect()
    }

    /// The table's name, database, key column and operations.
    fn shown(&self) -> String {
        let key = self.key.as_ref().map(|key| format!(" by {}", super::quoted(key))).unwrap_or_default();
        let database = self.database.as_ref().map(|name| format!(" in {}", super::quoted(name))).unwrap_or_default();
        format!("{}{database}{key} ({})", self.name, self.operation_names().join(", "))
    }
}

/// Attributes, by the key in the policy.
type Attributes = BTreeMap<&'static str, String>;

fn of_set(set: &PolicySet) -> Attributes {
    let databases = set.databases.as_ref().map(|databases| listed(databases.iter().cloned()));
    let mut attributes = Attributes::from([("opaque", set.opaque.name().to_owned())]);
    attributes.extend(databases.map(|databases| ("databases", databases)));
    if !set.opaque_roles.is_empty() {
        let roles = set.opaque_roles.iter().map(|(role, opaque)| format!("{role}: {}", opaque.name()));
        attributes.insert("opaque_roles", listed(roles));
    }
    if !set.exempt_roles.is_empty() {
        attributes.insert("exempt_roles", listed(set.exempt_roles.iter().cloned()));
    }
    attributes
}

fn of_resource(resource: &Resource) -> Attributes {
    let mut attributes = Attributes::from([("tables", tables(resource)), ("mode", resource.mode.name().to_owned())]);
    if let Some(issuer) = &resource.issuer {
        attributes.insert(issuer.kind(), issuer.name().to_string());
    }
    if let Some(issuers) = resource.keyed.as_ref().and_then(|keyed| keyed.issuers.as_ref()) {
        attributes.insert(issuers.kind(), issuers.names().to_string());
    }
    if !resource.functions.is_empty() {
        attributes.insert("functions", listed(resource.functions.iter().map(ToString::to_string)));
    }
    if resource.on_missing != OnMissing::Reject {
        attributes.insert("on_missing", resource.on_missing.name().to_owned());
    }
    attributes
}

fn tables(resource: &Resource) -> String {
    listed(resource.tables.iter().map(FencedTable::shown))
}

fn changes(resource: Option<&str>, mut old: Attributes, mut new: Attributes) -> Vec<PolicyChange> {
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let change = |key: &'static str| {
        let (before, after) = (old.remove(key), new.remove(key));
        let resource = resource.map(str::to_owned);
        (before != after).then(|| PolicyChange { resource, what: key.to_owned(), before, after })
    };
    keys.into_iter().filter_map(change).collect()
}

fn whole(name: &str, what: &str, before: Option<String>, after: Option<String>) -> PolicyChange {
    PolicyChange { resource: Some(name.to_owned()), what: what.to_owned(), before, after }
}

fn by_name(set: &PolicySet) -> BTreeMap<&str, &Resource> {
    set.resources.iter().map(|resource| (resource.name.as_str(), &**resource)).collect()
}

fn listed(items: impl Iterator<Item = String>) -> String {
    sorted(items).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join;

    fn set(text: &str) -> PolicySet {
        join([("policies.yaml".into(), Ok(format!("version: 1\n{text}").into_bytes()))]).unwrap()
    }

    fn difference(old: &str, new: &str) -> Vec<String> {
        let shown = |it: PolicyChange| {
            let [before, after] = [it.before, it.after].map(|it| it.unwrap_or("-".to_owned()));
            format!("{} {}: {before} -> {after}", it.resource.unwrap_or("*".to_owned()), it.what)
        };
        set(old).difference(&set(new)).into_iter().map(shown).collect()
    }

    #[test]
    fn unchanged_attributes_are_not_reported() {
        let one = "resources: [{name: a, tables: [public.t, public.u]}, {name: b, tables: [public.v]}]";
        let other = "resources: [{name: b, tables: [public.v]}, {name: a, tables: [public.u, public.t]}]";
        assert_eq!(difference(one, other), [""; 0]);
    }

    #[test]
    fn every_changed_attribute_is_reported() {
        let all = "insert, update, delete, truncate, ddl";
        let old = "resources: [{name: a, tables: [public.t]}, {name: gone, tables: [public.g]}]";
        let new = "resources: [{name: a, mode: observe, on_missing: allow, election: /e, functions: [public.f], tables: \
            [{name: public.t, operations: [insert]}]}, {name: 'more/{k}', tables: [{name: public.m, key: k}]}]\n\
            opaque: allow\nopaque_roles: {legacy: allow}\ndatabases: [app]\nexempt_roles: [migrator]";
        let expected = [
            "* databases: - -> app".to_owned(),
            "* exempt_roles: - -> migrator".to_owned(),
            "* opaque: reject -> allow".to_owned(),
            "* opaque_roles: - -> legacy: allow".to_owned(),
            "a election: - -> /e".to_owned(),
            "a functions: - -> public.f".to_owned(),
            "a mode: enforce -> observe".to_owned(),
            "a on_missing: - -> allow".to_owned(),
            format!("a tables: public.t ({all}) -> public.t (insert)"),
            format!("gone removed: public.g ({all}) -> -"),
            format!("more/{{k}} added: - -> public.m by k ({all})"),
        ];
        assert_eq!(difference(old, new), expected);
    }
}
