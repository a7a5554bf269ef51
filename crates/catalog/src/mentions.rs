//! Catalog queries that only explain policies: the database's name, the functions that the policies name, and those
//! that they should name.
//!
//! Owns these queries. A needlessly reported function costs the operator a look; a function that is not reported writes
//! unfenced.

use super::calls;
use super::sql::sql_file;
use super::subject::Functions;
use fencegate_policy::{FencedFunction, PolicySet};
use fencegate_postgres::sql::arrays;
use fencegate_postgres::sql_file::Value::Sql;

/// The database's name, then the functions of the policies that exist.
pub fn database_and_functions(policies: &PolicySet) -> String {
    let functions: Vec<&FencedFunction> = policies.resources.iter().flat_map(|resource| &resource.functions).collect();
    sql_file!("sql/database_and_functions.sql").with(&calls::values(&Functions::of(&functions)))
}

/// The functions that mention a fenced table, and those that mention or need one of these.
pub fn functions_that_mention(policies: &PolicySet) -> String {
    let tables = policies.resources.iter().flat_map(|resource| resource.tables.iter().map(|table| &table.name));
    let [schemas, names] = arrays(tables);
    sql_file!("sql/functions_that_mention.sql").with(&[("schemas", Sql(&schemas)), ("names", Sql(&names))])
}
