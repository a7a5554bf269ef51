//! The statements that each control connection prepares, among them the catalog query. Every DDL statement that may concern
//! fenced tables triggers a reading, and planning would take most of its time.

use super::Prepared;
use super::{admission, epoch, lock, privilege, proxy};
use fencegate_catalog::{Fenced, Keys, Subject, settings, with_parameters};

/// Statements of the connection for Admits.
pub const FOR_ADMITS: &[&Prepared] = &[
    &lock::SHARE,
    &epoch::LOCK_SHARED,
    &admission::ADMIT,
    &admission::REPORT,
    &lock::TRY_SHARED,
    &admission::ADMIT_CURRENT,
];

/// Statements of the connection that creates, raises and marks epochs.
pub const FOR_EPOCHS: &[&Prepared] = &[
    &lock::TRY,
    &admission::ADMIT_FIRST,
    &lock::TAKE,
    &epoch::RAISE,
    &epoch::READ,
    &epoch::LOCK,
    &epoch::COUNT_BELOW,
    &epoch::MARK,
    &epoch::PREPARED_WRITERS,
];

/// Statements of the connection on which Queries of both kinds wait for a lock.
pub const FOR_WAITS: &[&Prepared] = &[
    &lock::SHARE,
    &epoch::LOCK_SHARED,
    &admission::ADMIT,
    &admission::REPORT,
    &lock::TAKE,
    &epoch::RAISE,
    &epoch::READ,
    &epoch::LOCK,
    &epoch::COUNT_BELOW,
    &epoch::MARK,
    &epoch::PREPARED_WRITERS,
];

/// Statements of the connection for looks, signals and deletes.
pub const FOR_LOOKS: &[&Prepared] = &[
    &admission::HOLDERS,
    &admission::OF_PROCESS,
    &admission::DELETE,
    &admission::DELETE_DEAD_BELOW,
    &admission::DELETE_DEAD,
    &epoch::READ,
    &lock::LOCKERS,
    &lock::GUARDED_WRITE,
    &privilege::PERMITS,
    &proxy::TERMINATE,
];

/// Statements of the connection for readings of the catalog.
pub const FOR_READINGS: &[&Prepared] = &[&WAYS, &WAYS_AND_CALLS, &SHADOWS, &KEY_COLUMNS, &DEPENDENCIES];

pub const WAYS: Prepared =
    Prepared::new("ways", || format!("PREPARE ways (name[], name[]) AS {}", with_parameters::ways()));

pub const WAYS_AND_CALLS: Prepared = Prepared::new("ways_and_calls", || {
    let types = "name[], name[], name[], name[], name[], name[]";
    format!("PREPARE ways_and_calls ({types}) AS {}", with_parameters::ways_and_calls())
});

pub const SHADOWS: Prepared = Prepared::new("shadows", || format!("PREPARE shadows AS {}", with_parameters::shadows()));

pub const KEY_COLUMNS: Prepared = Prepared::new("key_columns", || {
    format!("PREPARE key_columns (name[], name[], name[], bytea[]) AS {}", with_parameters::key_columns())
});

pub const DEPENDENCIES: Prepared = Prepared::new("dependencies", || {
    format!("PREPARE dependencies (name[], name[]) AS {}", with_parameters::dependencies())
});

/// The prepared form of [`fencegate_catalog::question`].
pub fn read(fences: Fenced) -> String {
    let Subject { tables: [schemas, names], functions, keys } = Subject::of(fences);
    let ways = match &functions {
        None => WAYS.execute(&[&schemas, &names]),
        Some(functions) => {
            let ([exact_schemas, exact], [prefix_schemas, prefixes]) = (&functions.exact, &functions.prefixes);
            WAYS_AND_CALLS.execute(&[&schemas, &names, exact_schemas, exact, prefix_schemas, prefixes])
        }
    };
    let mut queries = vec![settings(None), ways];
    if let Some(Keys([schemas, names, columns, arguments])) = &keys {
        queries.extend([SHADOWS.execute(&[]), KEY_COLUMNS.execute(&[schemas, names, columns, arguments])]);
    }
    queries.join("; ")
}

/// The prepared form of [`fencegate_catalog::question_of_dependencies`].
pub fn dependencies(fences: Fenced) -> String {
    let Subject { tables: [schemas, names], .. } = Subject::of(fences);
    DEPENDENCIES.execute(&[&schemas, &names])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_prepares_the_statement_that_it_is_named_after() {
        for it in [FOR_ADMITS, FOR_EPOCHS, FOR_WAITS, FOR_LOOKS, FOR_READINGS].concat() {
            let text = (it.text)();
            let declared = text.strip_prefix("PREPARE ").unwrap().split([' ', '(']).next();
            assert_eq!(declared, Some(it.name), "{text}");
        }
    }
}
