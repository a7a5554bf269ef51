//! The subject of a reading of the catalog, as arrays of names; and the statements of a reading with parameters in their place.
//!
//! Must never put a name into a statement but within one of these arrays.

use super::key_column::{self, guard_bytes};
use super::sql::{self, Views};
use super::{Fenced, dependencies};
use fencegate_policy::FencedFunction;
use fencegate_postgres::sql::{array, arrays};

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

    fn parameters(has_functions: bool) -> Self {
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

/// The statements of a reading, with parameters.
pub mod with_parameters {
    use super::{Keys, Subject, Views, dependencies, key_column, sql};

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
        key_column::query(&Keys(["$1", "$2", "$3", "$4"].map(str::to_owned)))
    }

    /// Objects that CASCADE may drop from the tables `$1`, `$2`.
    pub fn dependencies() -> String {
        dependencies::query(&["$1", "$2"].map(str::to_owned))
    }

    pub use super::key_column::shadows;
}
