//! The catalog as a session sees it: the part that a verdict needs, and relations that an open transaction may have
//! turned into paths to fenced tables. The proxy's catalog readings do not include its changes until it commits.
//!
//! Owns the names that count. Must never forget one before the transaction has ended: a rollback to a savepoint may
//! leave one too many.

use fencegate_catalog::{Catalog, Dependencies};
use fencegate_fence::store::StoreError;
use fencegate_policy::PolicySet;
use fencegate_statement::rows::Rows;
use fencegate_statement::{Operation, Redirect, RelationName, Statement, TEMPORARY, Write};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of names. With more, every name counts.
const MOST: usize = 1024;

/// Operations that a pending rule may rewrite. Locking or altering a view does not affect the relations behind it, and
/// altering a parent or child already needed their token.
const SUSPECT: [Operation; 4] = [Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];

/// The suspect names of one transaction.
#[derive(Clone, Debug, Default)]
pub struct PendingDefinitions {
    /// Schemas by relation name; None stands for an unqualified name.
    schemas: HashMap<String, HashSet<Option<String>>>,
    /// There were too many to remember.
    all: bool,
}

impl PendingDefinitions {
    /// Records a statement that is about to run. Returns true if it adds pending definitions. A redirection adds none
    /// if its target cannot concern fenced tables, by the policies, the catalog, and the names known here and to
    /// others.
    pub fn note(
        &mut self,
        statement: &Statement,
        policies: &PolicySet,
        seen: &CatalogView,
        others: &[Arc<PendingDefinitions>],
    ) -> bool {
        let is_suspect = |to: &RelationName| self.contains(to) || others.iter().any(|other| other.contains(to));
        let leads_to_fenced =
            |to: &RelationName| !seen.is_current || seen.concerns_fences(to, policies) || is_suspect(to);
        let mut found: Vec<RelationName> = Vec::new();
        for Redirect { relation, to } in &statement.redirects {
            match to {
                Some(to) if to == relation => found.extend(keyed_tables(to, policies, &seen.catalog)),
                Some(to) if !leads_to_fenced(to) => {}
                _ => found.push(relation.clone()),
            }
        }
        // A definition may have changed the key's column or its type.
        for write in statement.writes.iter().filter(|write| write.operation == Operation::Ddl) {
            found.extend(keyed_tables(&write.relation, policies, &seen.catalog));
        }
        let mut are_more = false;
        for RelationName { schema, name } in found.into_iter().filter(|_| !self.all) {
            are_more |= self.schemas.entry(name).or_default().insert(schema);
        }
        if self.schemas.values().map(HashSet::len).sum::<usize>() > MOST {
            *self = PendingDefinitions::everything();
        }
        are_more
    }

    /// The part that counts for other sessions. The server lets only superusers write through temporary views of another
    /// session.
    pub fn for_others(&self) -> Self {
        let mut others = self.clone();
        others.schemas.retain(|_, schemas| {
            schemas.retain(|schema| schema.as_deref() != Some(TEMPORARY));
            !schemas.is_empty()
        });
        others
    }

    /// Every relation is suspect.
    pub fn everything() -> Self {
        PendingDefinitions { all: true, ..PendingDefinitions::default() }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        !self.all && self.schemas.is_empty()
    }

    /// The first relation that the statement writes and that is suspect or, according to the catalog, leads to a
    /// suspect one.
    pub fn written_by<'s>(&self, statement: &'s Statement, catalog: &Catalog) -> Option<&'s RelationName> {
        let is_suspect = |write: &&Write| {
            self.contains(&write.relation) || catalog.reached_by(write).any(|reached| self.contains(reached.table))
        };
        self.writes(statement).find(is_suspect).map(|write| &write.relation)
    }

    /// Like [`Self::written_by`], within the defining transaction: every earlier path to such a relation now leads
    /// further, so any relation that the policies do not name counts.
    pub fn written_within<'s>(
        &self,
        statement: &'s Statement,
        policies: &PolicySet,
        catalog: &Catalog,
    ) -> Option<&'s RelationName> {
        let is_unnamed = |write: &&Write| policies.tables_called(&write.relation).next().is_none();
        let unnamed = || self.writes(statement).find(is_unnamed).map(|write| &write.relation);
        self.written_by(statement, catalog).or_else(unnamed)
    }

    /// The writes that matter, if any definitions are pending.
    fn writes<'s>(&self, statement: &'s Statement) -> impl Iterator<Item = &'s Write> {
        let writes = if self.is_empty() { &[] } else { statement.writes.as_slice() };
        writes.iter().filter(|write| SUSPECT.contains(&write.operation))
    }

    fn contains(&self, relation: &RelationName) -> bool {
        let same_name = self.schemas.get(&relation.name);
        let may_be_same = |schemas: &HashSet<Option<String>>| {
            relation.schema.is_none() || schemas.contains(&relation.schema) || schemas.contains(&None)
        };
        self.all || same_name.is_some_and(may_be_same)
    }
}

