//! The queries to the catalog.
//!
//! Must start from the fenced tables and walk outwards, never read everything: a database may have 100,000 relations, and
//! any role may create more.

use super::calls;
use super::subject::Subject;
use fencegate_postgres::sql::quote;
use fencegate_postgres::sql_file::Fragment;
use fencegate_postgres::sql_file::Value::{Count, Part, Sql, Text};

/// The kinds of relations that can be fenced, as in `pg_class.relkind`: tables, partitioned and foreign ones, and views.
pub const FENCED_KINDS: &str = include_str!("sql/fragments/fenced_kinds.sql");

/// The SQL that the files include by name.
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

/// More rows than this are not read: such a number of relations that reach a fenced table may be an attack.
pub(super) const MOST_ROWS: usize = 200_000;

/// Maximum number of rows for the temporary relations of one session, with everything else that reaches a fenced table.
const MOST_ROWS_OF_SESSION: usize = 20_000;

/// The limit on the wait for a view's lock: a transaction that alters the view holds it to its end.
const LOCK_TIMEOUT: &str = "50ms";

/// Time limit of a reading for one session: meanwhile the others wait for theirs.
const TIMEOUT_OF_SESSION: &str = "250ms";

/// How the views are found that nothing can be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Views {
    /// The server reports them. It locks the views for that, so the query fails if another process has locked one.
    Asked,
    /// None is: all count as written through.
    AllWritable,
}

/// The most rows that a reading may be answered.
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
/// `temporary` is the schema of the temporary relations that count. Those of other sessions never do.
pub(super) fn ways(subject: &Subject, temporary: Option<&str>, views: Views) -> String {
    let events = match views {
        Views::Asked => "pg_relation_is_updatable(v.oid, true)",
        Views::AllWritable => "28",
    };
    let [schemas, names] = &subject.tables;
    let [counts_c, counts_me, counts_v] = ["c", "me", "v"].map(|class| counts(class, temporary));
    let mut values = vec![
        ("schemas", Sql(schemas)),
        ("names", Sql(names)),
        ("events", Sql(events)),
        ("counts", Sql(&counts_c)),
        ("counts_me", Sql(&counts_me)),
        ("counts_v", Sql(&counts_v)),
        ("limit", Count(most_rows(temporary) + 1)),
    ];
    match &subject.functions {
        Some(functions) => {
            values.push(("stored", Sql("''")));
            values.extend(calls::values(functions));
        }
        // The query of a materialized view matters only where a refresh calls a function.
        None => values.extend([("stored", Sql("'m'")), ("calls", Part(":no_calls")), ("call_rows", Part(""))]),
    }
    sql_file!("sql/ways.sql").with(&values)
}
