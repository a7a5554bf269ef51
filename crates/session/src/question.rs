//! Questions of the proxy to the server, in the client's session: the value of the parameter, how text is read, the role, the
//! search path. The client must see no answer to them, except an error.

use super::host::Host;
use super::message::{Question, ServerFact, Stage, Verdict};
use super::parameter::ParameterValue;
use super::pipeline::{Audience, Part};
use super::rejection::Rejection;
use super::session::Session;
use fencegate_fence::Role;
use fencegate_statement::Statement;
use fencegate_wire::frame::Header;
use fencegate_wire::message::{self, Status};
use fencegate_wire::tag::frontend;
use std::sync::Arc;

/// Qualified: the search path is the client's.
const SETTINGS: &str = "SELECT pg_catalog.current_setting('lease.fence', true), \
    pg_catalog.current_setting('standard_conforming_strings'), pg_catalog.current_setting('client_encoding'), \
    pg_catalog.current_schemas(true), pg_catalog.current_setting('search_path')";

/// SHOW takes no snapshot. A transaction must not take one before the fence is raised: it would not see changes that
/// are committed until then.
const PATH: &str = "SHOW search_path";
/// The role that the session acts as.
const ROLE: [&str; 2] = ["SHOW role", "SHOW session_authorization"];
/// The question for the role in replication sessions, where SHOW is a command of another grammar.
const ROLE_IN_ONE: &str =
    "SELECT pg_catalog.current_setting('role'), pg_catalog.current_setting('session_authorization')";

impl<H: Host> Session<H> {
    /// Holds a message back until it is known how its text is read. If that cannot happen, rejects the message and
    /// returns true.
    pub(super) fn hold_for_lexing(&mut self, header: Header) -> bool {
        if !self.pipeline.is_empty() {
            return self.hold(header);
        }
        // The server reports the settings only with ReadyForQuery.
        self.ask();
        false
    }

    /// Queries the server for the settings. Call this when nothing is owed.
    pub(super) fn ask(&mut self) {
        self.put_questions(&[SETTINGS]);
        self.message.set_stage(Stage::Asking(Question::Settings));
    }

    /// Queries the role that the session acts as, once nothing is owed.
    pub(super) fn query_role(&mut self) -> Verdict {
        if !self.pipeline.is_empty() {
            return self.settle();
        }
        self.put_questions(if self.settings.replicates { &[ROLE_IN_ONE] } else { &ROLE });
        self.message.set_stage(Stage::Asking(Question::Role));
        Verdict::Hold
    }

    /// Queries the search path, once nothing is owed. If the token is unknown, too, queries all settings.
    pub(super) fn query_path(&mut self) -> Verdict {
        if !self.pipeline.is_empty() {
            return self.settle();
        }
        match self.settings.parameter.current() {
            ParameterValue::Unknown => self.ask(),
            _ => {
                self.put_questions(&[PATH]);
                self.message.set_stage(Stage::Asking(Question::Path));
            }
        }
        Verdict::Hold
    }

    /// Queries the search path, and the role that `"$user"` in it stands for.
    pub(super) fn query_path_and_role(&mut self) -> Verdict {
        if !self.pipeline.is_empty() {
            return self.settle();
        }
        let [role, session] = ROLE;
        self.put_questions(&[PATH, role, session]);
        self.message.set_stage(Stage::Asking(Question::Path));
        Verdict::Hold
    }

    /// Queries the path before the client's next statement, outside of any pipeline. A simple query would drop the
    /// client's unnamed statement.
    pub(super) fn query_path_ahead(&mut self) {
        self.begin_forwarding();
        self.pipeline.run(&mut self.server.output, PATH, Arc::default(), &Audience::ProxyAhead);
        self.pipeline.put_sync(&mut self.server.output, Audience::ProxyAhead);
    }

    /// True if the message at hand is not a simple query.
    pub(super) fn is_extended(&self) -> bool {
        self.client.input.first() != Some(&frontend::QUERY)
    }

    /// Before a simple query, sends the questions as a simple query, unless a pipeline is open: an Execute of the proxy
    /// would begin a pipeline, which since PostgreSQL 18 a simple query does not end. Otherwise sends a Sync after the
    /// questions if that ends nothing of the client's, because some statements must come first in their pipeline.
    pub(super) fn put_questions(&mut self, questions: &[&str]) {
        let (status, part) = (self.transaction.status(), self.pipeline.part());
        let in_pipeline = part == Part::Executed || self.is_extended();
        self.begin_forwarding();
        let output = &mut self.server.output;
        if !in_pipeline {
            // The client's simple query follows, so this one changes nothing. Replication sessions accept only simple
            // queries.
            return self.pipeline.put_query(output, questions);
        }
        for question in questions {
            self.pipeline.run(output, question, Arc::default(), &Audience::Proxy);
        }
        match (status, part) {
            (Status::Idle, Part::Empty) => self.pipeline.put_sync(output, Audience::Proxy),
            // An error skips the messages that follow, as the client expects.
            _ => message::put_flush(output),
        }
    }

