//! Writes that a statement may make without showing them: because it is opaque, because of pending definitions, or
//! because the catalog is unknown.
//!
//! Must never treat the unknown as harmless.

use super::token::Earlier;
use super::{Judge, Stop};
use crate::affected::AffectedResource;
use crate::pending_definitions::PendingDefinitions;
use crate::rejection::Rejection;
use fencegate_policy::{Mode, Opaque, PolicySet, Resource};
use fencegate_statement::{OpaqueReason, Operation, RelationName, Statement, StatementKind};
use std::sync::Arc;

/// Why a statement may write relations that its text does not show.
enum Doubt {
    /// Its text does not show its writes.
    Text(OpaqueReason),
    /// It writes this relation, which may lead to a definition of the same transaction.
    Own(String),
    /// It writes this relation, which may lead to another session's definition.
    Others(String),
    /// It names this temporary relation of another session, and relations in that schema lead to fenced tables.
    Temporary(String),
}

impl Doubt {
    fn why(&self) -> String {
        match self {
            Doubt::Text(why) => why.to_string(),
            Doubt::Own(relation) => format!("\"{relation}\" may depend on a definition of the same transaction"),
            Doubt::Others(relation) => {
                format!("\"{relation}\" may depend on a definition that another session has not committed")
            }
            Doubt::Temporary(relation) => {
                format!("\"{relation}\" is a temporary relation of another session and may lead to a fenced table")
            }
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Doubt::Text(OpaqueReason::FencegatesOwnByPath) => OWN_HINT,
            Doubt::Text(_) => OPAQUE_HINT,
            Doubt::Own(_) => "Commit the definitions before you write to the relations that they change.",
            Doubt::Others(_) => "Retry when that session has ended its transaction.",
            Doubt::Temporary(_) => "Name the relation to which it leads.",
        }
    }
}

/// The hint of LF004 for a name that may mean one of fencegate's own objects.
const OWN_HINT: &str =
    "Qualify the name with its schema, as in public.epoch, or remove fencegate's schemas from search_path.";

/// The hint of LF004 for an opaque statement.
const OPAQUE_HINT: &str = "Write to the tables directly. Or install the guard (fencegate guard install), which checks each write in the database, and set `opaque: allow` in the policy, or `opaque_roles: {role: allow}` for this role only.";

