//! The version of the schema, in the comment on it.

/// The schema version that this program works with; `schema.sql` has the same.
pub(super) const VERSION: &str = "fencegate schema version 6";

/// The version number in the schema's comment, if it is fencegate's.
pub(super) fn version_number(comment: &str) -> Option<u32> {
    comment.rsplit(' ').next()?.parse().ok()
}

/// Returns true if the comment on the schema is that of a newer program.
pub fn is_newer(comment: &str) -> bool {
    version_number(comment) > version_number(VERSION)
}
