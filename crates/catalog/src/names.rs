//! Which tables and functions of the policies exist in a database, the likely correction of a missing name, and the
//! columns by which tables are keyed.
//!
//! Owns this query and its result, and the rule which columns can distinguish rows by the text of a value. Must never
//! - count a relation that the proxy would not fence: the relation kinds are those of [`super::question`];
//! - accept a column with two texts for equal values, or one that stores another value than the given one.

use super::sql::{self, Functions, Keys, sql_file};
use fencegate_policy::{FencedFunction, PolicySet, QualifiedName, Resource};
use fencegate_postgres::sql::{StatementResult, arrays, column, is_true, number, quote};
use fencegate_postgres::sql_file::Value::{Count, Sql, Text};
use fencegate_statement::FunctionName;
use fencegate_statement::rows::{COUNTED_TYPES, ColumnValue, KEY_TYPES, UNNEST, ValueType};
use std::collections::{HashMap, HashSet};
use strsim::osa_distance;
use tokio_postgres::SimpleQueryRow;

/// Maximum number of missing tables for which similar names are read.
const MOST_SUGGESTED: usize = 20;
/// Maximum number of names among which the most similar one is chosen.
const MOST_SIMILAR: usize = 10_000;

/// The names of policies that exist in one database.
#[derive(Debug, Default)]
pub struct NamesFound {
    /// The database has the schema `fencegate`.
    pub is_prepared: bool,
    tables: HashSet<QualifiedName>,
    functions: HashSet<QualifiedName>,
    /// Existing tables whose names are about as long as that of a missing one.
    similar: Vec<QualifiedName>,
}

/// The tables and functions that some set of policies names.
#[derive(Debug, Default)]
pub struct PolicyNames<'a> {
    tables: HashSet<&'a QualifiedName>,
    functions: HashSet<&'a FencedFunction>,
}

impl<'a> PolicyNames<'a> {
    /// The names of all these sets.
    pub fn of(sets: &[&'a PolicySet]) -> Self {
        let resources = || sets.iter().flat_map(|set| &set.resources);
        PolicyNames {
            tables: resources().flat_map(|it| it.tables.iter().map(|table| &table.name)).collect(),
            functions: resources().flat_map(|it| &it.functions).collect(),
        }
    }

    /// The query string. Any role that can connect may run it.
    pub fn question(&self) -> String {
        let functions: Vec<&FencedFunction> = self.functions.iter().copied().collect();
        let functions = Functions::of(&functions);
        let [schemas, names] = arrays(self.tables.iter().copied());
        let tables = [("schemas", Sql(&schemas)), ("names", Sql(&names))];
        let most = [("most_suggested", Count(MOST_SUGGESTED)), ("most_similar", Count(MOST_SIMILAR))];
        sql_file!("sql/names.sql").with(&[&tables[..], &most, &sql::function_values(&functions)].concat())
    }
}

impl NamesFound {
    /// The names of a database with these tables and functions; function names end in `()`.
    #[cfg(test)]
    pub(super) fn of(sets: &[&PolicySet], existing: &[&str]) -> Self {
        let asked = PolicyNames::of(sets);
        let mut found = NamesFound::default();
        for text in existing {
            let (schema, name) = text.trim_end_matches("()").split_once('.').unwrap_or_default();
            let name = QualifiedName { schema: schema.to_owned(), name: name.to_owned() };
            match text.ends_with("()") {
                true => drop(found.functions.insert(name)),
                false if asked.tables.contains(&name) => drop(found.tables.insert(name)),
                false => found.similar.push(name),
            }
        }
        found
    }

    /// Reads the rows of [`PolicyNames::question`].
    pub fn read<'r>(rows: impl IntoIterator<Item = &'r SimpleQueryRow>) -> Self {
        let mut found = NamesFound::default();
        for row in rows {
            found.is_prepared |= is_true(row, "prepared");
            let (Some(schema), Some(name)) = (column(row, "schema"), column(row, "name")) else { continue };
            let name = QualifiedName { schema: schema.to_owned(), name: name.to_owned() };
            match column(row, "part") {
                Some("table") => drop(found.tables.insert(name)),
                Some("function") => drop(found.functions.insert(name)),
                _ => found.similar.push(name),
            }
        }
        found
    }

    /// The table exists.
    pub fn has_table(&self, table: &QualifiedName) -> bool {
        self.tables.contains(table)
    }

    /// The function exists, or one with that prefix.
    pub fn has_function(&self, function: &FencedFunction) -> bool {
        let called = |it: &QualifiedName| FunctionName { schema: Some(it.schema.clone()), name: it.name.clone() };
        self.functions.iter().any(|it| function.is_meant_by(&called(it)))
    }

    /// A write could reach the resource: one of its tables exists, or, if it names no tables, one of its functions.
    pub fn has_some_of(&self, resource: &Resource) -> bool {
        match resource.tables.is_empty() {
            true => resource.functions.iter().any(|function| self.has_function(function)),
            false => resource.tables.iter().any(|table| self.has_table(&table.name)),
        }
    }

    /// A table of the policies exists.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// The existing table with the most similar name, if the names are similar enough.
    pub fn nearest(&self, missing: &QualifiedName) -> Option<&QualifiedName> {
        let all = self.similar.iter().chain(&self.tables);
        let nearest = all.map(|it| (typos(missing, it), it)).min()?;
        (nearest.0 <= max_typos(missing)).then_some(nearest.1)
    }
}

