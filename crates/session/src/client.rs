//! Messages from the client: those that need a verdict wait for it, all others are forwarded.
//!
//! Owns how much of the current message has to arrive before it is judged, and the room for long messages that are held
//! whole. Must never
//! - forward a message of unknown effect where statements are judged;
//! - hold a long message without room for all of it: the memory limit for all sessions together depends on that.

use super::host::Host;
use super::message::{MessageRoom, Stage, Verdict};
use super::pipeline::Request;
use super::rejection::Rejection;
use super::session::{ClientFault, HIGH_WATER, LITTLE, Life, Session, Step, frame_of};
use super::task::Task;
use super::verdict::Run;
use fencegate_statement::{OpaqueReason, Statement, StatementKind};
use fencegate_wire::frame::{HEADER, Header};
use fencegate_wire::tag::frontend;
use std::sync::Arc;

/// Tags of the messages that a server ignores up to a Sync. At any other message the server ends the session.
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

/// Number of messages in one step. The driver checks the clock between steps, and many small messages may take long.
const MAX_AT_ONCE: usize = 64;

impl<H: Host> Session<H> {
    /// Handles the client's input, as far as the server's output has room and no message is held back.
    pub(super) fn handle_client(&mut self) -> Result<Step, ClientFault> {
        if !self.message.is_held() {
            self.server.output.reserve(self.client.input.len().min(LITTLE));
        }
        let mut handled = 0;
        while !self.message.is_held() && self.server.output.len() < HIGH_WATER {
            if self.client.rest > 0 {
                if !self.client.pass_on(&mut self.server.output) {
                    break;
                }
                if self.client.discard {
                    self.client.discard = false;
                    self.raise_discarded();
                }
            }
            if self.pipeline.is_full() {
                break;
            }
            let Some(header) = Header::from_client(&self.client.input)? else { break };
            if !self.client_message(header)? {
                break;
            }
            self.message.want(0);
            handled += 1;
            if handled >= MAX_AT_ONCE {
                return Ok(Step::GoOn);
            }
        }
        if self.client.rest == 0 && self.pipeline.flush_is_due() {
            self.flush();
        }
        Ok(Step::Wait)
    }

    /// Returns false if the message has to wait, for more of it or for something else.
    fn client_message(&mut self, header: Header) -> Result<bool, ClientFault> {
        if matches!(header.tag, frontend::SYNC | frontend::FLUSH) && header.body > 0 {
            return Err(ClientFault::Unjudged("Sync or Flush that is not empty"));
        }
        if self.pipeline.is_skipping() && SKIPPED.contains(&header.tag) {
            // The server would ignore the message. Forwarded, it would run unjudged if the proxy were wrong about that.
            return Ok(self.drop_message(header));
        }
        let judged = self.host.is_fenced();
        match header.tag {
            frontend::SYNC if judged && self.pipeline.is_copying_in() => {
                // The server would ignore the Sync, unless the COPY has failed: then it is unknown whether the server
                // still skips.
                self.pipeline.withhold_sync();
                return Ok(self.drop_message(header));
            }
            frontend::SYNC if judged && self.pipeline.may_copy_in() => return Ok(self.hold(header)),
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
                self.pipeline.begin_batch();
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
            self.pipeline.begin_batch();
            self.pipeline.close_rejection(&mut self.server.output);
        }
        Ok(true)
    }

    /// Forwards a message unchanged.
    pub(super) fn pass(&mut self, header: Header, request: Option<Request>) {
        self.begin_forwarding();
        self.pipeline.note_part(request.as_ref());
        if matches!(header.tag, frontend::QUERY | frontend::EXECUTE | frontend::FUNCTION_CALL) {
            self.host.note_query();
        }
        let audience = self.note_repetition(header, request.as_ref());
        if let Some(request) = request {
            self.pipeline.push(request, audience);
        }
        // Complete CopyData messages that follow are forwarded with it, because nothing happens between them.
        self.client.rest = if header.tag == frontend::COPY_DATA { self.client.run(header) } else { header.frame() };
        self.client.pass_on(&mut self.server.output);
        self.finish_message();
    }

