//! The columns by which tables are keyed: what the catalogue says of them.
//!
//! Owns which columns can tell rows apart by the text of a value. Must never take one for which two texts are equal, or
//! whose value is another than the one that was given.

use crate::fence::control::{Answer, column, is_true, number};
use crate::fence::sql::quote;
use crate::policy::{FencedTable, QualifiedName};
use crate::statement::rows::{Kind, Value};
use std::collections::HashMap;

/// The key column of a fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// What its values are; or why they tell nothing.
    pub kind: Result<Kind, &'static str>,
    /// Its place among the columns, from 0.
    pub place: usize,
    /// Longer texts, in characters, may be cut when they are stored.
    longest: Option<usize>,
    /// The guard looks at the key of every row that is written.
    pub is_guarded: bool,
}

impl KeyColumn {
    /// The one text of a value in this column, if it has one.
    pub fn key(&self, value: &Value) -> Option<String> {
        let key = value.in_column(self.kind.ok()?)?;
        self.longest.is_none_or(|longest| key.chars().count() <= longest).then_some(key)
    }
}

/// The key columns of these tables, as far as they exist. Empty where no table has one.
pub(super) fn query<'a>(tables: impl IntoIterator<Item = &'a FencedTable>) -> String {
    let keyed = tables.into_iter().filter_map(|table| Some((&table.name, table.key.as_ref()?)));
    let named = keyed.map(|(QualifiedName { schema, name }, key)| {
        format!("({}::name, {}::name, {}::name)", quote(schema), quote(name), quote(key))
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return String::new();
    }
    format!(
        "SELECT named.schema, named.name, \
               CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END AS type, \
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier, \
               a.attgenerated <> '' AS generated, \
               EXISTS (SELECT FROM pg_collation l WHERE NOT l.collisdeterministic AND (l.oid = a.attcollation \
                 OR l.oid IN (SELECT unnest(i.indcollation::oid[]) FROM pg_index i WHERE i.indrelid = c.oid))) AS folds, \
               (SELECT count(*) FROM pg_attribute p WHERE p.attrelid = c.oid AND p.attnum BETWEEN 1 AND a.attnum - 1 \
                 AND NOT p.attisdropped) AS place \
             FROM (VALUES {}) AS named(schema, name, key) JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = named.key AND a.attnum > 0 AND NOT a.attisdropped \
             JOIN pg_type t ON t.oid = a.atttypid",
        named.join(", ")
    )
}

/// The answer to [`query`], by table.
pub(super) fn read(answers: &[Answer]) -> HashMap<QualifiedName, KeyColumn> {
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    rows.filter_map(|row| {
        let name = QualifiedName { schema: column(row, "schema")?.to_owned(), name: column(row, "name")?.to_owned() };
        let kind = match column(row, "type")? {
            _ if is_true(row, "generated") => Err("it is a generated column"),
            "20" | "21" | "23" => Ok(Kind::Integer),
            "25" | "1043" if is_true(row, "folds") => Err("its collation takes different texts for equal"),
            "25" | "1043" => Ok(Kind::Text),
            "2950" => Ok(Kind::Uuid),
            _ => Err("its type is not an integer, text, varchar or uuid"),
        };
        // A modifier of varchar is its length and the 4 bytes of a header.
        let longest = number::<i64>(row, "modifier").and_then(|modifier| usize::try_from(modifier - 4).ok());
        let place = number(row, "place")?;
        Some((name, KeyColumn { kind, place, longest, is_guarded: is_true(row, "guarded") }))
    })
    .collect()
}
