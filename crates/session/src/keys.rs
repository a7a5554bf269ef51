//! The resources that a write to a keyed table needs: one for the key of each row that it touches.
//!
//! Must never guess a key: a write with an unknown one is rejected.

use super::rejection::Rejection;
use fencegate_catalog::KeyColumn;
use fencegate_policy::{FencedTable, Resource};
use fencegate_statement::{Operation, StatementKind, Write};
use std::sync::Arc;

/// The resource of one key, and whether it is written or only locked; or why the key is unknown.
pub type KeyedResource = Result<(Arc<Resource>, bool), Rejection>;

/// The relation between the columns of the relation that a statement names and those of the keyed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// It is the table.
    OfTable,
    /// They have the same names, in another order maybe.
    SameNames,
    /// Nothing is known.
    Others,
}

/// The resources of the keys of all written rows. `column` describes the table's key in the catalog.
pub fn resources(
    keyed: &Arc<Resource>,
    table: &FencedTable,
    column: Option<&KeyColumn>,
    write: &Write,
    columns: Columns,
) -> Vec<KeyedResource> {
    let name = table.key.as_deref().unwrap_or_default();
    let unknown = |why: &str| {
        let why = format!("the value of \"{name}\" in {} is unknown: {why}", table.name);
        let bare = write.relation.schema.is_none() && write.relation.name == table.name.name;
        let by_bare_name = bare.then(|| table.name.clone());
        let hint = hint(write.operation);
        vec![Err(Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name })]
    };
    let Some(column) = column else { return unknown("the table has no such column") };
    if let Err(why) = column.kind {
        return unknown(why);
    }
    if write.rows.are_unread() {
        return unknown("the statement is too long or too deeply nested to search");
    }
    let values = match columns {
        Columns::OfTable => write.rows.values(name, Some(column.place)),
        Columns::SameNames => write.rows.values(name, None),
        Columns::Others => return unknown("the statement writes to it through another relation"),
    };
    let Some(values) = values.filter(|values| !values.is_empty()) else {
        return unknown("the statement does not show it for every row");
    };
    let writes = write.operation != Operation::Lock;
    let mut found = Vec::with_capacity(values.len());
    for value in values {
        match column.key(value).map(|key| keyed.of_key(&key)) {
            Some(Some(resource)) => found.push(Ok((resource, writes))),
            Some(None) => return unknown("a value is too long, or cannot be part of the name of an election or lease"),
            None => return unknown("a value does not have the column's type"),
        }
    }
    found
}

/// A statement of this kind may write the rows of any key.
pub fn any(keyed: &Resource, kind: StatementKind) -> Rejection {
    let why = format!("{kind} may write rows of every key of {}", keyed.name);
    let hint = "Write to the table directly. Or install the guard, which checks each row, and set `opaque: allow`.";
    Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name: None }
}

/// Operators or types in the statement may be others than those of pg_catalog: its keys are unknown.
pub fn by_path(keyed: &Resource) -> Rejection {
    let why = format!(
        "its unqualified operators or types may not be those of pg_catalog, so the keys of {} are unknown",
        keyed.name
    );
    let hint = "A schema in this session's search path has an operator =, or a type such as int8. Remove that schema from the path, send the statement by itself, or write key OPERATOR(pg_catalog.=) 3 and pg_catalog.int8.";
    Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name: None }
}

fn hint(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => {
            "Give the key as a constant or a parameter in every row: INSERT INTO t (key, ...) VALUES (3, ...)."
        }
        Operation::Update => {
            "Compare the key with constants or parameters: WHERE key = 3 AND ..., or key IN (3, 4). An upsert needs the key in its column list and its ON CONFLICT target."
        }
        Operation::Delete | Operation::Lock | Operation::Read => {
            "Compare the key with constants or parameters: WHERE key = 3 AND ..., or key IN (3, 4)."
        }
        Operation::Truncate | Operation::TruncateCascade | Operation::Ddl | Operation::Cascade => {
            "The statement affects the rows of all keys. Run it as one of the policy's `exempt_roles`, or omit the operation from the table's `operations`."
        }
    }
}