impl Judge<'_> {
    /// The resources that an opaque statement may write, if the policy requires their tokens.
    pub(super) fn hidden(&self, statement: &Statement, earlier: &mut Earlier) -> Result<Vec<Arc<Resource>>, Stop> {
        let doubt = statement.opaque.map(Doubt::Text).or_else(|| self.definition_doubt(statement, earlier));
        let Some(doubt) = doubt else { return Ok(Vec::new()) };
        match self.opaque {
            Opaque::Allow => Ok(Vec::new()),
            Opaque::Reject => {
                let mode = self.may_be_written().map(|resource| resource.mode).max();
                self.reject_or_observe(mode, self.unverifiable(statement, doubt), earlier)?;
                Ok(Vec::new())
            }
            Opaque::RequireToken => Ok(self.may_be_written().cloned().collect()),
        }
    }

    /// The resources that may have an object in this database, if it has a fenced table.
    fn may_be_written(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let in_doubt = !self.seen.is_current || self.changes_catalog;
        let catalog = &self.seen.catalog;
        let may_be_written = move |it: &&Arc<Resource>| in_doubt || catalog.has_fenced_tables() && catalog.may_have(it);
        self.policies.resources.iter().filter(may_be_written)
    }

    /// Rejects or observes, depending on the mode, for a reason that concerns no single resource. `None`: no resource
    /// is affected.
    fn reject_or_observe(&self, mode: Option<Mode>, rejection: Rejection, earlier: &mut Earlier) -> Result<(), Stop> {
        match mode {
            Some(Mode::Enforce) => return Err(rejection.into()),
            Some(Mode::Observe) => earlier.observed(None, rejection),
            None => {}
        }
        Ok(())
    }

    fn unverifiable(&self, statement: &Statement, doubt: Doubt) -> Rejection {
        match doubt {
            // The others' transactions may have ended meanwhile.
            Doubt::Others(_) if !self.seen.is_current => Rejection::UnreadCatalog { why: self.seen.unread.clone() },
            Doubt::Text(OpaqueReason::NoRoom) => Rejection::NoRoom,
            doubt => {
                let why = match statement.kind {
                    // A statement of unknown type.
                    StatementKind::Unspecified => doubt.why(),
                    kind => format!("{kind}: {}", doubt.why()),
                };
                Rejection::Unverifiable { why, hint: doubt.hint() }
            }
        }
    }

    /// The doubt about a statement that may write through a pending definition, or a temporary relation of another session.
    fn definition_doubt(&self, statement: &Statement, earlier: &Earlier) -> Option<Doubt> {
        let within =
            |pending: &PendingDefinitions| pending.written_within(statement, self.policies, &self.seen.catalog);
        if let Some(relation) = within(self.pending).or_else(|| within(&earlier.pending)) {
            return Some(Doubt::Own(relation.name.clone()));
        }
        let of_others = |pending: &Arc<PendingDefinitions>| pending.written_by(statement, &self.seen.catalog);
        if let Some(relation) = self.definitions_of_others.iter().find_map(of_others) {
            return Some(Doubt::Others(relation.name.clone()));
        }
        let is_of_another = |relation: &&RelationName| {
            relation.schema.as_deref().is_some_and(|schema| self.seen.catalog.leaves_to_session(schema))
        };
        let read = statement.reads.iter().filter(|_| self.policies.has_functions());
        let relation = statement.writes.iter().map(|write| &write.relation).chain(read).find(is_of_another)?;
        Some(Doubt::Temporary(relation.name.clone()))
    }

    /// A prepared transaction leaves its session, together with its writes and definitions. Other sessions do not see
    /// the definitions until any session commits it.
    pub(super) fn refuse_to_prepare(&self, earlier: &mut Earlier) -> Result<(), Stop> {
        let writes = || Rejection::CarriedOut {
            what: "has written to a fenced table",
            hint: "COMMIT in the session that holds the token; two-phase commit is not possible with fenced tables.",
        };
        let holds = self.standing.holds_admissions() || !self.written.is_empty();
        if holds || earlier.needs.first(Mode::Enforce).is_some() {
            return Err(writes().into());
        }
        let defines = !self.pending.is_empty() || !earlier.pending.is_empty();
        let mode = self.policies.resources.iter().map(|resource| resource.mode).max();
        if defines && self.opaque != Opaque::Allow {
            let rejection = Rejection::CarriedOut {
                what: "may have defined a path to a fenced table",
                hint: "Use COMMIT instead of PREPARE TRANSACTION.",
            };
            return self.reject_or_observe(mode, rejection, earlier);
        }
        if let Some(resource) = earlier.needs.first(Mode::Observe).or(self.observed.admitted.as_ref()).cloned() {
            earlier.observed(Some(resource), writes());
        }
        Ok(())
    }

    /// While the catalog is unknown, any relation may lead to any fenced table. With functions in the policies, a read or a
    /// call may call one of them. A write is then harmless only if it needs the token of every fence anyway. If the only
    /// doubt is a missing listener, writes to relations that the policies name are harmless too. Only the catalog shows
    /// the dependents that CASCADE removes.
    pub(super) fn refuse_unread(
        &self,
        statement: &Statement,
        affected: &[AffectedResource],
        earlier: &mut Earlier,
    ) -> Result<(), Stop> {
        let writes = statement.writes.iter().any(|write| write.operation != Operation::Lock);
        let needs_catalog = writes || may_call(statement, self.policies);
        let cascades = statement.writes.iter().any(|write| write.operation == Operation::Cascade);
        let is_known = self.seen.is_current && (!cascades || self.seen.dependencies.is_some());
        if is_known || !needs_catalog || self.seen.lacks_listener && is_named_plainly(statement, self.policies) {
            return Ok(());
        }
        let is_affected =
            |resource: &Arc<Resource>| affected.iter().any(|it| it.writes && Arc::ptr_eq(&it.resource, resource));
        let may_write = |resource: &&Arc<Resource>| resource.keyed.is_some() || !is_affected(resource);
        let mode = self.policies.resources.iter().filter(may_write).map(|resource| resource.mode).max();
        self.reject_or_observe(mode, self.unread(), earlier)
    }

    /// The catalog that the statement depends on was not read.
    pub(super) fn unread(&self) -> Rejection {
        Rejection::UnreadCatalog { why: self.seen.unread.clone() }
    }
}

