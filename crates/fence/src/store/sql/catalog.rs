//! The catalog query for all sessions, prepared. Every DDL statement that may concern fenced tables triggers a reading, and
//! planning would take most of its time.

use super::prepared::Prepared;
use fencegate_catalog::{Fenced, Keys, Subject, settings, with_parameters};

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
    let mut asked = vec![settings(None), ways];
    if let Some(Keys([schemas, names, columns, arguments])) = &keys {
        asked.extend([SHADOWS.execute(&[]), KEY_COLUMNS.execute(&[schemas, names, columns, arguments])]);
    }
    asked.join("; ")
}

/// The prepared form of [`fencegate_catalog::question_of_dependencies`].
pub fn dependencies(fences: Fenced) -> String {
    let Subject { tables: [schemas, names], .. } = Subject::of(fences);
    DEPENDENCIES.execute(&[&schemas, &names])
}
