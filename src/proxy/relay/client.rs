//! What comes from the client: what needs a verdict waits for it, everything else passes.

use super::super::judge::opaque;
use super::super::names::Meaning;
use super::super::peer::HIGH_WATER;
use super::super::replies::{Audience, MAX_OWED, Request};
use super::{ClientFault, MAX_STATEMENT, Relay, Verdict, frame_of};
use crate::fence::session::Activity;
use crate::statement::{PreparedEffect, Statement};
use crate::wire::error::Severity;
use crate::wire::frame::{HEADER, Header, split_string};
use crate::wire::message::{self, Status};
use std::sync::Arc;

/// The two names in a Bind end within this many bytes.
const MAX_NAMES: usize = 64 * 1024;

const TOO_LONG: &str = "the statement is longer than 4 MiB";

impl Relay {
    /// Handles all that has been read from the client, as far as the server's output has room and
    /// nothing has to be waited for.
    pub(super) fn handle_client(&mut self) -> Result<(), ClientFault> {
        while self.wait.is_none() && self.replies.len() < MAX_OWED && self.server.writer.output.len() < HIGH_WATER {
            if self.client.rest > 0 {
                if !self.client.pass_on(&mut self.server.writer.output) {
                    break;
                }
                if self.client.discard {
                    self.client.discard = false;
                    self.raise_in_place();
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
        // A skipping server ignores everything but Sync.
        let judged = self.context.is_fenced() && !self.replies.is_skipping();
        match header.tag {
            b'Q' if judged => return self.query(header),
            b'P' if judged => return self.parse(header),
            b'B' if judged => return self.bind(header),
            b'E' if judged => return self.execute(header),
            b'C' if judged => return self.close(header),
            // It names a function by its number: nothing tells what it writes.
            b'F' if judged => {
                let statement = opaque("fast-path function call", "it names no function");
                return self.unread(header, statement, Request::FunctionCall);
            }
            _ => (),
        }
        let unnamed = Vec::new;
        let request = match header.tag {
            b'Q' => {
                self.batch += 1;
                Some(Request::Query { statements: Vec::new(), completed: 0, defines: Vec::new() })
            }
            b'P' => Some(Request::Parse { name: unnamed(), sequence: 0 }),
            b'B' => Some(Request::Bind { portal: unnamed(), sequence: 0 }),
            b'D' => Some(Request::Describe),
            b'E' => Some(Request::Execute { statement: Arc::default(), defines: None }),
            b'C' => Some(Request::ClosePortal { name: unnamed() }),
            b'S' => Some(Request::Sync),
            b'F' => Some(Request::FunctionCall),
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

    /// Forwards a message as it comes.
    fn pass(&mut self, header: Header, request: Option<Request>) {
        self.note_forwarding();
        self.executed |= header.tag == b'E';
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
        if header.body > MAX_STATEMENT {
            let statement = opaque("statement", TOO_LONG);
            let request = Request::Query { statements: vec![statement.clone()], completed: 0, defines: Vec::new() };
            return self.unread(header, statement, request);
        }
        if !self.is_whole(header) {
            return Ok(false);
        }
        let Some((text, _)) = split_string(self.message_body(header)) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Query { statements: Vec::new(), completed: 0, defines: Vec::new() }));
            return Ok(true);
        };
        if self.lexing_in_doubt(text) {
            self.hold_for_lexing()?;
            return Ok(false);
        }
        let read = self.context.read(text, self.lexing);
        let unreadable;
        let statements = match &*read {
            Ok(script) => &script.statements,
            Err(why) => {
                unreadable = vec![opaque("statement", why.reason())];
                &unreadable
            }
        };
        let (verdict, resolved) = self.judge(statements)?;
        match verdict {
            Verdict::Hold => return Ok(false),
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved);
                let request = Request::Query { statements: resolved, completed: 0, defines };
                self.batch += 1;
                self.pass(header, Some(request));
            }
            Verdict::Reject(0, rejection) if self.can_answer() && read.is_ok() => {
                self.log_rejection(&rejection, &resolved[0]);
                rejection.text().put(&mut self.client.writer.output, Severity::Error);
                message::put_ready(&mut self.client.writer.output, Status::Idle);
                frame_of(&mut self.client.reader, header.frame());
                self.message_done();
            }
            Verdict::Reject(..) if self.server.rest > 0 && self.activity == Activity::Idle => return Ok(false),
            Verdict::Reject(index, rejection) => {
                self.log_rejection(&rejection, &resolved[index]);
                self.raise_in_query(header, &read, resolved, index, &rejection);
            }
        }
        Ok(true)
    }

    /// The proxy may answer by itself: the server is idle, and no message to the client is under way.
    fn can_answer(&self) -> bool {
        self.activity == Activity::Idle && self.replies.is_empty() && self.server.rest == 0
    }

