//! The functions of the guard: their names, and whether they are those that this program installs.
//!
//! Owns the number in their comment. Must never take changed functions for its own.

use super::{FUNCTIONS, GuardState, NOTICE};
use sha2::{Digest, Sha256};

/// The functions of `guard.sql`, then that of `notice.sql`.
pub(super) const SIGNATURES: [&str; 12] = [
    "fencegate.presented(text)",
    "fencegate.own_pid()",
    "fencegate.own_start()",
    "fencegate.is_admitted(text, text)",
    "fencegate.missing_token_hint()",
    "fencegate.await_lock(text)",
    "fencegate.check_write(text, text, boolean)",
    "fencegate.observe_write(text, boolean)",
    "fencegate.keyed(text, text, text)",
    "fencegate.check_every_key(text, boolean, boolean)",
    "fencegate.guard_table()",
    "fencegate.guard()",
];
pub(super) const NOTICE_SIGNATURE: &str = "fencegate.notice_definition()";

/// The function among them that only their owner calls: it ends processes.
pub(super) const OWNERS_FUNCTION: &str = "await_lock";

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
    names: "'presented', 'own_pid', 'own_start', 'is_admitted', 'missing_token_hint', 'await_lock', 'check_write', 'observe_write', 'keyed', \
            'check_every_key', 'guard_table', 'guard'",
    commented: "guard",
};
/// Apart from those, because only a superuser can create it.
pub(super) const NOTICE_FUNCTION: Functions =
    Functions { text: NOTICE, names: "'notice_definition'", commented: "notice_definition" };

impl Functions {
    /// The statement that records the version of the functions in a comment.
    pub(super) fn seal(&self) -> String {
        let (commented, version, content) = (self.commented, self.version(), self.content());
        format!(
            "DO $seal$ BEGIN EXECUTE format('COMMENT ON FUNCTION fencegate.{commented}() IS %L', '{version} ' || {content}); END $seal$"
        )
    }

    /// Columns: the number as it is now, and the comment.
    pub(super) fn columns(&self, content: &str, seal: &str) -> String {
        // Not by to_regprocedure, which asks for a privilege of the schema.
        format!(
            "{} AS {content}, (SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc p \
               WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname = '{}' AND p.pronargs = 0) AS {seal}",
            self.content(),
            self.commented
        )
    }

    fn content(&self) -> String {
        format!(
            "(SELECT md5(string_agg(pg_get_functiondef(p.oid) || pg_get_userbyid(p.proowner), '' ORDER BY p.proname)) \
             FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname IN ({}))",
            self.names
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_advice() {
        for text in [FUNCTIONS, NOTICE, include_str!("../store/schema.sql"), include_str!("../store/leases.sql")] {
            for raised in text.split("RAISE EXCEPTION").skip(1) {
                let raised = raised.split_once(";\n").map_or(raised, |(raised, _)| raised);
                // LF000 leaves no block.
                assert!(raised.contains("HINT = ") || raised.contains("'LF000'"), "{raised}");
            }
        }
    }
}
