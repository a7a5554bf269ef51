//! Questions of the proxy to the server, in the client's session: the value of the parameter, how
//! text is read, the role, the search path. The client must see nothing of them, save an error.

use super::parameter::ParameterValue;
use super::replies::{Audience, Request};
use super::transaction::{Pipeline, Transaction};
use super::verdict::Verdict;
use super::{Asked, Host, Session, Wait};
use crate::fence::Role;
use crate::statement::{Encoding, Statement};
use crate::wire::frame::Header;
use crate::wire::message::{self, Status};
use crate::wire::tag::frontend;
use std::sync::Arc;

/// The name of our own statement and portal at the server, closed after each use.
const NAME: &str = "fencegate value";
/// Qualified: the search path is the client's.
const QUESTION: &str = "SELECT pg_catalog.current_setting('lease.fence', true), \
    pg_catalog.current_setting('standard_conforming_strings'), pg_catalog.current_setting('client_encoding'), \
    pg_catalog.current_schemas(true), pg_catalog.current_setting('search_path')";

/// The role that the session acts as: two questions that take no snapshot. A transaction that has none yet must not get one
/// before the fence is raised: what is committed until then would be hidden from it.
pub(super) const ROLE: [&str; 2] = ["SHOW role", "SHOW session_authorization"];
/// The same, for replication sessions, to which SHOW is a command of another grammar.
const ROLE_IN_ONE: &str =
    "SELECT pg_catalog.current_setting('role'), pg_catalog.current_setting('session_authorization')";

/// The columns of the answers.
pub(super) type ResultColumns = Vec<Option<String>>;

impl<H: Host> Session<H> {
    /// The bytes may be read in another way once what is under way has happened and is known.
    pub(super) fn lexing_in_doubt(&self, text: &[u8]) -> bool {
        self.replies.lexing_in_doubt() && text.iter().any(|byte| *byte == b'\\' || !byte.is_ascii())
    }

    /// Holds a message back until it is known how its text is read. True when that cannot be, and it is rejected.
    pub(super) fn hold_for_lexing(&mut self, header: Header) -> bool {
        if !self.replies.is_empty() {
            return self.hold(header);
        }
        // The server reports the settings with ReadyForQuery only.
        self.ask();
        false
    }

    /// Asks the server, in the session. To be called when nothing is owed.
    pub(super) fn ask(&mut self) {
        self.put_questions(&[QUESTION]);
        self.wait = Some(Wait::Value);
    }

    /// Asks for the role that the session acts as, as soon as nothing is owed.
    pub(super) fn ask_for_role(&mut self) -> Verdict {
        if !self.replies.is_empty() {
            return self.settle();
        }
        self.put_questions(if self.replicates { &[ROLE_IN_ONE] } else { &ROLE });
        self.wait = Some(Wait::Role);
        Verdict::Hold
    }

    /// The message at hand is no simple query.
    pub(super) fn is_extended(&self) -> bool {
        self.client.input.first() != Some(&frontend::QUERY)
    }

    /// Before a simple query by one, unless a pipeline is open: an Execute of ours would begin one, which since PostgreSQL 18
    /// a simple query does not end. Otherwise with a Sync, wherever that ends nothing of the client's: the server runs some
    /// statements only where they come first in their pipeline.
    pub(super) fn put_questions(&mut self, questions: &[&str]) {
        let Transaction { status, pipeline, .. } = self.transaction;
        let in_pipeline = pipeline == Pipeline::Executed || self.is_extended();
        self.note_forwarding();
        if in_pipeline {
            for question in questions {
                self.run_in_pipeline(question, Arc::default(), &Audience::Proxy);
            }
            match (status, pipeline) {
                (Status::Idle, Pipeline::Empty) => self.put_sync(Audience::Proxy),
                // An error skips what follows, as the client expects it.
                _ => message::put_flush(&mut self.server.output),
            }
        } else {
            // Before another simple query it changes nothing; replication sessions know no other.
            message::put_query(&mut self.server.output, &[questions.join("; ").as_bytes()]);
            let statements = vec![Arc::default(); questions.len()];
            self.replies.push(Request::query(statements), Audience::Proxy);
        }
    }

    /// Asks behind all that the client has asked, outside of any pipeline. A simple query would drop the client's unnamed statement.
    pub(super) fn put_question_ahead(&mut self, question: &str) {
        self.note_forwarding();
        self.run_in_pipeline(question, Arc::default(), &Audience::ProxyAhead);
        self.put_sync(Audience::ProxyAhead);
    }

