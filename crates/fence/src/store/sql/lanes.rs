//! The statements that each control connection prepares.

use super::prepared::Prepared;
use super::{admission, catalog, epoch, lock, privilege, process};

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
