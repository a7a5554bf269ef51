//! The catalog as a session sees it: what it has to contain for a verdict, and what is known of it.

use fencegate_catalog::{Catalog, Dependencies};
use fencegate_fence::store::StoreError;
use fencegate_policy::PolicySet;
use fencegate_statement::RelationName;
use std::sync::Arc;

/// Counts of the catalog changes seen up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// All changes that the proxy has seen or assumes.
    pub all: u64,
    /// The changes that may concern fenced tables.
    pub doubts: u64,
}

/// The part of the catalog that a verdict needs.
#[derive(Clone, Debug)]
pub struct CatalogRequest {
    /// The changes before the message. Later changes come from concurrent sessions, whose pending definitions count until
    /// the next reading.
    pub since: Changes,
    /// The schema of its session's temporary relations.
    pub temporary: Option<Arc<str>>,
    /// Include the dependents that CASCADE removes.
    pub cascades: bool,
    /// The statement writes only relations that the policies name, so concurrent changes cannot matter.
    pub is_plain: bool,
}

/// The known part of a database's catalog at a moment.
#[derive(Default)]
pub struct CatalogView {
    /// The last reading.
    pub catalog: Arc<Catalog>,
    /// The objects that CASCADE drops, if requested and known.
    pub dependencies: Option<Arc<Dependencies>>,
    /// True if the reading covers all changes that may concern fenced tables.
    pub is_current: bool,
    /// True if the only reason for `is_current` being false is that no control connection listens for changes.
    pub is_unheard: bool,
    /// The number of changes that the reading covers.
    pub doubts: u64,
    /// The error of the last reading, if the catalog is not current.
    pub unread: Option<StoreError>,
}

impl CatalogView {
    /// Returns true if the policies name the relation, or a write to it may reach a fenced table.
    pub fn concerns_fences(&self, relation: &RelationName, policies: &PolicySet) -> bool {
        policies.tables_called(relation).next().is_some() || self.catalog.leads_from(relation)
    }
}

impl Changes {
    /// Returns true if these changes include all of the other's.
    pub fn has(self, other: Changes) -> bool {
        self.all >= other.all && self.doubts >= other.doubts
    }
}