/// Returns true if the statement calls a function that may call one of the policies, or reads a relation that may be such
/// a view.
fn may_call(statement: &Statement, policies: &PolicySet) -> bool {
    let is_plain = |relation: &RelationName| {
        relation.schema.as_deref() == Some("pg_catalog") || policies.tables_called(relation).next().is_some()
    };
    policies.has_functions()
        && (statement.reads_more || statement.calls_code() || !statement.reads.iter().all(is_plain))
}

/// True if the statement may pass with any catalog, under the tokens that its text requires: those of all fences,
/// observing ones included. It need not wait for a reading, unless it writes relations that others are defining.
pub fn needs_every_token(statement: &Statement, policies: &PolicySet) -> bool {
    let is_written = |resource: &Arc<Resource>| {
        let mut writes = statement.writes.iter().filter(|write| write.operation != Operation::Lock);
        writes.any(|write| {
            policies.fenced(&write.relation, write.operation).any(|(written, _)| Arc::ptr_eq(written, resource))
        })
    };
    // A hidden write could not require any other token.
    policies.resources.iter().all(|resource| resource.keyed.is_none() && is_written(resource))
        && is_named_plainly(statement, policies)
}

/// Returns true if the policies name everything that the statement writes or calls, and it defines nothing.
pub fn is_named_plainly(statement: &Statement, policies: &PolicySet) -> bool {
    let mut writes = statement.writes.iter().filter(|write| write.operation != Operation::Lock);
    statement.opaque.is_none()
        && !statement.changes_catalog
        && !may_call(statement, policies)
        && writes.all(|write| policies.tables_called(&write.relation).next().is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fencegate_policy::{FencedTable, OnMissing, QualifiedName};
    use fencegate_statement::{Lexing, analyze};

    fn statement(text: &str) -> Arc<Statement> {
        analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone()
    }

    /// A resource with a table of this name.
    fn resource(name: &str, mode: Mode) -> Resource {
        let table = QualifiedName { schema: "public".to_owned(), name: name.to_owned() };
        Resource {
            name: name.to_owned(),
            issuer: None,
            keyed: None,
            family: None,
            tables: vec![FencedTable { name: table, operations: vec![Operation::Insert], database: None, key: None }],
            functions: Vec::new(),
            on_missing: OnMissing::Reject,
            mode,
            fingerprint: String::new(),
        }
    }

    #[test]
    fn a_statement_that_writes_all_fenced_tables_needs_every_token() {
        let set = |resources: Vec<Resource>| PolicySet::new(resources, Opaque::Reject, None, Vec::new());
        let one = set(vec![resource("a", Mode::Enforce)]);
        let two = set(vec![resource("a", Mode::Enforce), resource("b", Mode::Observe)]);
        let both = "WITH w AS (INSERT INTO a VALUES (1)) INSERT INTO b VALUES (1)";
        for (text, of_one, of_two) in [
            ("INSERT INTO a VALUES (1)", true, false),
            ("INSERT INTO public.a VALUES (1)", true, false),
            (both, false, true),
            ("DELETE FROM a", false, false),
            ("INSERT INTO c VALUES (1)", false, false),
            ("INSERT INTO v VALUES (1)", false, false),
            ("SELECT 1 FROM a FOR UPDATE", false, false),
            ("CREATE TABLE t AS WITH w AS (INSERT INTO a VALUES (1)) SELECT 1", false, false),
            ("DO 'BEGIN END'", false, false),
        ] {
            let of = |policies| needs_every_token(&statement(text), policies);
            assert_eq!((of(&one), of(&two)), (of_one, of_two), "{text}");
        }
    }
}
