//! One resource of the policies: its tables, the issuer of its tokens, and its mode.

use super::function::FencedFunction;
use super::issuer::Issuer;
use super::keyed::Keyed;
use super::qualified_name::QualifiedName;
use fencegate_leader::ElectionName;
use fencegate_statement::Operation;

/// A unit of leadership: only one leader at a time may write it. A keyed resource stands for one unit for each value of a
/// column.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The name in tokens, errors and metrics; of a keyed resource, with its placeholder.
    pub name: String,
    /// The issuer whose leader's token alone may raise the fence. None: any token may.
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
    /// Whether the fence acts or only counts and logs.
    pub mode: Mode,
    /// A stable hash (32 hex digits) of everything that affects this resource's enforcement, including the set's
    /// `opaque`, `databases` and `exempt_roles`. Proxies with equal fingerprints agree.
    pub fingerprint: String,
}

impl Resource {
    /// The election in etcd that issues its tokens.
    pub fn election(&self) -> Option<&ElectionName> {
        match &self.issuer {
            Some(Issuer::Election(name)) => Some(name),
            Some(Issuer::Lease(_)) | None => None,
        }
    }

    /// The lease in the fenced database that issues its tokens.
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
    /// Its schema and name.
    pub name: QualifiedName,
    /// Sorted; never contains [`Operation::Lock`], [`Operation::Cascade`] and [`Operation::TruncateCascade`], which follow the others.
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
