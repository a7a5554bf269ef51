//! Notices with an answer, about databases that it does not cover.

use super::result_set::Notice;
use fencegate_fence::Database;
use fencegate_fence::store::StoreError;
use fencegate_policy::PolicySet;
use fencegate_wire::error::{ErrorText, Severity};

/// Returns true if the database exists and may have a fenced table.
pub(super) fn is_concerned(policies: &PolicySet, database: &Database) -> bool {
    !database.is_missing() && (policies.databases.is_some() || !database.fences_nothing())
}

/// Warning with a result that covers the other databases. None if the failure shows that the database has no fences.
pub(super) fn unreadable(policies: &PolicySet, database: &Database, error: &StoreError) -> Option<Notice> {
    let text = format!("database \"{}\" cannot be queried: {error}", database.name());
    is_concerned(policies, database).then(|| (Severity::Warning, ErrorText::new("01000", text)))
}

/// Notice with a result without databases.
pub(super) fn no_databases() -> Notice {
    let message = "no database with fenced tables has had a session in the last ten minutes";
    let hint = "Databases are shown while they have sessions through this proxy, and for ten minutes afterwards. In the others, query fencegate_state.epoch.";
    notice(message, hint)
}

pub(super) fn notice(message: impl Into<String>, hint: &str) -> Notice {
    (Severity::Notice, ErrorText::new("00000", message).hint(hint))
}
