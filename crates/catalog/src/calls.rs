//! Callers of functions that the policies name, as far as the catalog shows them: views, rules, defaults, constraints,
//! indexes, triggers, row security, types, and other functions.
//!
//! Owns which dependency is a call, and by which operation on which relation. Must never leave one out for being
//! rare: a call that is not found is a write that is not fenced.

use super::subject::Functions;
use fencegate_postgres::sql_file::Value::{self, Sql};
use fencegate_statement::Operation::{self, Ddl, Delete, Insert, Read, Truncate, Update};

/// The values for `fenced_functions.sql`.
pub(super) fn values(functions: &Functions) -> [(&'static str, Value<'_>); 4] {
    let ([exact_schemas, exact], [prefix_schemas, prefixes]) = (&functions.exact, &functions.prefixes);
    [
        ("exact_schemas", Sql(exact_schemas)),
        ("exact_names", Sql(exact)),
        ("prefix_schemas", Sql(prefix_schemas)),
        ("prefixes", Sql(prefixes)),
    ]
}

/// Decodes the operations of a `call`, one letter each.
pub(super) fn operations(letters: &str) -> Option<Vec<Operation>> {
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
