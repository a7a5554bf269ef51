//! What comes from the client: what needs a verdict waits for it, everything else passes.

use super::super::judge::opaque;
use super::super::names::{Meaning, known_by};
use super::super::peer::HIGH_WATER;
use super::super::rejection::Rejection;
use super::super::replies::{Audience, MAX_OWED, Request};
use super::values::with_types;
use super::verdict::{Run, Verdict};
use super::{ClientFault, Relay, Wait, frame_of};
use crate::fence::session::Activity;
use crate::statement::{ParameterEffect, PreparedEffect, Script, Statement, Unreadable};
use crate::wire::error::Severity;
use crate::wire::frame::{HEADER, Header, split_string};
use crate::wire::message::{self, Status};
use std::sync::Arc;

/// The two names in a Bind end within this many bytes.
const MAX_NAMES: usize = 64 * 1024;

/// The length of a function's number, in bytes.
const OID: usize = 4;

/// What libpq's `lo_…` call: pg_proc's numbers of loread and lowrite, and of lo_create, lo_open, lo_close, lo_lseek,
/// lo_creat, lo_tell, lo_unlink, lo_truncate, lo_lseek64, lo_tell64 and lo_truncate64. No table can be reached by them.
const LARGE_OBJECT_FUNCTIONS: [u32; 13] = [954, 955, 715, 952, 953, 956, 957, 958, 964, 1004, 3170, 3171, 3172];

impl Relay {
    /// Handles all that has been read from the client, as far as the server's output has room and
    /// nothing has to be waited for.
    pub(super) fn handle_client(&mut self) -> Result<(), ClientFault> {
        if self.replies.len() >= MAX_OWED && self.replies.needs_flush() && self.client.rest == 0 && !self.flushed {
            // The server may have answers in its buffer, without which nothing more is read.
            self.note_forwarding();
            message::put_flush(&mut self.server.writer.output);
            self.flushed = true;
        }
        self.flushed &= self.replies.len() >= MAX_OWED;
        while self.wait.is_none() && self.replies.len() < MAX_OWED && self.server.writer.output.len() < HIGH_WATER {
            if self.client.rest > 0 {
                if !self.client.pass_on(&mut self.server.writer.output) {
                    break;
                }
                if self.client.discard {
                    self.client.discard = false;
                    self.raise_discarded();
                }
            }
            let Some(header) = Header::from_client(&self.client.reader.input)? else { break };
            if !self.client_message(header)? {
                break;
            }
            self.wanted = 0;
        }
        Ok(())
    }

    /// False when more of the message, or something else, has to be waited for.
    fn client_message(&mut self, header: Header) -> Result<bool, ClientFault> {
        if matches!(header.tag, b'S' | b'H') && header.body > 0 {
            return Err(ClientFault::Unjudged("Sync or Flush that is not empty"));
        }
        if self.replies.is_skipping() && !matches!(header.tag, b'S' | b'X') {
            // The server would ignore it. Were it wrong that it does, this would pass unjudged.
            return Ok(self.drop_message(header));
        }
        let judged = self.context.is_fenced();
        match header.tag {
            b'S' if judged && self.replies.is_copying_in() => {
                // The server would ignore it, unless it has failed: then nobody could tell whether it skips on.
                self.replies.withhold_sync();
                return Ok(self.drop_message(header));
            }
            b'S' if judged && self.replies.may_copy_in() => return Ok(self.hold(header)),
            b'Q' if judged => return self.query(header),
            b'P' if judged => return self.parse(header),
            b'B' if judged => return self.bind(header),
            b'E' if judged => return Ok(self.execute(header)),
            b'C' if judged => return Ok(self.close(header)),
            b'F' if judged => return Ok(self.function_call(header)),
            _ => (),
        }
        let unnamed = Vec::new;
        let request = match header.tag {
            b'Q' => {
                self.batch += 1;
                Some(Request::Query { statements: Vec::new(), completed: 0, defines: Vec::new() })
            }
            b'P' => Some(Request::Parse { name: unnamed(), sequence: 0 }),
            b'B' => Some(Request::Bind { portal: unnamed(), sequence: 0, plans: Arc::default() }),
            b'D' => Some(Request::Describe),
            b'E' => Some(Request::Execute { statement: Arc::default(), defines: None }),
            b'C' => Some(Request::ClosePortal { name: unnamed() }),
            b'S' => Some(Request::Sync),
            b'F' => Some(Request::FunctionCall),
            b'd' => Some(Request::CopyData),
            b'c' | b'f' => Some(Request::CopyEnd),
            b'X' => {
                self.terminating = true;
                None
            }
            _ => None,
        };
        let is_sync = header.tag == b'S';
        self.pass(header, request);
        if is_sync {
            self.batch += 1;
            self.close_reject_statement();
        }
        Ok(true)
    }

