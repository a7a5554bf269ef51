//! Unqualified names: the relations that a statement's names may mean under the session's search path.
//!
//! Must never narrow a name by a path that may have changed. Such a name stands for every schema.

use super::host::Host;
use super::message::{ServerFact, Verdict};
use super::path::{OwnSchemas, SearchPath};
use super::session::Session;
use fencegate_catalog::Catalog;
use fencegate_fence::Role;
use fencegate_policy::Opaque;
use fencegate_statement::{OWN_SCHEMAS, RelationName, Statement, StatementKind, TEMPORARY};
use std::sync::Arc;

/// When the server looks up the names of the statements at hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// One statement after the other: a simple query.
    InString,
    /// When the portal is bound.
    AtBind,
    /// When the portal is executed.
    AtExecute,
}

impl Lookup {
    fn concerns(self, statement: &Statement) -> bool {
        // The server analyzes a whole query when its portal is bound, before any of it runs.
        let is_planned = statement.kind.is_query();
        let is_executed = is_resolved_at_execution(statement);
        match self {
            Lookup::InString => is_planned || is_executed,
            Lookup::AtBind => is_planned,
            Lookup::AtExecute => is_executed,
        }
    }

    /// Both count: the server may resolve the names of a definition, or of a nested statement, at Bind or at Execute.
    fn concerns_own(self, statement: &Statement) -> bool {
        self != Lookup::AtBind || !is_resolved_at_execution(statement)
    }
}

/// Returns true if the server resolves the statement's names only when it executes the statement.
fn is_resolved_at_execution(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::CopyFrom | StatementKind::Truncate | StatementKind::LockTable)
}

impl<H: Host> Session<H> {
    /// Replaces unqualified names by the relations that they may mean, if the path makes a difference and is known.
    /// Other names stand for every schema. Returns a verdict if the path must be queried first.
    pub(super) fn resolve_by_path(&mut self, statements: &mut [Arc<Statement>], lookup: Lookup) -> Option<Verdict> {
        let has_names = |it: &Arc<Statement>| !it.writes.is_empty() || it.own_by_path;
        if !statements.iter().any(has_names) || self.host.policies().exempts(self.host.user()) {
            return None;
        }
        // The server answers no query in a failed transaction or during COPY. Replication sessions have another
        // grammar.
        let can_ask = !self.settings.parameter.failed() && !self.settings.replicates && !self.pipeline.is_copying_in();
        if let Some(verdict) = self.resolve_own(statements, lookup, can_ask) {
            return Some(verdict);
        }
        if !can_ask || matches!(self.settings.path.current(), SearchPath::Any(_)) {
            return None;
        }
        let catalog = self.host.catalog(None).catalog;
        // An earlier statement of the string may set the path.
        let first_alone = statements.iter().take_while(|it| it.runs_nothing()).count() + 1;
        for statement in statements.iter_mut().take(first_alone).filter(|it| lookup.concerns(it)) {
            let mut written = statement.writes.iter().map(|write| &write.relation);
            if !written.any(|relation| self.is_elsewhere(relation, &catalog)) {
                continue;
            }
            if self.pipeline.path_in_doubt() || *self.settings.path.current() == SearchPath::Unasked {
                return Some(self.query_path());
            }
            self.settings.path.judged_by();
            let SearchPath::Schemas(schemas) = self.settings.path.current() else { continue };
            let is_named = schemas.iter().any(|schema| schema == TEMPORARY);
            let temporary = (!is_named).then(|| TEMPORARY.to_owned());
            let schemas: Vec<String> = temporary.into_iter().chain(schemas.iter().cloned()).collect();
            *statement = Arc::new(statement.in_schemas(&schemas, |relation| self.is_elsewhere(relation, &catalog)));
        }
        None
    }

    /// Marks statements whose names may mean fencegate's own objects, unless the path has none of their schemas. An
    /// earlier statement of the string makes the path unknown only if its text shows that it may set the path or the
    /// role: hidden code could touch these objects itself.
    fn resolve_own(&mut self, statements: &mut [Arc<Statement>], lookup: Lookup, can_ask: bool) -> Option<Verdict> {
        if self.host.policies().opaque_of(self.host.user()) == Opaque::Allow {
            return None;
        }
        let mut is_known = can_ask;
        for statement in statements {
            if statement.own_by_path && statement.opaque.is_none() && lookup.concerns_own(statement) {
                let in_doubt = self.pipeline.path_in_doubt();
                let own = self.settings.path.current().own_schemas().filter(|_| !in_doubt);
                let means_own = match (own, &self.message.facts.role) {
                    _ if !is_known => true,
                    (None, _) | (Some(OwnSchemas::AsRole), ServerFact::NotQueried | ServerFact::Due) => {
                        return Some(self.query_path_and_role());
                    }
                    (Some(OwnSchemas::AsRole), ServerFact::Known(Role::Current(role))) => {
                        OWN_SCHEMAS.contains(&role.as_str())
                    }
                    (Some(OwnSchemas::AsRole), ServerFact::Known(_)) => true,
                    (Some(own), _) => own == OwnSchemas::Possible,
                };
                self.settings.path.judged_by();
                if means_own || lookup == Lookup::AtBind && statement.kind.is_query() {
                    *statement = Arc::new(statement.by_own_path(means_own));
                }
            }
            is_known &= !statement.shows_other_path();
        }
        None
    }

    /// Returns true if an unqualified name may mean a fenced table, or a way to one, in a schema that the last known
    /// path does not contain.
    fn is_elsewhere(&self, relation: &RelationName, catalog: &Catalog) -> bool {
        let is_outside = |schema: &str| match self.settings.path.current() {
            SearchPath::Unasked => true,
            SearchPath::Any(_) => false,
            SearchPath::Schemas(schemas) => {
                schema != "pg_catalog" && !schema.starts_with(TEMPORARY) && !schemas.iter().any(|it| it == schema)
            }
        };
        let mut fenced = self.host.policies().tables_called(relation).map(|(_, table)| table.name.schema.as_str());
        relation.schema.is_none()
            && (fenced.any(is_outside) || catalog.schemas_that_lead_by(&relation.name).any(is_outside))
    }
}
