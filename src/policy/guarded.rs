//! What the triggers of the guard are told of a policy.
//!
//! Owns the order of their arguments. Must never leave one out: they go by their places.

use super::{FencedTable, Resource};

/// What a trigger of the guard on the table is told, before the exempt roles: see `guard.sql`.
pub(crate) fn guard_arguments<'a>(resource: &'a Resource, table: &'a FencedTable) -> [&'a str; 5] {
    let on_missing = resource.on_missing.name();
    let names = resource.keyed.as_ref().map(|keyed| &keyed.names);
    let (before, after) = names.map_or((resource.name.as_str(), ""), |names| (names.before(), names.after()));
    [resource.mode.name(), on_missing, before, table.key.as_deref().unwrap_or_default(), after]
}
