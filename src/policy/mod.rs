//! Policies: which tables are fenced, how, and for whom.
//!
//! Owns the YAML model and the loading of a directory of it, with positions for every error.
//! Must never apply half a directory: a set is valid whole, or it is refused whole.

use crate::statement::Operation;
use std::sync::Arc;

/// All policies of one directory, validated.
#[derive(Debug, Default)]
pub struct PolicySet {
    /// In the order of the files' names and of the lists in them.
    pub resources: Vec<Arc<Resource>>,
    /// What happens to statements whose text does not tell what they write.
    pub opaque: Opaque,
    /// The databases in which the resources are fenced; None: wherever a named table exists.
    pub databases: Option<Vec<String>>,
    /// Login roles that bypass the fences.
    pub exempt_roles: Vec<String>,
}

/// A thing that one leader at a time may write.
#[derive(Debug)]
pub struct Resource {
    /// The name in tokens, errors and metrics.
    pub name: String,
    /// The tables whose writes need the resource's token.
    pub tables: Vec<FencedTable>,
    /// Calling one of these counts as a write to the resource.
    pub functions: Vec<QualifiedName>,
    /// What happens to sessions without a token.
    pub on_missing: OnMissing,
    /// Whether the fence acts or only counts and logs.
    pub mode: Mode,
    /// A stable hash (32 hex digits) of all that decides what this resource's fence lets through,
    /// with the set's `opaque`, `databases` and `exempt_roles`: two proxies with the same one agree.
    pub fingerprint: String,
}

/// A table and the operations on it that are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedTable {
    /// Its schema and name.
    pub name: QualifiedName,
    /// Sorted; never contains [`Operation::Lock`], which follows the others.
    pub operations: Vec<Operation>,
}

/// A schema-qualified SQL name, folded and unquoted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QualifiedName {
    /// The schema.
    pub schema: String,
    /// The name in it.
    pub name: String,
}

/// What a write without a token meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMissing {
    /// LF002.
    #[default]
    Reject,
    /// It passes.
    Allow,
}

/// Whether a fence acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It rejects.
    #[default]
    Enforce,
    /// It forwards, and counts and logs what it would have rejected; it drains nobody.
    Observe,
}

/// What an opaque statement meets in a database where a fenced table exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opaque {
    /// LF004.
    #[default]
    Reject,
    /// It passes.
    Allow,
}
