//! The catalog queries, and their subject as arrays of names. Also queries the objects that `DROP … CASCADE` may drop
//! from fenced tables: everything on which a part of them depends, according to `pg_depend`.
//!
//! Owns which dependency is a call, and by which operation on which relation. Must never
//! - read everything: a query starts from the fenced tables and walks outwards, because a database may have 100,000
//!   relations, and any role may create more;
//! - put a name into a statement, except within an array;
//! - omit a rare kind of call, or a function that mentions a fenced table: a write through an unknown call is not
//!   fenced;
//! - omit a dependency.

use super::{CatalogError, is_in_schema, names};
use fencegate_policy::{FencedFunction, FencedTable, PolicySet, Resource, guard_arguments};
use fencegate_postgres::sql::{StatementResult, array, arrays, column, quote};
use fencegate_postgres::sql_file::Fragment;
use fencegate_postgres::sql_file::Value::{self, Count, Part, Sql, Text};
use fencegate_statement::Operation::{self, Ddl, Delete, Insert, Read, Truncate, Update};
use fencegate_statement::{RelationName, Write};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::SimpleQueryRow;

/// The kinds of relations that can be fenced, as in `pg_class.relkind`: tables, partitioned and foreign ones, and views.
pub const FENCED_KINDS: &str = include_str!("sql/fragments/fenced_kinds.sql");

/// SQL fragments that the files include by name.
pub(super) const FRAGMENTS: &[Fragment] = &[
    ("call_rows", include_str!("sql/fragments/call_rows.sql")),
    ("calls", include_str!("sql/fragments/calls.sql")),
    ("fenced_functions", include_str!("sql/fragments/fenced_functions.sql")),
    ("fenced_kinds", FENCED_KINDS),
    ("named_relations", include_str!("sql/fragments/named_relations.sql")),
    ("no_calls", include_str!("sql/fragments/no_calls.sql")),
    ("timeout_of_session", include_str!("sql/fragments/timeout_of_session.sql")),
];

/// A file of SQL, with these fragments.
macro_rules! sql_file {
    ($path:literal) => {
        fencegate_postgres::sql_file::SqlFile::new(include_str!($path), crate::sql::FRAGMENTS)
    };
}
pub(super) use sql_file;

/// Maximum number of rows that are read. More relations that reach a fenced table may be an attack.
pub(super) const MOST_ROWS: usize = 200_000;

/// Maximum number of rows for the temporary relations of one session, with everything else that reaches a fenced table.
const MOST_ROWS_OF_SESSION: usize = 20_000;

/// The limit on the wait for a view's lock, which a transaction that alters the view holds until it ends.
const LOCK_TIMEOUT: &str = "50ms";

/// Time limit of a reading for one session, because other sessions wait for theirs meanwhile.
const TIMEOUT_OF_SESSION: &str = "250ms";

/// How to determine the views through which nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Views {
    /// The server reports these views. It locks them for this, so the query fails if another transaction has locked
    /// one.
    Reported,
    /// Treat all views as writable.
    AllWritable,
}

/// Maximum number of rows of a reading's result.
pub fn most_rows(temporary: Option<&str>) -> usize {
    if temporary.is_some() { MOST_ROWS_OF_SESSION } else { MOST_ROWS }
}

/// SQL condition: the relation of `pg_class` counts. Temporary relations count only if they are in this schema.
fn counts(class: &str, temporary: Option<&str>) -> String {
    match temporary {
        Some(schema) => {
            format!("({class}.relpersistence <> 't' OR {class}.relnamespace = to_regnamespace({}))", quote(schema))
        }
        None => format!("{class}.relpersistence <> 't'"),
    }
}

/// Settings for the later statements of the same Query.
pub fn settings(temporary: Option<&str>) -> String {
    let file = sql_file!("sql/settings.sql");
    let lock_timeout = ("lock_timeout", Text(LOCK_TIMEOUT));
    match temporary {
        Some(_) => {
            let session = [("timeout", Part(":timeout_of_session")), ("statement_timeout", Text(TIMEOUT_OF_SESSION))];
            file.with(&[&[lock_timeout][..], &session].concat())
        }
        None => file.with(&[lock_timeout, ("timeout", Part(""))]),
    }
}

