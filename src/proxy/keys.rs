//! From the rows that a write to a keyed table touches to the resources that it needs: one for each key.
//!
//! Must never take a key for known that is not: what cannot be told is refused.

use super::rejection::Rejection;
use crate::fence::KeyColumn;
use crate::policy::{FencedTable, Resource};
use crate::statement::{Operation, Write};
use std::sync::Arc;

/// The resources of the keys of all rows that the write touches. `column` is what the catalogue says of the table's
/// key; `is_table` that the write names the table itself, and not a relation by which it is reached.
///
/// # Errors
/// LF004, with a hint how to write it.
pub fn resources(
    keyed: &Arc<Resource>,
    table: &FencedTable,
    column: Option<&KeyColumn>,
    write: &Write,
    is_table: bool,
) -> Result<Vec<Arc<Resource>>, Rejection> {
    let name = table.key.as_deref().unwrap_or_default();
    let unknown = |why: String| Rejection::UnknownKey {
        resource: keyed.name.clone(),
        why: format!("which \"{name}\" of {}: {why}", table.name),
        hint: hint(write.operation),
    };
    let Some(column) = column else { return Err(unknown("there is no such column".into())) };
    column.kind.map_err(|why| unknown(why.into()))?;
    let place = is_table.then_some(column.place);
    let Some(values) = write.rows.values(name, place).filter(|values| !values.is_empty()) else {
        return Err(unknown("the text does not show the value of that column in every row".into()));
    };
    let of_value = |value| {
        let key = column.key(value).ok_or_else(|| unknown("a value is none of the column's type".into()))?;
        keyed.of_key(&key).ok_or_else(|| unknown("a value is too long, or cannot be part of an election's name".into()))
    };
    values.iter().map(of_value).collect()
}

fn hint(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "Give the key as a constant or a parameter in every row: INSERT INTO t (key, ...) VALUES (3, ...).",
        Operation::Update => {
            "Compare the key with constants or parameters, WHERE key = 3 AND ..., or key IN (3, 4); \
             an upsert needs it in its ON CONFLICT target."
        }
        Operation::Delete | Operation::Lock => {
            "Compare the key with constants or parameters: WHERE key = 3 AND ..., or key IN (3, 4)."
        }
        Operation::Truncate | Operation::Ddl | Operation::Cascade => {
            "It concerns the rows of all keys: leave it to one of `exempt_roles`, or out of the table's `operations`."
        }
    }
}
