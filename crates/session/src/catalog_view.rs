//! The catalog as a session sees it: what it has to contain for a verdict, and what is known of it.

use fencegate_catalog::{Catalog, Dependencies};
use fencegate_fence::store::StoreError;
use fencegate_policy::PolicySet;
use fencegate_statement::RelationName;
use std::sync::Arc;

/// The changes seen up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// All of them, as far as the proxy saw or supposes them.
    pub all: u64,
    /// Those that may have to do with fenced tables.
    pub doubts: u64,
}

/// The part of the catalog that a verdict needs.
#[derive(Clone, Debug)]
pub struct CatalogRequest {
    /// It came after these changes. One that is seen later is made by a session beside it: the suspects of that count,
    /// until the catalog was read again.
    pub since: Changes,
    /// The schema of its session's temporary relations.
    pub temporary: Option<Arc<str>>,
    /// Include the dependents that CASCADE removes.
    pub cascades: bool,
    /// The statement writes only relations that the policies name, so concurrent changes cannot matter.
    pub is_plain: bool,
}

/// A database's catalog, as far as it is known at a moment.
#[derive(Default)]
pub struct CatalogView {
    /// As last read.
    pub catalog: Arc<Catalog>,
    /// Objects that CASCADE drops, if they were requested and are known.
    pub dependencies: Option<Arc<Dependencies>>,
    /// No change that may concern fenced tables had happened at the time of the reading.
    pub is_current: bool,
    /// Where it is not current: only because no control connection listens to announcements of changes.
    pub is_unheard: bool,
    /// How many such changes it has.
    pub doubts: u64,
    /// Why it could not be read last, where it is not current.
    pub unread: Option<StoreError>,
}

impl CatalogView {
    /// The policies name the relation, or some write to it is one to a fenced table.
    pub fn concerns_fences(&self, relation: &RelationName, policies: &PolicySet) -> bool {
        policies.tables_called(relation).next().is_some() || self.catalog.leads_from(relation)
    }
}

impl Changes {
    /// They are all among these.
    pub fn has(self, other: Changes) -> bool {
        self.all >= other.all && self.doubts >= other.doubts
    }
}