    /// A statement that commits by itself may have to come first in its pipeline, and a Sync behind a question would take its
    /// portal away. So the token is asked for before there is one. True: the Bind at hand waits for that.
    pub(super) fn asks_before_bind(&mut self, statement: &Statement) -> bool {
        let may_come_first = self.transaction.pipeline == Pipeline::Empty && !self.parameter.failed();
        if !may_come_first || !statement.may_commit() || !self.may_need_token(statement) {
            return false;
        }
        if !self.replies.is_empty() {
            let is_known = self.parameter.is_settled() && !self.replies.affect_parameter();
            return !is_known && matches!(self.settle(), Verdict::Hold);
        }
        let asks = self.transaction.status == Status::Idle && *self.parameter.current() == ParameterValue::Unknown;
        if asks {
            self.ask();
        }
        asks
    }

    /// Ends the pipeline.
    pub(super) fn put_sync(&mut self, audience: Audience) {
        message::put_sync(&mut self.server.output);
        self.replies.push(Request::Sync, audience);
        self.transaction.pipeline = Pipeline::Empty;
        self.batch += 1;
    }

    pub(super) fn run_in_pipeline(&mut self, text: &str, statement: Arc<Statement>, audience: &Audience) {
        let output = &mut self.server.output;
        message::put_parse(output, NAME, text);
        message::put_bind(output, NAME, NAME);
        message::put_execute(output, NAME);
        message::put_close_portal(output, NAME);
        message::put_close_statement(output, NAME);
        let requests = [
            Request::Parse { defines: None },
            Request::bind(),
            Request::Execute { statement, defines: None },
            Request::ClosePortal { name: NAME.into() },
            Request::CloseStatement { name: NAME.into() },
        ];
        for request in requests {
            self.replies.push(request, audience.clone());
        }
    }

    /// Takes the answer, when nothing is owed any more.
    pub(super) fn take_answer(&mut self) {
        if !self.waits_for_answer() || !self.replies.is_empty() {
            return;
        }
        let columns = self.pending.answer.take().unwrap_or_default();
        if self.pending.limit == Asked::Due {
            return self.take_limits(columns);
        }
        let mut columns = columns.into_iter();
        let wait = self.wait.take();
        if matches!(wait, Some(Wait::Path)) {
            self.take_path(columns.next().flatten());
            // The role, where it was asked for as well.
            if let (Some(role), Some(session)) = (columns.next(), columns.next()) {
                self.take_role(role, session);
            }
            return;
        }
        if matches!(wait, Some(Wait::Role)) {
            return self.take_role(columns.next().flatten(), columns.next().flatten());
        }
        self.parameter
            .learn(columns.next().map_or(ParameterValue::Invalid, |value| ParameterValue::read(value.as_deref())));
        for (name, value) in ["standard_conforming_strings", "client_encoding"].into_iter().zip(columns.by_ref()) {
            self.lexing.note(name, &value.unwrap_or_default());
        }
        // No path at all is none that is trusted.
        self.pending.path = Some(columns.next().flatten().unwrap_or_default());
        self.take_path(columns.next().flatten());
        self.replies.lexing_known();
    }

    fn take_role(&mut self, role: Option<String>, session: Option<String>) {
        let current = role.filter(|role| role != "none").or(session).unwrap_or_default();
        // A name in another encoding than the proxy's is not known.
        let is_known = current.is_ascii() || self.lexing.encoding == Encoding::Utf8;
        self.pending.role = Asked::Answered(if is_known { Role::Current(current) } else { self.any_role() });
    }

    fn take_path(&mut self, path: Option<String>) {
        self.path.learn(path.as_deref());
        self.replies.path_said();
    }

    /// The message at hand waits for what the server was asked.
    pub(super) fn waits_for_answer(&self) -> bool {
        matches!(self.wait, Some(Wait::Value | Wait::Role | Wait::Path)) || self.pending.limit == Asked::Due
    }

    /// Whatever the session may become.
    pub(super) fn any_role(&self) -> Role {
        Role::AnyOf(self.host.user().to_owned())
    }

    /// The server could not answer: a cancel or a time-out met the question. What the client asked
    /// is answered by that error.
    pub(super) fn question_refused(&mut self) {
        self.wait = None;
        self.pending.answer = None;
        self.pending.role = Asked::Not;
        self.abandon_hold();
        let at_hand = self.client.input.first();
        let is_answered = matches!(at_hand, Some(&(frontend::QUERY | frontend::FUNCTION_CALL)));
        match self.replies.front() {
            // The ReadyForQuery after ours ends the answer.
            Some(front) if is_answered => front.audience = Audience::Client,
            None if is_answered => self.put_sync(Audience::Client),
            Some(_) => return self.replies.skip_to_sync(),
            None => return,
        }
        self.drop_held_message();
    }
}