/// Number of wrong letters in `written`, assuming that `existing` was meant. A wrong schema, or wrong case, counts as
/// one.
fn typos(written: &QualifiedName, existing: &QualifiedName) -> usize {
    let folded = |it: &QualifiedName| (it.schema.to_lowercase(), it.name.to_lowercase());
    if written.name == existing.name || folded(written) == folded(existing) {
        return 1;
    }
    osa_distance(&written.schema, &existing.schema) + osa_distance(&written.name, &existing.name)
}

/// With more wrong letters, another name was meant. Short names permit fewer.
fn max_typos(written: &QualifiedName) -> usize {
    (written.name.chars().count() / 3).clamp(1, 3)
}

/// The error for a name that does not exist: `public.tikcs does not exist in app; did you mean public.ticks?`
pub fn missing_text(name: &str, database: &str, nearest: Option<&QualifiedName>) -> String {
    format!(
        "{name} does not exist in {}{}",
        fencegate_policy::quoted(database),
        fencegate_policy::nearest::advice(nearest)
    )
}

/// The key column of a fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// The type of its values, or why they cannot be keys.
    pub kind: Result<ValueType, &'static str>,
    /// Its index among the columns, from 0.
    pub place: usize,
    /// Maximum length in bytes of a text that is certainly stored without truncation. Longer ones may be truncated,
    /// because the length of a character depends on the server's encoding.
    longest: Option<usize>,
    /// The guard checks the key of every written row.
    pub is_guarded: bool,
    /// A trigger that may change the value that the statement gives the column.
    pub(super) changed_by: Option<String>,
}

impl KeyColumn {
    /// The first column, an integer.
    pub(super) fn integer() -> Self {
        KeyColumn { kind: Ok(ValueType::Integer), place: 0, longest: None, is_guarded: false, changed_by: None }
    }

    /// The only text of a value in this column, if there is one.
    pub fn key(&self, value: &ColumnValue) -> Option<String> {
        let key = value.in_column(self.kind.ok()?)?;
        self.longest.is_none_or(|longest| key.len() <= longest).then_some(key)
    }
}

/// The existing key columns.
pub(super) fn query(Keys([schemas, names, keys, arguments]): &Keys) -> String {
    sql_file!("sql/key_columns.sql").with(&[
        ("schemas", Sql(schemas)),
        ("names", Sql(names)),
        ("keys", Sql(keys)),
        ("arguments", Sql(arguments)),
    ])
}

/// The schemas in which an operator, a type or a function may shadow the catalog's.
pub fn shadows() -> String {
    let names: Vec<String> = KEY_TYPES.iter().chain(&COUNTED_TYPES).map(|name| quote(name)).collect();
    sql_file!("sql/shadows.sql").with(&[
        ("types", Sql(&names.join(", "))),
        ("function", Text(UNNEST)),
        ("most", Count(MOST_SHADOWS)),
    ])
}

/// If there are this many such schemas, every schema counts as one.
pub(super) const MOST_SHADOWS: usize = 1000;

/// The result of [`query`], by table.
pub(super) fn read(answers: &[StatementResult]) -> HashMap<QualifiedName, KeyColumn> {
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    rows.filter_map(|row| {
        let name = QualifiedName { schema: column(row, "schema")?.to_owned(), name: column(row, "name")?.to_owned() };
        let kind = match column(row, "type")? {
            _ if is_true(row, "generated") => Err("it is a generated column"),
            _ if is_true(row, "recast") => Err("a user-defined cast may change its value"),
            "20" | "21" | "23" => Ok(ValueType::Integer),
            _ if is_true(row, "folds") => {
                Err("its collation, or a unique index on it, treats different values as equal")
            }
            "25" | "1043" => Ok(ValueType::Text),
            "2950" => Ok(ValueType::Uuid),
            _ => Err("its type is not an integer, text, varchar or uuid"),
        };
        // A modifier of varchar is its length and the 4 bytes of a header.
        let longest = number::<i64>(row, "modifier").and_then(|modifier| usize::try_from(modifier - 4).ok());
        let place = number(row, "place")?;
        let changed_by = column(row, "changed_by").map(str::to_owned);
        Some((name, KeyColumn { kind, place, longest, is_guarded: is_true(row, "guarded"), changed_by }))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> QualifiedName {
        let (schema, name) = text.split_once('.').unwrap();
        QualifiedName { schema: schema.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_nearest_table_is_suggested() {
        let found = NamesFound {
            similar: ["public.ticks", "public.jobs", "other.Odd", "tenant.orders"].map(name).into(),
            ..NamesFound::default()
        };
        let nearest = |missing| found.nearest(&name(missing)).map(ToString::to_string);
        for (missing, expected) in [
            ("public.tikcs", Some("public.ticks")),
            ("public.tick", Some("public.ticks")),
            ("publik.ticks", Some("public.ticks")),
            ("public.orders", Some("tenant.orders")),
            ("other.odd", Some("other.\"Odd\"")),
            ("public.jots", Some("public.jobs")),
            ("public.logs_of_jobs", None),
            ("public.tasks", None),
        ] {
            assert_eq!(nearest(missing).as_deref(), expected, "{missing}");
        }
    }

    #[test]
    fn a_missing_name_is_reported_with_its_database() {
        let nearest = name("public.ticks");
        let text = missing_text("public.tikcs", "app", Some(&nearest));
        assert_eq!(text, "public.tikcs does not exist in app; did you mean public.ticks?");
        assert_eq!(missing_text("public.t", "My-App", None), "public.t does not exist in \"My-App\"");
    }
}
