//! The functions of the guard: their names, and whether they are those that this program installs.
//!
//! Owns the hash in their comment. Must never mistake changed functions for its own.

use super::outcome::GuardState;
use fencegate_postgres::sql_file::Value::{Sql, Text};
use fencegate_postgres::sql_file::{Fragment, fill};
use sha2::{Digest, Sha256};

pub(super) const FUNCTIONS: &str = concat!(include_str!("../store/check.sql"), include_str!("guard.sql"));
const NOTICE: &str = include_str!("notice.sql");

/// The functions of `check.sql`, which `init` creates too.
pub(super) const CHECK_SIGNATURES: [&str; 7] = [
    "fencegate.presented(text)",
    "fencegate.own_pid()",
    "fencegate.own_start()",
    "fencegate.missing_token_hint()",
    "fencegate.await_lock(text)",
    "fencegate.check_write(text, text, boolean)",
    "fencegate.claim(text)",
];
/// The functions of `guard.sql`, then that of `notice.sql`.
pub(super) const SIGNATURES: [&str; 6] = [
    "fencegate.is_admitted(text, text)",
    "fencegate.observe_write(text, boolean)",
    "fencegate.keyed(text, text, text)",
    "fencegate.check_every_key(text, boolean, boolean)",
    "fencegate.guard_table()",
    "fencegate.guard()",
];
pub(super) const NOTICE_SIGNATURE: &str = "fencegate.notice_definition()";

/// Functions that are created together. A hash of their definitions is stored in the comment on one of them.
pub(super) struct Functions {
    text: &'static str,
    /// A list of literals.
    pub(super) names: &'static str,
    /// Takes no arguments.
    commented: &'static str,
}

pub(super) const GUARD_FUNCTIONS: Functions = Functions {
    text: FUNCTIONS,
    names: "'presented', 'own_pid', 'own_start', 'missing_token_hint', 'await_lock', 'check_write', 'claim', 'is_admitted', 'observe_write', \
            'keyed', 'check_every_key', 'guard_table', 'guard'",
    commented: "guard",
};
/// Apart from those, because only a superuser can create it.
pub(super) const NOTICE_FUNCTION: Functions =
    Functions { text: NOTICE, names: "'notice_definition'", commented: "notice_definition" };

/// The statements that create them and their function.
pub(super) fn event_triggers() -> String {
    format!("{NOTICE}\n{}", NOTICE_FUNCTION.seal())
}

impl Functions {
    /// The statement that records the version of the functions in a comment.
    pub(super) fn seal(&self) -> String {
        let (commented, version, content) = (self.commented, self.version(), self.content());
        format!(
            "DO $seal$ BEGIN EXECUTE format('COMMENT ON FUNCTION fencegate.{commented}() IS %L', '{version} ' || {content}); END $seal$"
        )
    }

    /// Columns: the current hash, and the comment.
    pub(super) fn columns(&self, content: &str, seal: &str) -> String {
        let values = [
            ("function_names", Sql(self.names)),
            ("commented", Text(self.commented)),
            ("content_column", Sql(content)),
            ("seal_column", Sql(seal)),
        ];
        fill(":sealed_content", FRAGMENTS, &values).text
    }

    fn content(&self) -> String {
        fill(":content", FRAGMENTS, &[("function_names", Sql(self.names))]).text
    }

    pub(super) fn state(&self, content: &str, seal: &str) -> GuardState {
        match content {
            "" => GuardState::Missing,
            _ if seal == format!("{} {content}", self.version()) => GuardState::Ok,
            _ => GuardState::Changed,
        }
    }

    /// Version of the functions that this program installs.
    fn version(&self) -> String {
        let hash = Sha256::digest(self.text);
        format!("fencegate guard {:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
    }
}

pub(super) const FRAGMENTS: &[Fragment] = &[
    ("admitted_users", include_str!("sql/fragments/admitted_users.sql")),
    ("cascade", include_str!("sql/fragments/cascade.sql")),
    ("content", include_str!("sql/fragments/content.sql")),
    ("dependent_schema", include_str!("sql/fragments/dependent_schema.sql")),
    ("is_guards", include_str!("sql/fragments/is_guards.sql")),
    ("is_here", include_str!("sql/fragments/is_here.sql")),
    ("is_temporary", include_str!("sql/fragments/is_temporary.sql")),
    ("may_admit_to", include_str!("sql/fragments/may_admit_to.sql")),
    ("parts", include_str!("sql/fragments/parts.sql")),
    ("sealed_content", include_str!("sql/fragments/sealed_content.sql")),
    ("may_terminate", include_str!("../store/sql/fragments/may_terminate.sql")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_raised_error_has_a_hint() {
        for text in [FUNCTIONS, NOTICE, include_str!("../store/schema.sql"), include_str!("../store/leases.sql")] {
            for raised in text.split("RAISE EXCEPTION").skip(1) {
                let raised = raised.split_once(";\n").map_or(raised, |(raised, _)| raised);
                // LF000 does not leave its block.
                assert!(raised.contains("HINT = ") || raised.contains("'LF000'"), "{raised}");
            }
        }
    }
}
