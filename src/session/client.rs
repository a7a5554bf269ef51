//! Messages from the client: those that need a verdict wait for it, all others pass.
//!
//! Must never forward a message of unknown effect where statements are judged.

use super::rejection::Rejection;
use super::replies::Request;
use super::transaction::Pipeline;
use super::verdict::{Run, Verdict};
use super::{ClientFault, HIGH_WATER, Host, LITTLE, Life, Session, Step, frame_of};
use crate::statement::{PreparedEffect, Statement, StatementKind};
use crate::wire::frame::Header;
use crate::wire::message;
use crate::wire::tag::frontend;
use std::sync::Arc;

/// The types of message that a server ignores up to a Sync. At any other it ends the session, whatever it does.
const SKIPPED: [u8; 11] = [
    frontend::QUERY,
    frontend::FUNCTION_CALL,
    frontend::PARSE,
    frontend::BIND,
    frontend::DESCRIBE,
    frontend::EXECUTE,
    frontend::CLOSE,
    frontend::FLUSH,
    frontend::COPY_DATA,
    frontend::COPY_DONE,
    frontend::COPY_FAIL,
];

/// The most messages in one step: many small ones together may take long, and the driver checks the clock between steps.
const AT_ONCE: usize = 64;

impl<H: Host> Session<H> {
    /// Handles all that has been read from the client, as far as the server's output has room and
    /// nothing has to be waited for.
    pub(super) fn handle_client(&mut self) -> Result<Step, ClientFault> {
        self.flushed &= self.replies.is_full();
        if self.wait.is_none() {
            self.server.output.reserve(self.client.input.len().min(LITTLE));
        }
        let mut handled = 0;
        while self.wait.is_none() && self.server.output.len() < HIGH_WATER {
            if self.client.rest > 0 {
                if !self.client.pass_on(&mut self.server.output) {
                    break;
                }
                if self.client.discard {
                    self.client.discard = false;
                    self.raise_discarded();
                }
            }
            if self.replies.is_full() {
                break;
            }
            let Some(header) = Header::from_client(&self.client.input)? else { break };
            if !self.client_message(header)? {
                break;
            }
            self.pending.wanted = 0;
            handled += 1;
            if handled >= AT_ONCE {
                return Ok(Step::GoOn);
            }
        }
        if self.replies.is_full() && self.replies.needs_flush() && self.client.rest == 0 && !self.flushed {
            // The server may have answers in its buffer, without which nothing more is read.
            self.note_forwarding();
            message::put_flush(&mut self.server.output);
            self.flushed = true;
        }
        Ok(Step::Wait)
    }

    /// False when more of the message, or something else, has to be waited for.
    fn client_message(&mut self, header: Header) -> Result<bool, ClientFault> {
        if matches!(header.tag, frontend::SYNC | frontend::FLUSH) && header.body > 0 {
            return Err(ClientFault::Unjudged("Sync or Flush that is not empty"));
        }
        if self.replies.is_skipping() && SKIPPED.contains(&header.tag) {
            // The server would ignore it. Were it wrong that it does, this would pass unjudged.
            return Ok(self.drop_message(header));
        }
        let judged = self.host.is_fenced();
        match header.tag {
            frontend::SYNC if judged && self.replies.is_copying_in() => {
                // The server would ignore it, unless the COPY has failed: then it is unknown whether it still skips messages.
                self.replies.withhold_sync();
                return Ok(self.drop_message(header));
            }
            frontend::SYNC if judged && self.replies.may_copy_in() => return Ok(self.hold(header)),
            frontend::QUERY if judged => return self.query(header),
            frontend::PARSE if judged => return self.parse(header),
            frontend::BIND if judged => return self.bind(header),
            frontend::EXECUTE if judged => return Ok(self.execute(header)),
            frontend::CLOSE if judged => return Ok(self.close(header)),
            frontend::FUNCTION_CALL if judged => return Ok(self.function_call(header)),
            _ => (),
        }
        let request = match header.tag {
            frontend::QUERY => {
                self.batch += 1;
                Some(Request::query(Vec::new()))
            }
            frontend::PARSE => Some(Request::Parse { defines: None }),
            frontend::BIND => Some(Request::bind()),
            frontend::DESCRIBE => Some(Request::Describe),
            frontend::EXECUTE => Some(Request::execute()),
            frontend::CLOSE => Some(Request::Close),
            frontend::SYNC => Some(Request::Sync),
            frontend::FUNCTION_CALL => Some(Request::FunctionCall),
            frontend::COPY_DATA => Some(Request::CopyData),
            frontend::COPY_DONE | frontend::COPY_FAIL => Some(Request::CopyEnd),
            frontend::TERMINATE => {
                self.life = Life::Terminating;
                None
            }
            _ => None,
        };
        let is_sync = header.tag == frontend::SYNC;
        self.pass(header, request);
        if is_sync {
            self.batch += 1;
            self.close_reject_statement();
        }
        Ok(true)
    }