/// Everything through which a write may reach one of these tables or call one of these functions.
///
/// `temporary` is the schema of the temporary relations that count. Those of other sessions count only if a rule of a
/// permanent relation leads to one.
pub(super) fn ways(subject: &Subject, temporary: Option<&str>, views: Views) -> String {
    let events = match views {
        Views::Reported => "pg_relation_is_updatable(v.oid, true)",
        Views::AllWritable => "28",
    };
    let [schemas, names] = &subject.tables;
    let [counts_c, counts_me, counts_v, counts_t] = ["c", "me", "v", "t"].map(|class| counts(class, temporary));
    let mut values = vec![
        ("schemas", Sql(schemas)),
        ("names", Sql(names)),
        ("events", Sql(events)),
        ("counts", Sql(&counts_c)),
        ("counts_me", Sql(&counts_me)),
        ("counts_v", Sql(&counts_v)),
        ("counts_t", Sql(&counts_t)),
        ("limit", Count(most_rows(temporary) + 1)),
    ];
    match &subject.functions {
        Some(functions) => {
            values.push(("stored", Sql("''")));
            values.extend(function_values(functions));
        }
        // The query of a materialized view matters only if a refresh calls a function.
        None => values.extend([("stored", Sql("'m'")), ("calls", Part(":no_calls")), ("call_rows", Part(""))]),
    }
    sql_file!("sql/ways.sql").with(&values)
}

/// The values for `fenced_functions.sql`.
pub(super) fn function_values(functions: &Functions) -> [(&'static str, Value<'_>); 4] {
    let ([exact_schemas, exact], [prefix_schemas, prefixes]) = (&functions.exact, &functions.prefixes);
    [
        ("exact_schemas", Sql(exact_schemas)),
        ("exact_names", Sql(exact)),
        ("prefix_schemas", Sql(prefix_schemas)),
        ("prefixes", Sql(prefixes)),
    ]
}

/// Decodes the operations of a `call`: one letter for each.
pub(super) fn call_operations(letters: &str) -> Option<Vec<Operation>> {
    let operation = |letter| match letter {
        'r' => Some(Read),
        'i' => Some(Insert),
        'u' => Some(Update),
        'd' => Some(Delete),
        't' => Some(Truncate),
        'x' => Some(Ddl),
        _ => None,
    };
    letters.chars().map(operation).collect()
}

/// The database's name, then the functions of the policies that exist.
pub fn database_and_functions(policies: &PolicySet) -> String {
    let functions: Vec<&FencedFunction> = policies.resources.iter().flat_map(|resource| &resource.functions).collect();
    sql_file!("sql/database_and_functions.sql").with(&function_values(&Functions::of(&functions)))
}

/// The functions that mention a fenced table, and those that mention or need one of these.
pub fn functions_that_mention(policies: &PolicySet) -> String {
    let tables = policies.resources.iter().flat_map(|resource| resource.tables.iter().map(|table| &table.name));
    let [schemas, names] = arrays(tables);
    sql_file!("sql/functions_that_mention.sql").with(&[("schemas", Sql(&schemas)), ("names", Sql(&names))])
}

/// The subject of a reading of the catalog.
#[derive(Clone, Copy)]
pub struct Fenced<'a>(pub &'a [Arc<Resource>]);

impl<'a> Fenced<'a> {
    pub(super) fn tables(self) -> impl Iterator<Item = (&'a Resource, &'a FencedTable)> {
        self.0.iter().flat_map(|resource| resource.tables.iter().map(|table| (&**resource, table)))
    }
}

/// The arrays, as SQL.
#[derive(Debug)]
pub struct Subject {
    /// Schemas and names of the fenced tables.
    pub tables: [String; 2],
    /// None if the policies name no function.
    pub functions: Option<Functions>,
    /// None if no table is keyed.
    pub keys: Option<Keys>,
}

/// The functions that the policies name.
#[derive(Debug)]
pub struct Functions {
    /// Schemas and names.
    pub exact: [String; 2],
    /// Schemas, and prefixes of names.
    pub prefixes: [String; 2],
}

