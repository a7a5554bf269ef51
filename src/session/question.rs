//! Questions of the proxy to the server, in the client's session: the value of the parameter, how
//! text is read, the role, the search path. The client must see nothing of them, save an error.

use super::parameter::ParameterValue;
use super::replies::{Audience, Request};
use super::verdict::Verdict;
use super::{Asked, Host, Sent, Session, Wait};
use crate::fence::Role;
use crate::statement::{Encoding, Statement};
use crate::wire::frame::Header;
use crate::wire::message;
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
const ROLE: [&str; 2] = ["SHOW role", "SHOW session_authorization"];
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

    /// Asks the server, in the session. To be called when nothing is owed. Before a simple query by one, unless a
    /// pipeline is open: an Execute of ours would begin one, which since PostgreSQL 18 a simple query does not end.
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

    pub(super) fn put_questions(&mut self, questions: &[&str]) {
        let in_pipeline = self.transaction.sent == Sent::Execute || self.is_extended();
        self.note_forwarding();
        if in_pipeline {
            for question in questions {
                self.run_in_pipeline(question, Arc::default(), &Audience::Proxy);
            }
            message::put_flush(&mut self.server.output);
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
        message::put_sync(&mut self.server.output);
        self.replies.push(Request::Sync, Audience::ProxyAhead);
        self.batch += 1;
    }

    /// A Sync would end the implicit transaction of a pipeline; without one, an error skips what follows, as the
    /// client expects it.
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
        let mut columns = self.pending.answer.take().unwrap_or_default().into_iter();
        let wait = self.wait.take();
        if matches!(wait, Some(Wait::Path)) {
            return self.take_path(columns.next().flatten());
        }
        if matches!(wait, Some(Wait::Role)) {
            let (role, session) = (columns.next().flatten(), columns.next().flatten());
            let current = role.filter(|role| role != "none").or(session).unwrap_or_default();
            // A name in another encoding than the proxy's is not known.
            let is_known = current.is_ascii() || self.lexing.encoding == Encoding::Utf8;
            self.pending.role = Asked::Answered(if is_known { Role::Current(current) } else { self.any_role() });
            return;
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

    fn take_path(&mut self, path: Option<String>) {
        self.path.learn(path.as_deref());
        self.replies.path_said();
    }

    /// The message at hand waits for what the server was asked.
    pub(super) fn waits_for_answer(&self) -> bool {
        matches!(self.wait, Some(Wait::Value | Wait::Role | Wait::Path))
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
        if let Some(front) = self.replies.front() {
            // The client's simple query: the ReadyForQuery after ours ends its answer.
            front.audience = Audience::Client;
            self.drop_held_query();
        }
    }
}
