//! Relations that the open transaction may have turned into ways to fenced tables. Its own changes are not in the
//! catalogue that the proxy reads, as long as no other session can see them.
//!
//! Owns which names count. Must never forget one before the transaction has ended: a rollback to a savepoint may leave
//! one too many.

use crate::fence::Catalogue;
use crate::policy::PolicySet;
use crate::statement::{Operation, RelationName, Statement, Write};
use std::collections::HashSet;

/// More names than this are all names.
const MOST: usize = 1024;

/// What a write may be rewritten for; locking and changing a view does nothing to what is behind it, and what changes a
/// parent or a child needed the token for that.
const SUSPECT: [Operation; 4] = [Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];

/// The suspect names of one transaction.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    relations: HashSet<RelationName>,
    /// There were too many to remember.
    all: bool,
}

impl Suspects {
    /// A statement is about to run. What it redirects to a relation that has nothing to do with fenced tables, as far as
    /// policies, catalogue and the names known here tell, is not suspect.
    pub fn note(&mut self, statement: &Statement, policies: &PolicySet, catalogue: &Catalogue, is_current: bool) {
        let leads_to_fenced = |to: &RelationName| {
            !is_current || policies.tables_called(to).next().is_some() || catalogue.leads_from(to) || self.contains(to)
        };
        let redirects = statement.redirects.iter().filter(|it| it.to.as_ref().is_none_or(leads_to_fenced));
        let found: Vec<RelationName> = redirects.map(|redirect| redirect.relation.clone()).collect();
        self.relations.extend(found);
        // Its key may be another column by now, or of another type.
        let is_keyed = |write: &&Write| policies.tables_called(&write.relation).any(|(_, table)| table.key.is_some());
        let altered = statement.writes.iter().filter(|write| write.operation == Operation::Ddl).filter(is_keyed);
        self.relations.extend(altered.map(|write| write.relation.clone()));
        if self.relations.len() > MOST {
            self.relations.clear();
            self.all = true;
        }
    }

    /// The transaction has ended, and others can see what it did.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The first write of the statement to such a relation.
    pub fn written_by<'s>(&self, statement: &'s Statement) -> Option<&'s RelationName> {
        let is_suspect = |write: &&Write| SUSPECT.contains(&write.operation) && self.contains(&write.relation);
        statement.writes.iter().find(is_suspect).map(|write| &write.relation)
    }

    fn contains(&self, relation: &RelationName) -> bool {
        let may_be_same = |other: &RelationName| other.schema.is_none() || relation.schema.is_none();
        self.all
            || self.relations.contains(relation)
            || self.relations.iter().any(|other| other.name == relation.name && may_be_same(other))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::policy::Opaque;
    use crate::statement::{Encoding, Lexing, analyse};

    fn statement(text: &str) -> Statement {
        let lexing = Lexing { standard_conforming_strings: true, encoding: Encoding::Utf8 };
        analyse(text.as_bytes(), lexing).unwrap().statements[0].as_ref().clone()
    }

    fn after(texts: &[&str]) -> Suspects {
        let policies = PolicySet::new(Vec::new(), Opaque::Reject, None, Vec::new());
        let mut suspects = Suspects::default();
        for text in texts {
            suspects.note(&statement(text), &policies, &Catalogue::default(), true);
        }
        suspects
    }

    #[test]
    fn a_name_may_stand_without_its_schema() {
        let suspects = after(&["CREATE VIEW s.v AS SELECT 1", "CREATE RULE r AS ON INSERT TO t DO NOTHING"]);
        for text in ["INSERT INTO v VALUES (1)", "DELETE FROM s.v", "UPDATE x.t SET a = 1", "TRUNCATE t"] {
            assert!(suspects.written_by(&statement(text)).is_some(), "{text}");
        }
        for text in ["INSERT INTO x.v VALUES (1)", "DELETE FROM u", "DROP VIEW v", "SELECT 1 FROM v FOR UPDATE"] {
            assert!(suspects.written_by(&statement(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_suspect_is_one_by_its_new_name_as_well() {
        let suspects = after(&["CREATE VIEW v AS SELECT 1", "ALTER VIEW v RENAME TO w", "ALTER VIEW w SET SCHEMA s"]);
        assert!(suspects.written_by(&statement("DELETE FROM s.w")).is_some());
        let suspects = after(&["ALTER TABLE t RENAME TO u", "CREATE TABLE c PARTITION OF t DEFAULT"]);
        assert!(suspects.relations.is_empty());
    }

    #[test]
    fn too_many_are_all() {
        let mut suspects = Suspects::default();
        let policies = PolicySet::new(Vec::new(), Opaque::Reject, None, Vec::new());
        for number in 0..=MOST {
            let view = statement(&format!("CREATE VIEW v{number} AS SELECT 1"));
            suspects.note(&view, &policies, &Catalogue::default(), true);
        }
        assert!(suspects.written_by(&statement("DELETE FROM another")).is_some());
        suspects.clear();
        assert!(suspects.written_by(&statement("DELETE FROM v1")).is_none());
    }
}