    fn drop_message(&mut self, header: Header) -> bool {
        self.client.rest = header.frame();
        self.client.discard = true;
        self.room = None;
        true
    }

    /// Forwards a message as it comes.
    fn pass(&mut self, header: Header, request: Option<Request>) {
        self.note_forwarding();
        self.executed |= header.tag == b'E';
        if matches!(header.tag, b'Q' | b'E' | b'F') {
            self.session.passed.query(self.context.metrics());
        }
        if let Some(request) = request {
            self.replies.push(request, Audience::Client);
        }
        self.client.rest = header.frame();
        self.client.pass_on(&mut self.server.writer.output);
        self.message_done();
    }

    /// True when the whole message is there.
    fn is_whole(&mut self, header: Header) -> bool {
        self.wanted = header.frame();
        self.client.reader.input.len() >= header.frame()
    }

    fn message_body(&self, header: Header) -> &[u8] {
        &self.client.reader.input[HEADER..header.frame()]
    }

    fn query(&mut self, header: Header) -> Result<bool, ClientFault> {
        match self.make_room(header) {
            None => return Ok(false),
            Some(Err(why)) => {
                let statement = opaque("statement", why);
                let request = Request::Query { statements: vec![statement.clone()], completed: 0, defines: Vec::new() };
                return Ok(self.unread(header, statement, request));
            }
            Some(Ok(())) if !self.is_whole(header) => return Ok(false),
            Some(Ok(())) => {}
        }
        let turn = self.turn.take();
        let Some((text, _)) = split_string(self.message_body(header)) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Query { statements: Vec::new(), completed: 0, defines: Vec::new() }));
            return Ok(true);
        };
        if self.lexing_in_doubt(text) {
            return Ok(self.hold_for_lexing(header));
        }
        let read = match self.context.read(text, self.lexing, self.context.policies().has_keys(), turn) {
            Ok(read) => read,
            Err(turn) => {
                self.wait = Some(Wait::First(turn));
                return Ok(false);
            }
        };
        let unreadable;
        let (statements, has_ranges) = match &*read {
            Ok(script) => (&script.statements, true),
            Err(why) => {
                unreadable = vec![self.unreadable(text, why)];
                // Where it may be wrong, the server reads it too, to say so; what is too complex only costs it time.
                (&unreadable, self.replicates || *why == Unreadable::TooComplex)
            }
        };
        let (verdict, resolved) = self.judge(statements, Run::Begins);
        match verdict {
            Verdict::Hold => return Ok(false),
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved);
                let request = Request::Query { statements: resolved, completed: 0, defines };
                self.batch += 1;
                self.pass(header, Some(request));
            }
            Verdict::Reject(0, rejection) if self.can_answer() && has_ranges => {
                self.log_rejection(&rejection, &resolved[0]);
                rejection.text().put(&mut self.client.writer.output, Severity::Error);
                message::put_ready(&mut self.client.writer.output, Status::Idle);
                frame_of(&mut self.client.reader, header.frame());
                self.message_done();
            }
            Verdict::Reject(..) if self.server.rest > 0 && self.activity == Activity::Idle => return Ok(false),
            Verdict::Reject(index, rejection) => {
                self.log_rejection(&rejection, &resolved[index]);
                self.raise_in_query(header, has_ranges, resolved, index, &rejection);
            }
        }
        Ok(true)
    }

    /// It names a function by its number. Of all but those for large objects, nothing tells what they write.
    fn function_call(&mut self, header: Header) -> bool {
        self.wanted = HEADER + OID;
        let start = self.start_of_body(header);
        if start.len() < OID.min(header.body) {
            return false;
        }
        if start.first_chunk().is_some_and(|oid| LARGE_OBJECT_FUNCTIONS.contains(&u32::from_be_bytes(*oid))) {
            self.batch += 1;
            self.pass(header, Some(Request::FunctionCall));
            return true;
        }
        let statement = opaque("fast-path function call", "it names no function");
        self.unread(header, statement, Request::FunctionCall)
    }

    /// Stands for a text that cannot be read. In a replication session it is one command, of another grammar.
    fn unreadable(&self, text: &[u8], why: &Unreadable) -> Arc<Statement> {
        let statement = match self.replicates {
            true => opaque("replication command", "it is no SQL"),
            false => opaque("statement", why.reason()),
        };
        Arc::new(Statement { range: 0..text.len(), ..Arc::unwrap_or_clone(statement) })
    }

    /// The proxy may answer a simple query by itself: the server is idle, has no unnamed statement, which such a query
    /// drops, no message to the client is under way, and the client reads.
    fn can_answer(&self) -> bool {
        self.activity == Activity::Idle
            && self.replies.is_empty()
            && self.statements.meaning(b"", self.batch) == Meaning::Unknown
            && self.server.rest == 0
            && self.client.writer.output.len() < HIGH_WATER
    }

    /// A message of which only its kind tells what it does: it passes, or is rejected at its end.
    fn unread(&mut self, header: Header, statement: Arc<Statement>, request: Request) -> bool {
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
        self.discard(header, rejection, &Statement { kind: "statement", ..Statement::default() });
        true
    }

    /// The message goes nowhere; the error is raised where it ends.
    fn discard(&mut self, header: Header, rejection: Rejection, statement: &Statement) {
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

    fn parse(&mut self, header: Header) -> Result<bool, ClientFault> {
        let Some(room) = self.make_room(header) else { return Ok(false) };
        if room.is_ok() && !self.is_whole(header) || room.is_err() && !self.has_strings(header, 1)? {
            return Ok(false);
        }
        if self.statements.is_full() && !self.replies.is_empty() {
            return Ok(self.hold(header));
        }
        let turn = self.turn.take();
        let input = self.start_of_body(header);
        let Some((name, rest)) = split_string(input) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Parse { name: Vec::new(), sequence: 0 }));
            return Ok(true);
        };
        if room.is_ok() && self.lexing_in_doubt(rest) {
            return Ok(self.hold_for_lexing(header));
        }
        let text = match room {
            Ok(()) => split_string(rest).ok_or("the message is cut short"),
            Err(why) => Err(why),
        };
        let statement = match text {
            // It may outlive the policies, so its rows are wanted in any case.
            Ok((text, types)) => match self.context.read(text, self.lexing, true, turn) {
                Ok(read) => with_types(only_statement(&read), types),
                Err(turn) => {
                    self.wait = Some(Wait::First(turn));
                    return Ok(false);
                }
            },
            Err(why) => opaque("statement", why),
        };
        let name = known_by(name).to_vec();
        let sequence = self.statements.define(&name, statement, self.batch);
        self.pass(header, Some(Request::Parse { name, sequence }));
        Ok(true)
    }

    /// True when that many NUL-terminated strings are there at the start of the body, or all of the message.
    fn has_strings(&mut self, header: Header, count: usize) -> Result<bool, ClientFault> {
        let start = self.start_of_body(header);
        let start = &start[..start.len().min(MAX_NAMES)];
        let enough = start.iter().filter(|byte| **byte == 0).count() >= count || start.len() == header.body;
        if !enough && start.len() == MAX_NAMES {
            return Err(ClientFault::Unjudged("a name longer than 64 KiB"));
        }
        self.wanted = MAX_NAMES + HEADER;
        Ok(enough)
    }

    /// As much of the message's body as is there.
    fn start_of_body(&self, header: Header) -> &[u8] {
        &self.client.reader.input[HEADER..self.client.reader.input.len().min(header.frame())]
    }

    fn bind(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.has_strings(header, 2)? {
            return Ok(false);
        }
        if self.portals.is_full() && !self.replies.is_empty() {
            return Ok(self.hold(header));
        }
        let names =
            split_string(self.start_of_body(header)).and_then(|(portal, rest)| Some((portal, split_string(rest)?.0)));
        let Some((portal, name)) = names else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Bind { portal: Vec::new(), sequence: 0, plans: Arc::default() }));
            return Ok(true);
        };
        let statement = match self.statements.meaning(name, self.batch) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => return Ok(self.hold(header)),
            Meaning::Unknown => opaque("statement", "the proxy has not seen the prepared statement"),
        };
        let portal = known_by(portal).to_vec();
        let needs_values = statement.has_parameters() && self.context.policies().has_keys();
        if needs_values {
            let Some(room) = self.make_room(header) else { return Ok(false) };
            if room.is_ok() && !self.is_whole(header) {
                return Ok(false);
            }
        }
        let statement = if needs_values { self.with_values(header, &statement) } else { statement };
        let sequence = self.portals.define(&portal, statement.clone(), self.batch);
        self.pass(header, Some(Request::Bind { portal, sequence, plans: statement }));
        Ok(true)
    }

    fn execute(&mut self, header: Header) -> bool {
        if !self.is_whole(header) {
            return false;
        }
        let portal = split_string(self.message_body(header)).map_or(&[][..], |(portal, _)| known_by(portal)).to_vec();
        let statement = match self.portals.meaning(&portal, self.batch) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => return self.hold(header),
            Meaning::Unknown if self.portals.is_complete() => declared(),
            Meaning::Unknown => opaque("portal", "the proxy has not seen the portal"),
        };
        let run = if self.portals.has_begun(&portal) { Run::GoesOn } else { Run::Begins };
        let (verdict, mut resolved) = self.judge(&[statement], run);
        match verdict {
            Verdict::Hold => return false,
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved).pop().map(|(_, name, sequence)| (name, sequence));
                let statement = resolved.pop().unwrap_or_default().in_portal();
                self.portals.begin(&portal);
                self.pass(header, Some(Request::Execute { statement, defines }));
            }
            Verdict::Reject(_, rejection) => self.discard(header, rejection, &resolved.pop().unwrap_or_default()),
        }
        true
    }

    fn close(&mut self, header: Header) -> bool {
        if !self.is_whole(header) {
            return false;
        }
        let (kind, name) = self.message_body(header).split_first().unwrap_or((&0, &[]));
        let name = split_string(name).map_or(&[][..], |(name, _)| known_by(name)).to_vec();
        let request = if *kind == b'S' { Request::CloseStatement { name } } else { Request::ClosePortal { name } };
        self.pass(header, Some(request));
        true
    }

    /// A simple query that is held back has been answered by an error.
    pub(super) fn drop_held_query(&mut self) {
        if let Ok(Some(header)) = Header::from_client(&self.client.reader.input)
            && header.tag == b'Q'
            && self.client.reader.input.len() >= header.frame()
        {
            frame_of(&mut self.client.reader, header.frame());
            self.message_done();
        }
    }
}

/// A portal that no Bind made. What DECLARE made was judged then, but sets what it sets when it runs; any other does not
/// exist.
fn declared() -> Arc<Statement> {
    Arc::new(Statement { kind: "portal", parameter: ParameterEffect::Unknown, ..Statement::default() })
}

/// What a Parse of this text defines.
fn only_statement(read: &Result<Script, Unreadable>) -> Arc<Statement> {
    match read {
        Ok(script) if script.statements.len() <= 1 => script.statements.first().cloned().unwrap_or_default(),
        // The server refuses several statements in one Parse.
        Ok(_) => opaque("statement", "several statements in one"),
        Err(why) => opaque("statement", why.reason()),
    }
}
