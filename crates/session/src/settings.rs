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
    /// The reported values of `lexing`, while it has values that the server showed in answer to a query. An error or a
    /// rollback may undo such a value, and the server then reports nothing.
    pub reported: Option<Lexing>,
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

    /// The server has reported the value of a setting.
    pub(super) fn report_lexing(&mut self, name: &str, value: &str) {
        self.lexing.note(name, value);
        if let Some(reported) = &mut self.reported {
            reported.note(name, value);
        }
    }

    /// The server has shown the value of a setting. It counts until ReadyForQuery.
    pub(super) fn show_lexing(&mut self, name: &str, value: &str) {
        self.reported.get_or_insert(self.lexing);
        self.lexing.note(name, value);
    }

    /// ReadyForQuery. The server has reported every change before it.
    pub(super) fn ready(&mut self, status: Status) {
        if let Some(reported) = self.reported.take() {
            self.lexing = reported;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::ParameterValue;

    /// `SET standard_conforming_strings = off` in a pipeline that fails is undone, and the server reports nothing.
    #[test]
    fn a_value_that_the_server_showed_counts_until_it_is_ready() {
        let (replicates, temporary, parameter) = (false, None, Parameter::new(ParameterValue::read(None)));
        let path = Path::new(Some("public"), false);
        let mut settings = Settings { replicates, temporary, parameter, path, lexing: Lexing::USUAL, reported: None };
        settings.show_lexing("standard_conforming_strings", "off");
        assert!(!settings.lexing.standard_conforming_strings);
        settings.ready(Status::Idle);
        assert!(settings.lexing.standard_conforming_strings, "the pipeline has failed");
        settings.show_lexing("standard_conforming_strings", "off");
        settings.report_lexing("standard_conforming_strings", "off");
        settings.ready(Status::Idle);
        assert!(!settings.lexing.standard_conforming_strings, "the server has reported it");
    }
}
