//! The part of a policy that the guard receives.
//!
//! Owns the order of their arguments. Must never leave one out: they go by their places.

use super::{FencedTable, Issuer, Issuers, Mode, Resource};

/// Arguments of the guard's trigger on the table, before the exempt roles: see `guard.sql`.
pub fn guard_arguments<'a>(resource: &'a Resource, table: &'a FencedTable) -> [&'a str; 5] {
    let on_missing = resource.on_missing.name();
    let names = resource.keyed.as_ref().map(|keyed| &keyed.names);
    let (before, after) = names.map_or((resource.name.as_str(), ""), |names| (names.before(), names.after()));
    [resource.mode.name(), on_missing, before, table.key.as_deref().unwrap_or_default(), after]
}

/// The lease whose tokens raise the resource's fence as soon as they are issued, and the resource; `{}` stands for the
/// key. None without a lease or without enforcement.
pub fn guarded_lease(resource: &Resource) -> Option<(String, String)> {
    let issuers = resource.keyed.as_ref().and_then(|keyed| keyed.issuers.as_ref());
    let lease = match (&resource.issuer, issuers) {
        _ if resource.mode == Mode::Observe => None,
        (Some(Issuer::Lease(name)), _) => Some(name.to_string()),
        (None, Some(Issuers::Leases(names))) => Some(names.family()),
        _ => None,
    };
    Some((resource.family_name(), lease?))
}
