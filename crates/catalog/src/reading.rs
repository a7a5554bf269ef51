//! The statements of a reading of the catalog, for one set of policies and with parameters; and the objects that `DROP … CASCADE`
//! may drop from fenced tables: along `pg_depend`, everything that a part of them depends on.
//!
//! Owns that question and its answer, which is read only where a statement says CASCADE. Must never leave a dependency out.

use super::sql::{self, Fenced, MOST_ROWS, Subject, Views, settings, sql_file};
use super::{CatalogError, is_in_schema, names};
use fencegate_postgres::sql::{StatementResult, arrays, column};
use fencegate_postgres::sql_file::Value::{Count, Sql};
use fencegate_statement::{Operation, RelationName, Write};
use std::collections::HashMap;
use tokio_postgres::SimpleQueryRow;

/// The query text of one reading.
pub fn question(fences: Fenced, temporary: Option<&str>, views: Views) -> String {
    let subject = Subject::of(fences);
    let mut asked = vec![settings(temporary), sql::ways(&subject, temporary, views)];
    if let Some(keys) = &subject.keys {
        asked.extend([names::shadows(), names::query(keys)]);
    }
    asked.join("; ")
}

/// The statements of a reading, with parameters.
pub mod with_parameters {
    use crate::names;
    use crate::sql::{self, Keys, Subject, Views};

    /// Ways to the tables `$1`, `$2`.
    pub fn ways() -> String {
        sql::ways(&Subject::parameters(false), None, Views::Asked)
    }

    /// Ways to these tables, and callers of the functions `$3`, `$4` and of those that begin with `$5`, `$6`.
    pub fn ways_and_calls() -> String {
        sql::ways(&Subject::parameters(true), None, Views::Asked)
    }

    /// The columns `$3` of the tables `$1`, `$2`, whose triggers have the arguments `$4`.
    pub fn key_columns() -> String {
        names::query(&Keys(["$1", "$2", "$3", "$4"].map(str::to_owned)))
    }

    /// Objects that CASCADE may drop from the tables `$1`, `$2`.
    pub fn dependencies() -> String {
        super::dependencies_query(&["$1", "$2"].map(str::to_owned))
    }

    pub use crate::names::shadows;
}

/// Objects that CASCADE may drop from fenced tables, by the unqualified name of the dropped object.
#[derive(Debug, Default)]
pub struct Dependencies(pub(super) HashMap<String, Vec<DependedOn>>);

/// A relation on which something of a fenced table depends: a foreign key, a column's type, a parent.
#[derive(Debug)]
pub(super) struct DependedOn {
    pub(super) schema: String,
    pub(super) by: RelationName,
}

impl Dependencies {
    /// The fenced tables that such a write to a relation also changes, because it drops the relation's dependents.
    pub fn cascades_to<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = &'a RelationName> {
        let relation = &write.relation;
        let found = self.0.get(&relation.name).filter(|_| write.operation == Operation::Cascade);
        found.into_iter().flatten().filter(move |it| is_in_schema(relation, &it.schema)).map(|it| &it.by)
    }

    /// Reads the answer to the [`question_of_dependencies`].
    ///
    /// # Errors
    /// The answer has too many rows.
    pub fn read(answers: &[StatementResult]) -> Result<Self, CatalogError> {
        let rows: Vec<&SimpleQueryRow> = answers.iter().flat_map(|answer| &answer.rows).collect();
        if rows.len() > MOST_ROWS {
            return Err(CatalogError::TooManyDependencies);
        }
        let mut dependencies = Dependencies::default();
        for row in rows {
            let text = |name| column(row, name).map(str::to_owned);
            // The statements that set the planner's settings return no rows.
            let (Some(name), Some(schema)) = (text("name"), text("schema")) else { continue };
            let by = RelationName { schema: text("by_schema"), name: text("by_name").unwrap_or_default() };
            dependencies.0.entry(name).or_default().push(DependedOn { schema, by });
        }
        Ok(dependencies)
    }
}

/// Objects that `CASCADE` may drop from these tables, a row for each relation.
pub fn question_of_dependencies(fences: Fenced) -> String {
    let settings = sql_file!("sql/planner.sql").with(&[]);
    format!("{settings}; {}", dependencies_query(&arrays(fences.tables().map(|(_, table)| &table.name))))
}

/// The query for the tables in these arrays.
pub(super) fn dependencies_query([schemas, names]: &[String; 2]) -> String {
    let limit = Count(MOST_ROWS + 1);
    sql_file!("sql/dependencies.sql").with(&[("schemas", Sql(schemas)), ("names", Sql(names)), ("limit", limit)])
}
