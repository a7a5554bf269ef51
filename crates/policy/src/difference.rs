//! Human-readable differences between two sets of policies.
//!
//! Must omit unchanged attributes, and include every attribute that affects the fingerprints.

use super::{FencedTable, OnMissing, PolicySet, Resource};
use std::collections::BTreeMap;

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
        let mut names: Vec<_> = old.keys().chain(new.keys()).copied().collect();
        names.sort_unstable();
        names.dedup();
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

    /// The name, the database, the column of the key, and the operations.
    fn shown(&self) -> String {
        let key = self.key.as_ref().map(|key| format!(" by {}", super::quoted(key))).unwrap_or_default();
        let database = self.database.as_ref().map(|name| format!(" in {}", super::quoted(name))).unwrap_or_default();
        format!("{}{database}{key} ({})", self.name, self.operation_names().join(", "))
    }
}

/// Attributes, by the key in the policy.
type Attributes = BTreeMap<&'static str, String>;

fn of_set(set: &PolicySet) -> Attributes {
    let databases = set.databases.as_ref().map(|databases| sorted(databases.iter().cloned()));
    let mut attributes = Attributes::from([("opaque", set.opaque.name().to_owned())]);
    attributes.extend(databases.map(|databases| ("databases", databases)));
    if !set.opaque_roles.is_empty() {
        let roles = set.opaque_roles.iter().map(|(role, opaque)| format!("{role}: {}", opaque.name()));
        attributes.insert("opaque_roles", sorted(roles));
    }
    if !set.exempt_roles.is_empty() {
        attributes.insert("exempt_roles", sorted(set.exempt_roles.iter().cloned()));
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
        attributes.insert("functions", sorted(resource.functions.iter().map(ToString::to_string)));
    }
    if resource.on_missing != OnMissing::Reject {
        attributes.insert("on_missing", resource.on_missing.name().to_owned());
    }
    attributes
}

fn tables(resource: &Resource) -> String {
    sorted(resource.tables.iter().map(FencedTable::shown))
}

fn sorted(items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<_> = items.collect();
    items.sort();
    items.join(", ")
}

fn changes(resource: Option<&str>, mut old: Attributes, mut new: Attributes) -> Vec<PolicyChange> {
    let keys: Vec<_> =
        old.keys().chain(new.keys()).copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
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
