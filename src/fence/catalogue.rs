//! What the database's catalogue says about the fenced tables: whether one exists, and which other
//! relations may reach one when they are written to, or dropped with all that depends on them.
//!
//! Owns that question and its answer. Must never leave a relation out for being complicated: what
//! a write to it really does is not decided here.

use super::control::{Answer, answers, column};
use super::database::Database;
use super::sql;
use crate::policy::{QualifiedName, Resource};
use crate::statement::{Operation, RelationName, Write};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio_postgres::NoTls;

/// The catalogue at one moment.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// The fenced tables that exist, or whatever has their names.
    fenced: HashSet<QualifiedName>,
    reaching: HashMap<String, Vec<Reaching>>,
    depended_on: HashMap<String, Vec<DependedOn>>,
}

/// A relation that is not fenced itself.
#[derive(Debug)]
struct Reaching {
    schema: String,
    is_view: bool,
}

/// A relation on which something of a fenced table depends: a foreign key, a column's type, a parent.
#[derive(Debug)]
struct DependedOn {
    schema: String,
    by: RelationName,
}

impl Catalogue {
    /// A fenced table exists.
    pub fn has_fenced_tables(&self) -> bool {
        !self.fenced.is_empty()
    }

    /// The resource has something here that could be written: one of its tables exists, or it has functions only.
    pub fn may_have(&self, resource: &Resource) -> bool {
        resource.tables.is_empty() || resource.tables.iter().any(|table| self.fenced.contains(&table.name))
    }

    /// True if such a write to the relation may change a fenced table: it is a parent or a child of
    /// one, a view of one, has a rule that names one, or is referenced by one with a cascade.
    pub fn may_reach(&self, relation: &RelationName, operation: Operation) -> bool {
        let Some(relations) = self.reaching.get(&relation.name) else { return false };
        relations.iter().any(|reaching| {
            is_in_schema(relation, &reaching.schema)
                && match operation {
                    Operation::Lock | Operation::Cascade => false,
                    // A view can be changed and dropped without the table.
                    Operation::Ddl => !reaching.is_view,
                    _ => true,
                }
        })
    }

    /// The fenced tables that such a write to a relation changes as well, because it cascades.
    pub fn cascades_to<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = &'a RelationName> {
        let relation = &write.relation;
        let found = self.depended_on.get(&relation.name).filter(|_| write.operation == Operation::Cascade);
        found.into_iter().flatten().filter(move |it| is_in_schema(relation, &it.schema)).map(|it| &it.by)
    }

    fn read(answers: &[Answer]) -> Self {
        let mut catalogue = Catalogue::default();
        for row in answers.iter().flat_map(|answer| &answer.rows) {
            let (Some(schema), Some(name)) = (column(row, "schema"), column(row, "name")) else { continue };
            if let (Some(by_schema), Some(by_name)) = (column(row, "by_schema"), column(row, "by_name")) {
                let by = RelationName { schema: Some(by_schema.to_owned()), name: by_name.to_owned() };
                let depended_on = DependedOn { schema: schema.to_owned(), by };
                catalogue.depended_on.entry(name.to_owned()).or_default().push(depended_on);
            } else if column(row, "fenced") == Some("t") {
                catalogue.fenced.insert(QualifiedName { schema: schema.to_owned(), name: name.to_owned() });
            } else {
                let reaching = Reaching { schema: schema.to_owned(), is_view: column(row, "kind") == Some("v") };
                catalogue.reaching.entry(name.to_owned()).or_default().push(reaching);
            }
        }
        catalogue
    }
}

/// A statement that leaves the schema out may mean any. `pg_temp` is the session's own, `pg_temp_3` or the like.
fn is_in_schema(relation: &RelationName, schema: &str) -> bool {
    relation
        .schema
        .as_deref()
        .is_none_or(|named| named == schema || named == "pg_temp" && schema.starts_with("pg_temp_"))
}

impl Database {
    /// Reads the catalogue for these tables. Cancel safe.
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn catalogue<'a>(
        self: &Arc<Self>,
        tables: impl IntoIterator<Item = &'a QualifiedName>,
    ) -> Result<Catalogue, String> {
        let query = sql::catalogue(tables);
        let answers = match self.look(&query).await {
            Ok(answers) => answers,
            // Where nothing is fenced, nobody has to have run `fencegate init`; and what failed a moment ago, when the
            // database was being made, need not fail now.
            Err(_) => self.ask_once(&query).await.map_err(|error| error.to_string())?,
        };
        Ok(Catalogue::read(&answers))
    }

    async fn ask_once(&self, query: &str) -> Result<Vec<Answer>, tokio_postgres::Error> {
        let (client, connection) = self.control.connect(NoTls).await?;
        // Ends when the client is dropped.
        tokio::spawn(connection);
        client.simple_query("SET application_name = 'fencegate control'; SET search_path = pg_catalog").await?;
        Ok(answers(client.simple_query(query).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_schema_is_every_schemas() {
        let reaching = vec![Reaching { schema: "public".into(), is_view: true }];
        let catalogue = Catalogue { reaching: [("v".to_owned(), reaching)].into(), ..Catalogue::default() };
        let named = |schema: Option<&str>| RelationName { schema: schema.map(str::to_owned), name: "v".into() };
        assert!(catalogue.may_reach(&named(None), Operation::Insert));
        assert!(catalogue.may_reach(&named(Some("public")), Operation::Delete));
        assert!(!catalogue.may_reach(&named(Some("other")), Operation::Insert));
        assert!(!catalogue.may_reach(&named(None), Operation::Ddl));
        assert!(!catalogue.may_reach(&named(None), Operation::Lock));
    }
}
