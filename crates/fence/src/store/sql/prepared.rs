//! The frequent statements of the fence. A connection prepares them when it opens and plans each once, because planning one
//! takes up to fifty times as long as executing it.
//!
//! Owns their declaration, and the list that each connection prepares. Must never put external input into a statement's text:
//! such input is an argument.

use super::{admission, catalog, epoch, lock, privilege, process};
use fencegate_postgres::sql::quote;

/// A statement with parameters.
#[derive(Debug)]
pub struct Prepared {
    name: &'static str,
    /// The PREPARE statement.
    text: fn() -> String,
}

/// Statements of the connection for Admits.
pub const FOR_ADMITS: &[&Prepared] = &[&lock::SHARE, &epoch::LOCK_SHARED, &admission::ADMIT, &admission::REPORT];

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
    &process::TERMINATE,
];

/// Statements of the connection for readings of the catalog.
pub const FOR_READINGS: &[&Prepared] =
    &[&catalog::WAYS, &catalog::WAYS_AND_CALLS, &catalog::SHADOWS, &catalog::KEY_COLUMNS, &catalog::DEPENDENCIES];

impl Prepared {
    pub(super) const fn new(name: &'static str, text: fn() -> String) -> Self {
        Prepared { name, text }
    }

    /// The EXECUTE statement. The arguments are SQL, one for each parameter.
    pub(super) fn execute(&self, arguments: &[&str]) -> String {
        let arguments = arguments.join(", ");
        // SQL permits no empty list.
        if arguments.is_empty() {
            format!("EXECUTE {}", self.name)
        } else {
            format!("EXECUTE {}({arguments})", self.name)
        }
    }
}

/// The Query that prepares these statements.
pub fn prepare(statements: &[&Prepared]) -> String {
    statements.iter().map(|it| (it.text)()).collect::<Vec<_>>().join("; ")
}

/// An SQL array of texts, or of another type whose values are written as text.
pub(super) fn texts<'a>(of: &str, elements: impl IntoIterator<Item = &'a str>) -> String {
    let elements: Vec<String> = elements.into_iter().map(quote).collect();
    format!("ARRAY[{}]::{of}[]", elements.join(", "))
}

/// An SQL array of numbers.
pub(super) fn numbers<T: ToString>(of: &str, elements: impl IntoIterator<Item = T>) -> String {
    let elements: Vec<String> = elements.into_iter().map(|it| it.to_string()).collect();
    format!("ARRAY[{}]::{of}[]", elements.join(", "))
}

/// An argument that may be null.
pub(super) fn or_null(text: Option<String>) -> String {
    text.unwrap_or_else(|| "NULL".to_owned())
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
