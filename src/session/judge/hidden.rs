//! Writes that a statement may make without showing them: because it is opaque, because of open definitions, or because the
//! catalogue is not known.
//!
//! Must never take the unknown for harmless.

use super::{Earlier, Judge, Stop};
use crate::policy::{Mode, Opaque, PolicySet, Resource};
use crate::session::rejection::{NO_ROOM, Rejection};
use crate::session::suspects::Suspects;
use crate::session::touched::Touch;
use crate::statement::{Operation, RelationName, Statement};
use std::sync::Arc;

/// Why a statement may write what it does not show.
enum Doubt {
    /// Its text does not tell.
    Text(&'static str),
    /// It writes this relation, which may lead to what the same transaction has defined.
    Own(String),
    /// It writes this relation, which may lead to what another session is defining.
    Others(String),
}

impl Doubt {
    fn why(&self) -> String {
        match self {
            Doubt::Text(why) => (*why).to_owned(),
            Doubt::Own(relation) => format!("\"{relation}\" may lead to what the same transaction has defined"),
            Doubt::Others(relation) => format!("\"{relation}\" may lead to what another session is defining"),
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Doubt::Text(_) => "Write to the tables directly, or set `opaque: require_token` or `allow` in the policy.",
            Doubt::Own(_) => "Commit the definitions before you write to what they made.",
            Doubt::Others(_) => "Try again when that session has ended its transaction.",
        }
    }
}

impl Judge<'_> {
    /// The resources that an opaque statement may write, where it needs their tokens.
    pub(super) fn hidden(&self, statement: &Statement, earlier: &Earlier) -> Result<Vec<Arc<Resource>>, Stop> {
        let in_doubt = !self.seen.is_current || self.changes_catalogue;
        let matters = self.some_fence_acts() && (in_doubt || self.seen.catalogue.has_fenced_tables());
        let doubt = statement.opaque.map(Doubt::Text).or_else(|| self.suspect(statement, earlier));
        let Some(doubt) = doubt.filter(|_| matters) else { return Ok(Vec::new()) };
        match self.policies.opaque {
            Opaque::Allow => Ok(Vec::new()),
            Opaque::Reject => Err(match doubt {
                // They may have ended what they were defining.
                Doubt::Others(_) if !self.seen.is_current => {
                    Rejection::UnreadCatalogue { why: self.seen.unread.clone() }
                }
                Doubt::Text(NO_ROOM) => Rejection::NoRoom,
                doubt => {
                    let why = format!("{}: {}", statement.kind, doubt.why());
                    Rejection::Unverifiable { why, hint: doubt.hint() }
                }
            }
            .into()),
            Opaque::RequireToken => {
                let may_be_written = |resource: &&Arc<Resource>| {
                    resource.mode == Mode::Enforce && (in_doubt || self.seen.catalogue.may_have(resource))
                };
                Ok(self.policies.resources.iter().filter(may_be_written).cloned().collect())
            }
        }
    }

    /// Whether a statement may write by way of what is being defined.
    fn suspect(&self, statement: &Statement, earlier: &Earlier) -> Option<Doubt> {
        let within = |suspects: &Suspects| suspects.written_within(statement, self.policies, &self.seen.catalogue);
        if let Some(relation) = within(self.suspects).or_else(|| within(&earlier.suspects)) {
            return Some(Doubt::Own(relation.name.clone()));
        }
        let of_others = |suspects: &Arc<Suspects>| suspects.written_by(statement, &self.seen.catalogue);
        let relation = self.suspects_of_others.iter().find_map(of_others)?;
        Some(Doubt::Others(relation.name.clone()))
    }

    /// A prepared transaction leaves its session: with what it has written, and with what it defines for nobody, and for
    /// everybody as soon as any session commits it.
    pub(super) fn refuse_to_prepare(&self, earlier: &Earlier) -> Result<(), Stop> {
        let writes = self.standing.holds_admissions() || !self.written.is_empty() || !earlier.needs.is_empty();
        let defines = !self.suspects.is_empty() || !earlier.suspects.is_empty();
        let (what, hint) = if writes {
            let hint =
                "COMMIT in the session that holds the token; two-phase commit is not possible with fenced tables.";
            ("writes", hint)
        } else if defines && self.policies.opaque != Opaque::Allow && self.some_fence_acts() {
            ("ways", "COMMIT in the session that defines them.")
        } else {
            return Ok(());
        };
        let why = format!("a prepared transaction would carry {what} to a fenced table out of this session");
        Err(Rejection::Unverifiable { why, hint }.into())
    }