    /// Forwards a message as it comes.
    pub(super) fn pass(&mut self, header: Header, request: Option<Request>) {
        self.note_forwarding();
        let pipeline = &mut self.transaction.pipeline;
        match header.tag {
            frontend::SYNC => *pipeline = Pipeline::Empty,
            frontend::BIND => *pipeline = Pipeline::Bound.max(*pipeline),
            frontend::EXECUTE => *pipeline = Pipeline::Executed,
            _ => {}
        }
        if matches!(header.tag, frontend::QUERY | frontend::EXECUTE | frontend::FUNCTION_CALL) {
            self.host.note_query();
        }
        let audience = self.note_single(header, request.as_ref());
        if let Some(request) = request {
            self.replies.push(request, audience);
        }
        self.client.rest = header.frame();
        self.client.pass_on(&mut self.server.output);
        self.message_done();
    }

    /// A message that is judged by its kind alone: it passes, or is rejected at its end.
    pub(super) fn unread(&mut self, header: Header, statement: Arc<Statement>, request: Request) -> bool {
        match self.judge(std::slice::from_ref(&statement), Run::Begins).0 {
            Verdict::Hold => return false,
            Verdict::Forward => {
                self.batch += 1;
                self.pass(header, Some(request));
            }
            Verdict::Reject(_, rejection) => self.discard(header, rejection, &statement),
        }
        true
    }

    /// Holds a message back until the server owes nothing. True when that cannot be, and it is rejected.
    pub(super) fn hold(&mut self, header: Header) -> bool {
        let Verdict::Reject(_, rejection) = self.settle() else { return false };
        self.discard(header, rejection, &Statement { kind: StatementKind::Unspecified, ..Statement::default() });
        true
    }

    fn drop_message(&mut self, header: Header) -> bool {
        self.client.rest = header.frame();
        self.client.discard = true;
        (self.pending.room, self.pending.read) = (None, None);
        true
    }

    /// The message goes nowhere; the error is raised where it ends.
    pub(super) fn discard(&mut self, header: Header, rejection: Rejection, statement: &Statement) {
        self.log_rejection(&rejection, statement);
        self.drop_message(header);
        self.discarded = Some((header.tag, rejection));
    }

    /// Records what PREPARE defines.
    pub(super) fn define_prepared(&mut self, statements: &[Arc<Statement>]) -> Vec<(usize, String, u64)> {
        let mut defines = Vec::new();
        for (index, statement) in statements.iter().enumerate() {
            if let PreparedEffect::Prepare { name, statement: inner } = &statement.prepared {
                let sequence = self.statements.define(name.as_bytes(), inner.clone(), self.batch);
                defines.push((index, name.clone(), sequence));
            }
        }
        defines
    }

    /// The message at hand has been answered by an error.
    pub(super) fn drop_held_message(&mut self) {
        let Ok(Some(header)) = Header::from_client(&self.client.input) else { return };
        self.message_done();
        match self.client.input.len() >= header.frame() {
            true => drop(frame_of(&mut self.client, header.frame())),
            false => _ = self.drop_message(header),
        }
    }
}
