//! The settings of the session that affect the reading and judging of its statements.
//!
//! Owns their known values, which follow the server's replies, never the client's requests.

use super::parameter::Parameter;
use super::path::Path;
use fencegate_fence::Role;
use fencegate_statement::{Encoding, Lexing, Statement};
use fencegate_wire::message::Status;
use std::sync::Arc;

/// The settings of a session.
pub struct Settings {
    /// The session accepts replication commands beside SQL.
    pub replicates: bool,
    /// Schema of the session's temporary relations, if the server has reported it.
    pub temporary: Option<Arc<str>>,
    /// `lease.fence`.
    pub parameter: Parameter,
    /// `search_path`.
    pub path: Path,
    /// The settings that decide how text is read.
    pub lexing: Lexing,
}

impl Settings {
    /// A statement succeeded. `rolled_back`: the server answered a COMMIT with ROLLBACK.
    pub(super) fn completed(&mut self, statement: &Statement, rolled_back: bool) {
        self.parameter.completed(statement, rolled_back);
        self.path.completed(statement);
    }

    /// The server reported an error.
    pub(super) fn error(&mut self) {
        self.parameter.error();
        self.path.error();
    }

    /// ReadyForQuery.
    pub(super) fn ready(&mut self, status: Status) {
        self.parameter.ready(status);
        self.path.ready(status);
    }

    /// Statements were not judged so far, and may have set anything.
    pub(super) fn forget(&mut self) {
        self.parameter.forget_all();
        self.path.forget();
    }

    /// The role that the server reports, as `role` and `session_authorization`. `login`: the role that logged in.
    pub(super) fn role(&self, role: Option<String>, session: Option<String>, login: &str) -> Role {
        let current = role.filter(|role| role != "none").or(session).unwrap_or_default();
        // The proxy cannot read a name in an encoding other than its own.
        let is_known = current.is_ascii() || self.lexing.encoding == Encoding::Utf8;
        if is_known { Role::Current(current) } else { Role::AnyOf(login.to_owned()) }
    }
}
