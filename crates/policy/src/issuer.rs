//! The issuer of a resource's tokens: an election in etcd, or a lease in the fenced database.
//!
//! Owns the two kinds and their names. Must never look up the leader: `fence` does.

use super::Template;
use fencegate_leader::ElectionName;
use std::fmt;

/// The source of a resource's tokens: only the token of its leader may raise the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// An election in etcd: the token is the create_revision of its leader's key.
    Election(ElectionName),
    /// A lease in the fenced database, by the name of its election: see docs/lead/leases.md.
    Lease(ElectionName),
}

impl Issuer {
    /// The key by which a policy names it.
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
    /// The name; of a lease with the word before it.
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

    /// The one of a key. None for a key that has none: its name is too long or not well-formed, or its election would lie
    /// within that of another key.
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