    /// A message of which only its kind tells what it does: it passes, or is rejected at its end.
    fn unread(&mut self, header: Header, statement: Arc<Statement>, request: Request) -> Result<bool, ClientFault> {
        let (verdict, resolved) = self.judge(&[statement])?;
        match verdict {
            Verdict::Hold => return Ok(false),
            Verdict::Forward => {
                self.batch += 1;
                self.pass(header, Some(request));
            }
            Verdict::Reject(index, rejection) => {
                self.log_rejection(&rejection, &resolved[index]);
                self.client.rest = header.frame();
                self.client.discard = true;
                self.discarded = Some(rejection);
            }
        }
        Ok(true)
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
        let long = header.body > MAX_STATEMENT;
        if !long && !self.is_whole(header) || long && !self.has_strings(header, 1)? {
            return Ok(false);
        }
        let input = &self.client.reader.input[HEADER..self.client.reader.input.len().min(header.frame())];
        let Some((name, rest)) = split_string(input) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Parse { name: Vec::new(), sequence: 0 }));
            return Ok(true);
        };
        if !long && self.lexing_in_doubt(rest) {
            self.hold_for_lexing()?;
            return Ok(false);
        }
        let statement = match split_string(rest) {
            _ if long => opaque("statement", TOO_LONG),
            Some((text, _)) => match &*self.context.read(text, self.lexing) {
                Ok(script) if script.statements.len() <= 1 => script.statements.first().cloned().unwrap_or_default(),
                // The server refuses several statements in one Parse.
                Ok(_) => opaque("statement", "several statements in one"),
                Err(why) => opaque("statement", why.reason()),
            },
            None => opaque("statement", "the message is cut short"),
        };
        let name = name.to_vec();
        let sequence = self.statements.define(&name, statement, self.batch);
        self.pass(header, Some(Request::Parse { name, sequence }));
        Ok(true)
    }

    /// True when that many NUL-terminated strings are there at the start of the body, or all of the message.
    fn has_strings(&mut self, header: Header, count: usize) -> Result<bool, ClientFault> {
        let start = self.start_of(header);
        let enough = start.iter().filter(|byte| **byte == 0).count() >= count || start.len() == header.body;
        if !enough && start.len() == MAX_NAMES {
            return Err(ClientFault::Unjudged("a name longer than 64 KiB"));
        }
        self.wanted = MAX_NAMES + HEADER;
        Ok(enough)
    }

    /// What is there of the body, as far as names may reach.
    fn start_of(&self, header: Header) -> &[u8] {
        let input = &self.client.reader.input;
        &input[HEADER..input.len().min(HEADER + header.body.min(MAX_NAMES))]
    }

    fn bind(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.has_strings(header, 2)? {
            return Ok(false);
        }
        let names =
            split_string(self.start_of(header)).and_then(|(portal, rest)| Some((portal, split_string(rest)?.0)));
        let Some((portal, name)) = names else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Bind { portal: Vec::new(), sequence: 0 }));
            return Ok(true);
        };
        let statement = match self.statements.meaning(name, self.batch) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => {
                self.hold_until_settled()?;
                return Ok(false);
            }
            Meaning::Unknown => opaque("statement", "the proxy has not seen the prepared statement"),
        };
        let portal = portal.to_vec();
        let sequence = self.portals.define(&portal, statement, self.batch);
        self.pass(header, Some(Request::Bind { portal, sequence }));
        Ok(true)
    }

    fn execute(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.is_whole(header) {
            return Ok(false);
        }
        let portal = split_string(self.message_body(header)).map_or(&[][..], |(portal, _)| portal);
        let statement = match self.portals.meaning(portal, self.batch) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => {
                self.hold_until_settled()?;
                return Ok(false);
            }
            // There is none, as the server will say, or DECLARE made it: what that reads was judged then.
            Meaning::Unknown if self.portals.is_complete() => Arc::default(),
            Meaning::Unknown => opaque("portal", "the proxy has not seen the portal"),
        };
        let (verdict, mut resolved) = self.judge(&[statement])?;
        match verdict {
            Verdict::Hold => return Ok(false),
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved).pop().map(|(_, name, sequence)| (name, sequence));
                let statement = resolved.pop().unwrap_or_default();
                self.pass(header, Some(Request::Execute { statement, defines }));
            }
            Verdict::Reject(index, rejection) => {
                self.log_rejection(&rejection, &resolved[index]);
                frame_of(&mut self.client.reader, header.frame());
                self.raise_in_pipeline(&rejection);
            }
        }
        Ok(true)
    }

    fn close(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.is_whole(header) {
            return Ok(false);
        }
        let (kind, name) = self.message_body(header).split_first().unwrap_or((&0, &[]));
        let name = split_string(name).map_or(&[][..], |(name, _)| name).to_vec();
        let request = if *kind == b'S' { Request::CloseStatement { name } } else { Request::ClosePortal { name } };
        self.pass(header, Some(request));
        Ok(true)
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
