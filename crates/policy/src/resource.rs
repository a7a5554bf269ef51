//! One resource of the policies: its tables, the issuer of its tokens, its mode, and the part that the guard receives.
//!
//! Must never
//! - look up the leader: `fence` does;
//! - omit an argument of the guard, because the arguments are positional.

use super::Template;
use super::keyed::Keyed;
use super::name::{FencedFunction, QualifiedName};
use fencegate_leader::ElectionName;
use fencegate_statement::Operation;
use std::fmt;

/// A unit of leadership: only one leader at a time may write it. A keyed resource represents one unit for each value of
/// a column.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The name in tokens, errors and metrics; for a keyed resource, with the placeholder.
    pub name: String,
    /// The issuer. Only its leader's token may raise the fence. None: any token may.
    pub issuer: Option<Issuer>,
    /// Set for a resource that represents the resources of all keys, see [`Resource::of_key`]. Only the resources of keys
    /// have tokens.
    pub keyed: Option<Keyed>,
    /// For the resource of one key: a name for all keys, `shard/{}`.
    pub family: Option<String>,
    /// The tables whose writes need the resource's token.
    pub tables: Vec<FencedTable>,
    /// Calling one of these counts as a write to the resource.
    pub functions: Vec<FencedFunction>,
    /// The rule for sessions without a token.
    pub on_missing: OnMissing,
    /// Whether the fence is enforced, or only counts and logs.
    pub mode: Mode,
    /// A stable hash (32 hex digits) of everything that affects this resource's enforcement, including the set's
    /// `opaque`, `databases` and `exempt_roles`. Proxies with equal fingerprints agree.
    pub fingerprint: String,
}

impl Resource {
    /// The election in etcd that issues the resource's tokens.
    pub fn election(&self) -> Option<&ElectionName> {
        match &self.issuer {
            Some(Issuer::Election(name)) => Some(name),
            Some(Issuer::Lease(_)) | None => None,
        }
    }

    /// The lease in the fenced database that issues the resource's tokens.
    pub fn lease(&self) -> Option<&str> {
        match &self.issuer {
            Some(Issuer::Lease(name)) => Some(name.as_str()),
            Some(Issuer::Election(_)) | None => None,
        }
    }
}

/// A table and the operations on it that are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedTable {
    /// The table's schema and name.
    pub name: QualifiedName,
    /// Sorted. Never contains [`Operation::Lock`], [`Operation::Cascade`] or [`Operation::TruncateCascade`], which
    /// follow from the others.
    pub operations: Vec<Operation>,
    /// The table's only database, if the policy names it. The table is fenced wherever it exists; a missing table is
    /// reported only for this database.
    pub database: Option<String>,
    /// The column whose value determines a row's resource, if the resource is keyed.
    pub key: Option<String>,
}

/// The rule for writes without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMissing {
    /// LF002.
    #[default]
    Reject,
    /// The statement passes.
    Allow,
}

impl OnMissing {
    /// The value's name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            OnMissing::Reject => "reject",
            OnMissing::Allow => "allow",
        }
    }
}

/// Whether a fence is enforced. If several fences concern a statement, the greatest mode decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Forwards writes, and counts and logs those that it would have rejected. Does not drain processes.
    Observe,
    /// Rejects writes.
    #[default]
    Enforce,
}

impl Mode {
    /// The value's name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
        }
    }
}

/// The source of a resource's tokens: only the token of its leader may raise the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// An election in etcd: the token is the create_revision of its leader's key.
    Election(ElectionName),
    /// A lease in the fenced database, by the name of its election: see docs/lead/leases.md.
    Lease(ElectionName),
}

impl Issuer {
    /// The issuer's key in a policy.
    pub fn kind(&self) -> &'static str {
        match self {
            Issuer::Election(_) => "election",
            Issuer::Lease(_) => "lease",
        }
    }

    /// Its name.
    pub fn name(&self) -> &ElectionName {
        match self {
            Issuer::Election(name) | Issuer::Lease(name) => name,
        }
    }
}

impl fmt::Display for Issuer {
    /// The name for display; that of a lease follows the word `lease`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Issuer::Election(name) => name.fmt(formatter),
            Issuer::Lease(name) => write!(formatter, "lease {name}"),
        }
    }
}

/// One [`Issuer`] for every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuers {
    /// Elections in etcd.
    Elections(Template),
    /// Leases in the fenced database.
    Leases(Template),
}

impl Issuers {
    /// As [`Issuer::kind`].
    pub fn kind(&self) -> &'static str {
        match self {
            Issuers::Elections(_) => "election",
            Issuers::Leases(_) => "lease",
        }
    }

    /// Their names.
    pub fn names(&self) -> &Template {
        match self {
            Issuers::Elections(names) | Issuers::Leases(names) => names,
        }
    }

    /// The issuer for a key. None if its name is too long or not well-formed, or if its election would be nested in
    /// that of another key.
    pub(super) fn of_key(&self, key: &str) -> Option<Issuer> {
        match self {
            Issuers::Elections(_) if key.contains('/') => None,
            Issuers::Elections(names) => names.fill(key).parse().ok().map(Issuer::Election),
            Issuers::Leases(names) => names.fill(key).parse().ok().map(Issuer::Lease),
        }
    }
}

impl fmt::Display for Issuers {
    /// As [`Issuer`], with the placeholder.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Issuers::Elections(names) => names.fmt(formatter),
            Issuers::Leases(names) => write!(formatter, "lease {names}"),
        }
    }
}

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
