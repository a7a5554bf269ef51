//! The columns by which tables are keyed, as the catalog describes them.
//!
//! Owns which columns can tell rows apart by the text of a value. Must never accept a column with two texts for equal
//! values, or one that stores another value than the given one.

use super::sql::sql_file;
use super::subject::Keys;
use fencegate_policy::QualifiedName;
use fencegate_postgres::sql::{StatementResult, column, is_true, number, quote};
use fencegate_postgres::sql_file::Value::{Count, Sql};
use fencegate_statement::rows::{ColumnValue, KEY_TYPES, ValueType};
use std::collections::HashMap;

/// The key column of a fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// The type of its values; or why they cannot be keys.
    pub kind: Result<ValueType, &'static str>,
    /// Its place among the columns, from 0.
    pub place: usize,
    /// Maximum length in bytes of a text that is certainly stored whole. Longer ones may be truncated, because the
    /// length of a character depends on the server's encoding.
    longest: Option<usize>,
    /// The guard looks at the key of every row that is written.
    pub is_guarded: bool,
    /// A trigger that may give a row another value in it than the statement does.
    pub(super) changed_by: Option<String>,
}

impl KeyColumn {
    /// The first column, an integer.
    pub(super) fn integer() -> Self {
        KeyColumn { kind: Ok(ValueType::Integer), place: 0, longest: None, is_guarded: false, changed_by: None }
    }

    /// The one text of a value in this column, if it has one.
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

/// The schemas where an operator or a type may hide the catalog's own.
pub fn shadows() -> String {
    let names: Vec<String> = KEY_TYPES.iter().map(|name| quote(name)).collect();
    sql_file!("sql/shadows.sql").with(&[("types", Sql(&names.join(", "))), ("most", Count(MOST_SHADOWS))])
}

/// As many schemas are all of them.
pub(super) const MOST_SHADOWS: usize = 1000;

/// The answer to [`query`], by table.
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
