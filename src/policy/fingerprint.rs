//! A hash by which two proxies know that they fence a resource alike.
//!
//! Must never depend on the order or the place in which something is written, nor on how a library prints it.

use super::document::OPERATIONS;
use super::{Opaque, QualifiedName, Resource};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The settings of a set that decide with every resource's fence.
pub(super) struct SetSettings {
    text: String,
}

impl SetSettings {
    pub(super) fn new(opaque: Opaque, databases: Option<&[String]>, exempt_roles: &[String]) -> Self {
        let mut text = String::from("fencegate policy 1\n");
        line(&mut text, "opaque", [opaque.name()]);
        for database in sorted(databases.unwrap_or_default().iter().map(String::as_str)) {
            line(&mut text, "database", [database]);
        }
        for role in sorted(exempt_roles.iter().map(String::as_str)) {
            line(&mut text, "exempt role", [role]);
        }
        Self { text }
    }

    /// 32 hex digits.
    pub(super) fn fingerprint(&self, resource: &Resource) -> String {
        let mut text = self.text.clone();
        line(&mut text, "resource", [resource.name.as_str()]);
        if let Some(election) = &resource.election {
            line(&mut text, "election", [election.as_str()]);
        }
        if let Some(elections) = resource.keyed.as_ref().and_then(|keyed| keyed.elections.as_ref()) {
            line(&mut text, "elections", [elections.before(), elections.after()]);
        }
        line(&mut text, "rule", [resource.on_missing.name(), resource.mode.name()]);
        let operations = resource.tables.iter().flat_map(|table| {
            let words = OPERATIONS.iter().filter(|(_, operation)| table.operations.contains(operation));
            words.map(|(word, _)| (&table.name, *word))
        });
        for (QualifiedName { schema, name }, word) in sorted(operations) {
            line(&mut text, "table", [schema, name, word]);
        }
        let keys = resource.tables.iter().filter_map(|table| Some((&table.name, table.key.as_deref()?)));
        for (QualifiedName { schema, name }, column) in sorted(keys) {
            line(&mut text, "key", [schema, name, column]);
        }
        for QualifiedName { schema, name } in sorted(resource.functions.iter()) {
            line(&mut text, "function", [schema.as_str(), name]);
        }
        hex(&Sha256::digest(text)[..16])
    }
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