/// The key columns: schemas and names of the tables, names of the columns, and the arguments of the guard's triggers.
#[derive(Debug)]
pub struct Keys(pub [String; 4]);

impl Subject {
    /// The arrays for these fences.
    pub fn of(fences: Fenced) -> Self {
        let functions: Vec<&FencedFunction> = fences.0.iter().flat_map(|resource| &resource.functions).collect();
        let keyed: Vec<_> =
            fences.tables().filter_map(|(it, table)| Some((it, table, table.key.as_deref()?))).collect();
        let guarded: Vec<String> = keyed.iter().map(|(resource, table, _)| guard_bytes(resource, table)).collect();
        let [schemas, names] = arrays(keyed.iter().map(|(_, table, _)| &table.name));
        let columns = array("name", keyed.iter().map(|(.., key)| *key));
        let guarded = array("bytea", guarded.iter().map(String::as_str));
        Subject {
            tables: arrays(fences.tables().map(|(_, table)| &table.name)),
            functions: (!functions.is_empty()).then(|| Functions::of(&functions)),
            keys: (!keyed.is_empty()).then_some(Keys([schemas, names, columns, guarded])),
        }
    }

    pub(super) fn parameters(has_functions: bool) -> Self {
        let [tables, exact, prefixes] = [["$1", "$2"], ["$3", "$4"], ["$5", "$6"]].map(|pair| pair.map(str::to_owned));
        Subject { tables, functions: has_functions.then_some(Functions { exact, prefixes }), keys: None }
    }
}

impl Functions {
    pub(super) fn of(functions: &[&FencedFunction]) -> Self {
        let of = |is_prefix| {
            let those = functions.iter().filter(|function| function.is_prefix == is_prefix);
            arrays(those.map(|function| &function.name))
        };
        Functions { exact: of(false), prefixes: of(true) }
    }
}

/// The arguments of the guard's trigger, as `pg_trigger.tgargs` has them: a bytea.
fn guard_bytes(resource: &Resource, table: &FencedTable) -> String {
    let bytes = guard_arguments(resource, table).into_iter().flat_map(|argument| argument.bytes().chain([0]));
    format!("\\x{}", bytes.map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The query text of one reading.
pub fn question(fences: Fenced, temporary: Option<&str>, views: Views) -> String {
    let subject = Subject::of(fences);
    let mut queries = vec![settings(temporary), ways(&subject, temporary, views)];
    if let Some(keys) = &subject.keys {
        queries.extend([names::shadows(), names::query(keys)]);
    }
    queries.join("; ")
}

/// The statements of a reading, with parameters.
pub mod with_parameters {
    use super::{Keys, Subject, Views};
    use crate::names;

    /// Paths to the tables `$1`, `$2`.
    pub fn ways() -> String {
        super::ways(&Subject::parameters(false), None, Views::Reported)
    }

    /// Paths to these tables, and callers of the functions `$3`, `$4` and of those whose names begin with `$5`, `$6`.
    pub fn ways_and_calls() -> String {
        super::ways(&Subject::parameters(true), None, Views::Reported)
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
        found
            .into_iter()
            .flatten()
            .filter(move |it| is_in_schema(relation.schema.as_deref(), &it.schema))
            .map(|it| &it.by)
    }

    /// Decodes the result of the [`question_of_dependencies`].
    ///
    /// # Errors
    /// The result has too many rows.
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

/// Objects that `CASCADE` may drop from these tables: one row for each relation.
pub fn question_of_dependencies(fences: Fenced) -> String {
    let settings = sql_file!("sql/planner.sql").with(&[]);
    format!("{settings}; {}", dependencies_query(&arrays(fences.tables().map(|(_, table)| &table.name))))
}

/// The query for the tables in these arrays.
pub(super) fn dependencies_query([schemas, names]: &[String; 2]) -> String {
    let limit = Count(MOST_ROWS + 1);
    sql_file!("sql/dependencies.sql").with(&[("schemas", Sql(schemas)), ("names", Sql(names)), ("limit", limit)])
}
