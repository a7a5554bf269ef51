//! The subject of a reading of the catalog, as arrays of names.
//!
//! Must never put a name into a statement but within one of these arrays.

use fencegate_policy::{FencedFunction, FencedTable, Resource, guard_arguments};
use fencegate_postgres::sql::{array, arrays};
use std::sync::Arc;

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
    /// None where the policies name no function.
    pub functions: Option<Functions>,
    /// None where no table is keyed.
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