    /// Returns true if the current Bind must wait until the token is known. A statement that commits by itself may have
    /// to come first in its pipeline, and a Sync after a question would close its portal. The proxy therefore queries
    /// the token before the portal exists.
    pub(super) fn queries_before_bind(&mut self, statement: &Statement) -> bool {
        let may_come_first = self.pipeline.part() == Part::Empty && !self.settings.parameter.failed();
        if !may_come_first || !statement.may_commit() || !self.may_need_token(statement) {
            return false;
        }
        let parameter = &self.settings.parameter;
        if !self.pipeline.is_empty() {
            let is_known = parameter.is_settled() && !self.pipeline.may_change_parameter();
            return !is_known && matches!(self.settle(), Verdict::Hold);
        }
        let asks = self.transaction.status() == Status::Idle && *parameter.current() == ParameterValue::Unknown;
        if asks {
            self.ask();
        }
        asks
    }

    /// Holds the current message until the server owes nothing. That would never happen during a COPY from the client:
    /// the server refuses the message itself or, if the COPY has failed meanwhile, the proxy rejects it.
    pub(super) fn settle(&mut self) -> Verdict {
        if self.pipeline.is_copying_in() {
            let why = "it was sent during COPY FROM STDIN".to_owned();
            return Verdict::Reject(0, Rejection::Unverifiable { why, hint: "End the COPY first." });
        }
        if self.pipeline.needs_flush() {
            self.flush();
        }
        self.message.set_stage(Stage::Settling);
        Verdict::Hold
    }

    /// Makes the server send pending responses.
    pub(super) fn flush(&mut self) {
        self.begin_forwarding();
        message::put_flush(&mut self.server.output);
    }

    /// Takes the answer when nothing is owed anymore.
    pub(super) fn take_answer(&mut self) {
        if !self.waits_for_answer() || !self.pipeline.is_empty() {
            return;
        }
        let columns = std::mem::take(&mut self.message.facts.answer);
        if self.message.hold.awaits_limit() {
            return self.take_limits(columns);
        }
        let mut columns = columns.into_iter();
        let question = self.message.asks();
        self.message.resume();
        match question {
            Some(Question::Role) => self.take_role(columns.next().flatten(), columns.next().flatten()),
            Some(Question::Path) => {
                self.take_path(columns.next().flatten());
                if let (Some(role), Some(session)) = (columns.next(), columns.next()) {
                    self.take_role(role, session);
                }
            }
            Some(Question::Settings) | None => self.take_settings(columns),
        }
    }

    fn take_settings(&mut self, mut columns: impl Iterator<Item = Option<String>>) {
        let value = columns.next();
        let value = value.map_or(ParameterValue::Invalid, |value| ParameterValue::read(value.as_deref()));
        self.settings.parameter.learn(value);
        for (name, value) in ["standard_conforming_strings", "client_encoding"].into_iter().zip(columns.by_ref()) {
            self.settings.show_lexing(name, &value.unwrap_or_default());
        }
        // Without an answer no path is trusted.
        self.message.facts.path = Some(columns.next().flatten().unwrap_or_default());
        self.take_path(columns.next().flatten());
        self.pipeline.lexing_reported();
    }

    fn take_role(&mut self, role: Option<String>, session: Option<String>) {
        self.message.facts.role = ServerFact::Known(self.settings.role(role, session, self.host.user()));
    }

    fn take_path(&mut self, path: Option<String>) {
        self.settings.path.learn(path.as_deref());
        self.pipeline.path_reported();
    }

    /// Returns true if the message at hand waits for the server's answer to a question.
    pub(super) fn waits_for_answer(&self) -> bool {
        self.message.asks().is_some() || self.message.hold.awaits_limit()
    }

    /// Any role that the session may assume.
    pub(super) fn any_role(&self) -> Role {
        Role::AnyOf(self.host.user().to_owned())
    }

    /// The server could not answer because of a cancel request or a timeout. The client's message gets that error.
    pub(super) fn question_refused(&mut self) {
        self.message.resume();
        self.message.facts.answer.clear();
        self.message.facts.role = ServerFact::NotQueried;
        self.abandon_hold();
        let at_hand = self.client.input.first();
        let is_answered = matches!(at_hand, Some(&(frontend::QUERY | frontend::FUNCTION_CALL)));
        match self.pipeline.front() {
            // The ReadyForQuery after the question ends the answer.
            Some(front) if is_answered => front.audience = Audience::Client,
            None if is_answered => self.pipeline.put_sync(&mut self.server.output, Audience::Client),
            Some(_) => return self.pipeline.skip_to_sync(),
            None => return,
        }
        self.drop_held_message();
    }
}