    /// While the catalogue is not known, any relation may be a way to any fenced table; and where policies name functions,
    /// reading it may call one. A write is harmless only if it needs the token of every fence anyway. Where the only doubt is
    /// that nobody listens, so is what the policies name. Only the catalogue tells what CASCADE takes.
    pub(super) fn refuse_what_is_unread(&self, statement: &Statement, touched: &[Touch]) -> Result<(), Stop> {
        let writes = statement.writes.iter().any(|write| write.operation != Operation::Lock);
        let may_write = writes || may_call_by_reading(statement, self.policies);
        let cascades = statement.writes.iter().any(|write| write.operation == Operation::Cascade);
        let is_known = self.seen.is_current && (!cascades || self.seen.dependencies.is_some());
        if is_known || !may_write || self.seen.is_unheard && is_named_plainly(statement, self.policies) {
            return Ok(());
        }
        let is_touched =
            |resource: &Arc<Resource>| touched.iter().any(|it| it.writes && Arc::ptr_eq(&it.resource, resource));
        match needs_all(self.policies, is_touched) {
            true => Ok(()),
            false => Err(self.unread().into()),
        }
    }

    /// What the statement depends on has not been read.
    pub(super) fn unread(&self) -> Rejection {
        Rejection::UnreadCatalogue { why: self.seen.unread.clone() }
    }

    /// Fences that only observe reject nothing, also not what cannot be verified.
    fn some_fence_acts(&self) -> bool {
        self.policies.resources.iter().any(|resource| resource.mode == Mode::Enforce)
    }
}

/// It reads what may be a view that calls a function which the policies name.
fn may_call_by_reading(statement: &Statement, policies: &PolicySet) -> bool {
    let is_plain = |relation: &RelationName| {
        relation.schema.as_deref() == Some("pg_catalog") || policies.tables_called(relation).next().is_some()
    };
    policies.has_functions() && (statement.reads_more || !statement.reads.iter().all(is_plain))
}

/// Whatever the catalogue has become, the statement may pass under the tokens that its text asks for: those of all fences.
/// So it need not wait for a reading, unless it writes what others are defining.
pub fn needs_every_token(statement: &Statement, policies: &PolicySet) -> bool {
    let is_written = |resource: &Arc<Resource>| {
        let mut writes = statement.writes.iter().filter(|write| write.operation != Operation::Lock);
        writes.any(|write| {
            policies.fenced(&write.relation, write.operation).any(|(written, _)| Arc::ptr_eq(written, resource))
        })
    };
    needs_all(policies, is_written) && is_named_plainly(statement, policies)
}

/// The statement already needs the tokens of all enforced resources, and none is keyed: hidden writes could need no other.
fn needs_all(policies: &PolicySet, is_written: impl Fn(&Arc<Resource>) -> bool) -> bool {
    let mut acting = policies.resources.iter().filter(|resource| resource.mode == Mode::Enforce);
    acting.all(|resource| resource.keyed.is_none() && is_written(resource))
}

/// The policies name all that the statement writes or calls, and it defines nothing.
pub fn is_named_plainly(statement: &Statement, policies: &PolicySet) -> bool {
    let mut writes = statement.writes.iter().filter(|write| write.operation != Operation::Lock);
    statement.opaque.is_none()
        && !statement.changes_catalogue
        && !may_call_by_reading(statement, policies)
        && writes.all(|write| policies.tables_called(&write.relation).next().is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::policy::{FencedTable, OnMissing, QualifiedName};
    use crate::statement::{Lexing, analyse};

    fn statement(text: &str) -> Arc<Statement> {
        analyse(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone()
    }

    /// A table of that name.
    fn resource(name: &str, mode: Mode) -> Resource {
        let table = QualifiedName { schema: "public".to_owned(), name: name.to_owned() };
        Resource {
            name: name.to_owned(),
            election: None,
            keyed: None,
            family: None,
            tables: vec![FencedTable { name: table, operations: vec![Operation::Insert], key: None }],
            functions: Vec::new(),
            on_missing: OnMissing::Reject,
            mode,
            fingerprint: String::new(),
        }
    }

    #[test]
    fn who_writes_what_every_acting_fence_is_for_needs_every_token() {
        let set = |resources: Vec<Resource>| PolicySet::new(resources, Opaque::Reject, None, Vec::new());
        let one = set(vec![resource("a", Mode::Enforce), resource("c", Mode::Observe)]);
        let two = set(vec![resource("a", Mode::Enforce), resource("b", Mode::Enforce)]);
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