/// The keyed tables whose keys a definition on the relation may change: itself, its parents and its parts.
fn keyed_tables(relation: &RelationName, policies: &PolicySet, catalog: &Catalog) -> Vec<RelationName> {
    let is_keyed = |table: &RelationName| policies.tables_called(table).any(|(_, table)| table.key.is_some());
    let definition = Write { relation: relation.clone(), operation: Operation::Ddl, rows: Rows::default() };
    let reached: Vec<RelationName> = catalog.reached_by(&definition).map(|reached| reached.table.clone()).collect();
    [relation.clone()].into_iter().chain(reached).filter(is_keyed).collect()
}

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
    pub lacks_listener: bool,
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fencegate_policy::Opaque;
    use fencegate_statement::{Lexing, analyze};

    fn statement(text: &str) -> Statement {
        analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].as_ref().clone()
    }

    fn policies() -> PolicySet {
        PolicySet::new(Vec::new(), Opaque::Reject, None, Vec::new())
    }

    fn written_by(pending: &PendingDefinitions, text: &str) -> bool {
        pending.written_by(&statement(text), &Catalog::default()).is_some()
    }

    fn after(texts: &[&str]) -> PendingDefinitions {
        let mut pending = PendingDefinitions::default();
        for text in texts {
            // If the catalog is not current, every named relation may be fenced.
            let seen = CatalogView { is_current: !text.contains("fenced"), ..CatalogView::default() };
            pending.note(&statement(text), &policies(), &seen, &[]);
        }
        pending
    }

    #[test]
    fn names_match_with_and_without_their_schema() {
        let rule = "CREATE RULE r AS ON INSERT TO t DO ALSO DELETE FROM fenced";
        let pending = after(&["CREATE VIEW s.v AS SELECT * FROM fenced", rule]);
        for text in ["INSERT INTO v VALUES (1)", "DELETE FROM s.v", "UPDATE x.t SET a = 1", "TRUNCATE t"] {
            assert!(written_by(&pending, text), "{text}");
        }
        for text in ["INSERT INTO x.v VALUES (1)", "DELETE FROM u", "DROP VIEW v", "SELECT 1 FROM v FOR UPDATE"] {
            assert!(!written_by(&pending, text), "{text}");
        }
    }

    #[test]
    fn temporary_views_count_only_for_their_session() {
        let pending = after(&["CREATE TEMP VIEW v AS TABLE fenced"]);
        for text in ["INSERT INTO v VALUES (1)", "DELETE FROM pg_temp.v"] {
            assert!(written_by(&pending, text), "{text}");
        }
        assert!(!written_by(&pending, "DELETE FROM public.v"));
        assert!(pending.for_others().is_empty());
        let pending = after(&["CREATE TEMP VIEW v AS TABLE fenced", "CREATE VIEW v AS TABLE fenced"]);
        assert!(written_by(&pending.for_others(), "DELETE FROM public.v"));
    }

    #[test]
    fn a_renamed_view_stays_suspect() {
        let pending =
            after(&["CREATE VIEW v AS TABLE fenced", "ALTER VIEW v RENAME TO w", "ALTER VIEW w SET SCHEMA s"]);
        assert!(written_by(&pending, "DELETE FROM s.w"));
        let pending = after(&["ALTER TABLE t RENAME TO u", "CREATE TABLE c PARTITION OF t DEFAULT"]);
        assert!(pending.is_empty());
        assert!(after(&["CREATE VIEW v AS SELECT 1 FROM t", "CREATE RULE r AS ON INSERT TO t DO NOTHING"]).is_empty());
    }

    #[test]
    fn one_suspect_makes_every_relation_suspect_within_the_transaction() {
        let within = |pending: &PendingDefinitions, text| {
            pending.written_within(&statement(text), &policies(), &Catalog::default()).is_some()
        };
        let pending = after(&["CREATE VIEW v AS TABLE fenced"]);
        assert!(within(&pending, "INSERT INTO another VALUES (1)"));
        assert!(!within(&pending, "SELECT 1 FROM another FOR UPDATE"));
        assert!(!written_by(&pending, "INSERT INTO another VALUES (1)"));
        assert!(!within(&after(&["CREATE VIEW v AS TABLE t"]), "INSERT INTO another VALUES (1)"));
    }

    #[test]
    fn too_many_definitions_make_every_relation_suspect() {
        let mut pending = PendingDefinitions::default();
        for number in 0..=MOST {
            let view = statement(&format!("CREATE VIEW v{number} AS TABLE t"));
            pending.note(&view, &policies(), &CatalogView::default(), &[]);
        }
        assert!(written_by(&pending, "DELETE FROM another"));
    }
}