    /// Judges a message by its kind alone: forwards it, or rejects it at its end.
    pub(super) fn unread(&mut self, header: Header, statement: Arc<Statement>, request: Request) -> bool {
        match self.judge(std::slice::from_ref(&statement), Run::Begins).0 {
            Verdict::Hold => return false,
            Verdict::Forward => {
                self.pipeline.begin_batch();
                self.pass(header, Some(request));
            }
            Verdict::Reject(_, rejection) => self.discard(header, rejection, &statement),
        }
        true
    }

    /// Holds a message back until the server owes nothing. If that cannot happen, rejects the message and returns true.
    pub(super) fn hold(&mut self, header: Header) -> bool {
        let Verdict::Reject(_, rejection) = self.settle() else { return false };
        self.discard(header, rejection, &Statement { kind: StatementKind::Unspecified, ..Statement::default() });
        true
    }

    fn drop_message(&mut self, header: Header) -> bool {
        self.client.rest = header.frame();
        self.client.discard = true;
        self.message.room = MessageRoom::Unasked;
        self.message.text.read = None;
        true
    }

    /// Discards the message. At its end, the server raises the error.
    pub(super) fn discard(&mut self, header: Header, rejection: Rejection, statement: &Statement) {
        self.report_rejection(&rejection, statement);
        self.drop_message(header);
        self.message.set_stage(Stage::Discarding { tag: header.tag, rejection: Box::new(rejection) });
    }

    /// Drops the current message, which has been answered with an error.
    pub(super) fn drop_held_message(&mut self) {
        let Ok(Some(header)) = Header::from_client(&self.client.input) else { return };
        self.finish_message();
        match self.client.input.len() >= header.frame() {
            true => drop(frame_of(&mut self.client, header.frame())),
            false => _ = self.drop_message(header),
        }
    }
}

/// Maximum length of a statement that is held to be judged, in bytes. Longer ones are unverifiable.
const MAX_STATEMENT: usize = 16 * 1024 * 1024;

/// Number of bytes that every session may hold without room.
const LONG: usize = 1024 * 1024;

/// The two names in a Bind end within this many bytes.
const MAX_NAMES: usize = 64 * 1024;

impl<H: Host> Session<H> {
    /// Returns true when the whole message has arrived.
    pub(super) fn is_whole(&mut self, header: Header) -> bool {
        self.message.want(header.frame());
        self.client.input.len() >= header.frame()
    }

    /// Returns true when the body begins with that many NUL-terminated strings, or the whole message has arrived.
    pub(super) fn has_strings(&mut self, header: Header, count: usize) -> Result<bool, ClientFault> {
        if header.body <= MAX_NAMES && self.client.input.len() >= header.frame() {
            return Ok(true);
        }
        let start = self.client.start_of_body(header);
        let start = &start[..start.len().min(MAX_NAMES)];
        let enough = start.iter().filter(|byte| **byte == 0).count() >= count || start.len() == header.body;
        if !enough && start.len() == MAX_NAMES {
            return Err(ClientFault::Unjudged("a name longer than 64 KiB"));
        }
        self.message.want(MAX_NAMES + HEADER);
        Ok(enough)
    }

    /// Requests room to hold a message whole. An error says why there is none. Returns `None` while the session waits for room;
    /// meanwhile it reads no more of the message.
    ///
    /// A client that only announces a long message gets no room: the session requests it once more has arrived than every
    /// session may hold. The room is for the whole message, so that no session that has a part of its room waits for the rest.
    /// A client that then sends too slowly while others wait loses the room.
    pub(super) fn make_room(&mut self, header: Header) -> Option<Result<(), OpaqueReason>> {
        if header.body <= LONG {
            return Some(Ok(()));
        }
        if header.body > MAX_STATEMENT {
            return Some(Err(OpaqueReason::TooLong));
        }
        let arrived = self.client.input.len();
        if matches!(self.message.room, MessageRoom::Unasked) {
            if arrived < LONG {
                self.message.want(LONG);
                return None;
            }
            let (bytes, behind) = (header.frame(), !self.pipeline.is_empty());
            let Some(room) = self.host.room(bytes, arrived, behind) else {
                self.request(Task::Room { bytes, there: arrived, behind });
                return None;
            };
            self.message.room = MessageRoom::Granted(room);
        }
        if let MessageRoom::Granted(room) = &mut self.message.room
            && arrived < header.frame()
            && room.is_overdue(arrived)
        {
            self.message.room = MessageRoom::Refused;
        }
        Some(if self.message.room.is_granted() { Ok(()) } else { Err(OpaqueReason::NoRoom) })
    }
}
