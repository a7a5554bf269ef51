//! Messages from the server: matches replies with the requests that they answer, and passes on the client's.

use super::raised::{is_own, is_raised};
use super::replies::{Audience, Reply, Request};
use super::request::planning_may_set_parameter;
use super::{End, HIGH_WATER, Host, LITTLE, Sent, Session, Wait, frame_of, server_fault};
use crate::statement::{Alone, PreparedEffect, Statement, TransactionEffect};
use crate::wire::error::{ErrorText, Severity, field, fields};
use crate::wire::frame::body;
use crate::wire::frame::{HEADER, Header, put_frame};
use crate::wire::message::{self, Status};
use crate::wire::tag::backend;
use bytes::{BufMut, BytesMut};

/// Messages up to this many bytes of body are passed on whole, so that the last words to a client, should the server go away
/// in the middle of one, find their place behind the one before; longer ones stream.
const WHOLE: usize = 64 * 1024;
/// Of an error this much is looked at, to see whether it ends the session.
const ERROR_HEAD: usize = 64;

/// What is no answer to a text, or an error, which may say that there is a mistake in it.
const SAID_BESIDE: [u8; 4] = [backend::NOTICE, backend::NOTIFICATION, backend::PARAMETER_STATUS, backend::ERROR];

impl<H: Host> Session<H> {
    /// Handles all that has been read from the server, as far as the client's output has room.
    pub(super) fn handle_server(&mut self) -> Result<(), End> {
        // Most of it passes.
        self.client.output.reserve(self.server.input.len().min(LITTLE));
        while self.client.output.len() < HIGH_WATER {
            if self.server.rest > 0 && !self.server.pass_on(&mut self.client.output) {
                break;
            }
            let Some(header) = Header::from_server(&self.server.input).map_err(server_fault)? else { break };
            if !self.server_message(header)? {
                break;
            }
        }
        Ok(())
    }

    /// False when more of the message is needed.
    fn server_message(&mut self, header: Header) -> Result<bool, End> {
        let audience = self.replies.audience();
        let available = self.server.input.len();
        if header.body <= WHOLE && available < header.frame() {
            return Ok(false);
        }
        if self.unread.is_some() && !SAID_BESIDE.contains(&header.tag) {
            self.note_read(false);
        }
        let is_own = self.replies.front().is_some_and(|reply| is_own(&reply.to));
        match header.tag {
            backend::NOTICE if is_own => self.stream(header, Audience::Proxy),
            backend::NOTICE
                if let Audience::Rejection { shift: shift @ 1.., text } = &audience
                    && header.body <= WHOLE =>
            {
                self.say_in_place(header, *shift, text);
            }
            backend::NOTICE | backend::NOTIFICATION => {
                self.note_answer(header);
                self.stream(header, Audience::Client);
            }
            backend::PARAMETER_STATUS if header.body <= WHOLE => self.parameter_status(header),
            backend::PARAMETER_STATUS => {
                // Only the path can be as long.
                self.path.report(None);
                self.stream(header, Audience::Client);
            }
            backend::ERROR => {
                if available < header.frame().min(HEADER + ERROR_HEAD) {
                    return Ok(false);
                }
                return self.error_response(header, audience);
            }
            backend::READY | backend::COMMAND_COMPLETE if header.body <= WHOLE => {
                let frame = frame_of(&mut self.server, header.frame());
                let is_told = audience.is_clients() && !(is_own && header.tag == backend::COMMAND_COMPLETE);
                if header.tag == backend::READY {
                    self.ready(body(&frame))?;
                    if is_told {
                        self.tell_ready(frame);
                    }
                    self.path_after(&audience);
                } else {
                    self.command_complete(body(&frame));
                    if is_told {
                        self.show_description();
                        self.client.output.extend_from_slice(&frame);
                    }
                }
            }
            backend::DATA_ROW if audience == Audience::ProxyAhead && header.body <= WHOLE => {
                let frame = frame_of(&mut self.server, header.frame());
                let path = message::columns(body(&frame)).and_then(|columns| columns.into_iter().next()).flatten();
                self.path.learn_ahead(path.as_deref());
            }
            backend::DATA_ROW if audience == Audience::Proxy && header.body <= WHOLE => {
                let frame = frame_of(&mut self.server, header.frame());
                self.pending.answer.get_or_insert_default().extend(message::columns(body(&frame)).unwrap_or_default());
            }
            _ if audience == Audience::Client && header.body <= WHOLE && self.keep_description(header) => {}
            tag => {
                if audience == Audience::Client {
                    self.note_answer(header);
                }
                self.note_reply(tag);
                if self.host.is_fenced() && self.replies.is_sync_in_doubt() {
                    return Err(End::ServerFault("COPY from the client where none was due".into()));
                }
                self.stream(header, audience);
            }
        }
        Ok(true)
    }

    /// Passes a message on as it comes; what is not for the client goes nowhere.
    fn stream(&mut self, header: Header, audience: Audience) {
        self.server.rest = header.frame();
        self.server.discard = !audience.is_clients();
        self.server.pass_on(&mut self.client.output);
    }

    fn note_reply(&mut self, tag: u8) {
        let Some(front) = self.replies.front() else { return };
        let ends = match (tag, &front.to) {
            (backend::PARSE_COMPLETE, Request::Parse { defines }) => {
                defines.iter().for_each(|it| self.statements.confirm(&it.name, it.sequence));
                true
            }
            (backend::BIND_COMPLETE, Request::Bind { defines, plans }) => {
                defines.iter().for_each(|it| self.portals.confirm(&it.name, it.sequence));
                if planning_may_set_parameter(plans) {
                    self.parameter.planned();
                }
                true
            }
            (backend::CLOSE_COMPLETE, Request::Close) => true,
            (backend::CLOSE_COMPLETE, Request::CloseStatement { name }) => {
                self.statements.close(name);
                true
            }
            (backend::CLOSE_COMPLETE, Request::ClosePortal { name }) => {
                self.portals.close(name);
                true
            }
            (backend::ROW_DESCRIPTION | backend::NO_DATA, Request::Describe) => true,
            (backend::EMPTY_QUERY | backend::PORTAL_SUSPENDED, Request::Execute { statement, .. }) => {
                self.parameter.completed(statement, false);
                true
            }
            (backend::COPY_IN, _) => {
                self.replies.copy_in();
                false
            }
            _ => false,
        };
        if ends {
            self.replies.pop();
        }
    }

    fn command_complete(&mut self, tag: &[u8]) {
        let rolled_back = tag.starts_with(b"ROLLBACK");
        if tag.starts_with(b"COPY") {
            self.replies.copy_done();
        }
        let Some(front) = self.replies.front() else { return };
        match &mut front.to {
            Request::Query { statements, completed, defines } => {
                let index = *completed;
                *completed += 1;
                let defined = defines.iter().position(|(at, ..)| *at == index).map(|position| defines.remove(position));
                if let Some(statement) = statements.get(index).cloned() {
                    self.statement_done(&statement, rolled_back, defined.map(|(_, name, sequence)| (name, sequence)));
                }
            }
            Request::Execute { statement, defines } => {
                let (statement, defines) = (statement.clone(), defines.take());
                self.replies.pop();
                self.statement_done(&statement, rolled_back, defines);
            }
            _ => (),
        }
    }

    fn statement_done(&mut self, statement: &Statement, rolled_back: bool, defined: Option<(String, u64)>) {
        self.transaction.may_have_committed |= !rolled_back && (statement.may_commit() || !self.host.is_fenced());
        self.parameter.completed(statement, rolled_back);
        self.path.completed(statement);
        self.transaction.catalogue_changed |= statement.changes_catalogue;
        if let Some(Alone { database, .. }) = &statement.needs_database_alone {
            self.host.forget_database(database);
        }
        if matches!(statement.transaction, TransactionEffect::Commit | TransactionEffect::Rollback) {
            // Another one may have begun with it, or in the same string.
            self.transaction.began = self.transaction.sent_since;
            self.transaction_ended();
            self.definitions_over();
        }
        match &statement.prepared {
            PreparedEffect::Deallocate { name } => self.statements.close(name.as_bytes()),
            PreparedEffect::DeallocateAll => self.statements.close_all(),
            _ => (),
        }
        if let Some((name, sequence)) = defined {
            self.statements.confirm(name.as_bytes(), sequence);
        }
    }

    /// False when more of the message is needed.
    fn error_response(&mut self, header: Header, audience: Audience) -> Result<bool, End> {
        let available = self.server.input.len();
        let head = &self.server.input[HEADER..available.min(header.frame()).min(HEADER + ERROR_HEAD)];
        let severity = field(head, b'V').or_else(|| field(head, b'S')).unwrap_or_default();
        let is_mistaken = field(head, b'C') == Some(b"42601");
        if severity != b"ERROR" {
            // The last message: kept for last_words, which knows whether it is the reason.
            return if available < header.frame().min(HEADER + WHOLE) { Ok(false) } else { Err(End::Server) };
        }
        self.note_read(is_mistaken);
        let is_clients = audience == Audience::Client && header.body <= WHOLE && self.host.is_fenced();
        let unseen = if is_clients { self.unseen_write(header) } else { None };
        let unseen = unseen.map(|unseen| (unseen, frame_of(&mut self.server, header.frame())));
        if let Audience::Rejection { shift, text } = &audience
            && header.body <= WHOLE
        {
            if available < header.frame() {
                return Ok(false);
            }
            let is_ours = self.say_in_place(header, *shift, text);
            self.note_raised(*shift, is_ours);
        } else if audience == Audience::ProxyAhead {
            if self.transaction.status == Status::Transaction {
                // A cancel met it, and has taken back what the client believes in.
                return Err(End::ServerFault(
                    "a question of the proxy's was cancelled, and the transaction with it".into(),
                ));
            }
            self.stream(header, audience);
        } else if unseen.is_none() {
            self.show_description();
            // Its transaction was not begun anew: the client is told of the error before.
            let is_hidden = matches!(self.wait, Some(Wait::Begin));
            self.stream(header, if is_hidden { Audience::Proxy } else { Audience::Client });
        }
        self.parameter.error();
        self.path.error();
        if self.replies.front().is_some_and(|reply| reply.to.may_commit()) {
            self.parameter.forget_all();
        }
        let skipped = self.replies.error();
        skipped.into_iter().for_each(|reply| self.cancel(reply));
        if let Some((unseen, error)) = unseen {
            self.keep_error(unseen, error);
        }
        if self.replies.take_withheld_sync() {
            self.note_forwarding();
            self.put_sync(Audience::Client);
        }
        if self.waits_for_answer() {
            self.question_refused();
        }
        Ok(true)
    }

    /// Passes on an error or a notice about what was sent in place of the client's own text. True: our statement raised it.
    fn say_in_place(&mut self, header: Header, shift: usize, text: &ErrorText) -> bool {
        let frame = frame_of(&mut self.server, header.frame());
        put_in_place(&mut self.client.output, header.tag, body(&frame), shift, text)
    }

    /// The server will not do what this asked for.
    fn cancel(&mut self, reply: Reply) {
        match reply.to {
            Request::Parse { defines: Some(it) } => self.statements.cancel(&it.name, it.sequence),
            Request::Bind { defines: Some(it), .. } => self.portals.cancel(&it.name, it.sequence),
            Request::Execute { defines: Some((name, sequence)), .. } => {
                self.statements.cancel(name.as_bytes(), sequence)
            }
            Request::Query { defines, .. } => {
                for (_, name, sequence) in defines {
                    self.statements.cancel(name.as_bytes(), sequence);
                }
            }
            _ => (),
        }
    }

    fn ready(&mut self, body: &[u8]) -> Result<(), End> {
        let status = Status::read(body).ok_or_else(|| End::ServerFault("unknown transaction status".into()))?;
        match self.replies.pop() {
            Some(reply) if matches!(reply.to, Request::Query { .. }) => {
                self.statements.close(b"");
                self.cancel(reply);
            }
            Some(reply) if matches!(reply.to, Request::Sync) => (),
            // It may have called set_config.
            Some(reply) if matches!(reply.to, Request::FunctionCall) => self.parameter.forget(),
            None if self.replies.is_sync_in_doubt() => self.replies.sync_answered(),
            _ => return Err(End::ServerFault("ReadyForQuery that nobody asked for".into())),
        }
        self.transaction.status = status;
        self.transaction.may_have_committed = false;
        self.parameter.ready(status);
        self.path.ready(status);
        self.host.note_presented(self.parameter.current());
        if status == Status::Idle {
            self.transaction.began = Some(self.now);
            self.transaction_ended();
        }
        // After COMMIT AND CHAIN, say, another transaction is open, which has defined nothing.
        if status == Status::Idle || !self.transaction.catalogue_changed {
            self.definitions_over();
        }
        if self.replies.is_empty() && self.client.rest == 0 {
            self.transaction.sent = Sent::Nothing;
            if status == Status::Idle {
                self.portals.clear();
            }
        }
        Ok(())
    }

    /// What was written belongs to it, save what was forwarded since and is not answered yet.
    fn transaction_ended(&mut self) {
        if !self.replies.may_write() {
            self.transaction.written.clear();
            self.transaction.past.written.clear();
            self.fence.transaction_ended();
        }
    }

    fn parameter_status(&mut self, header: Header) {
        let frame = frame_of(&mut self.server, header.frame());
        self.client.output.extend_from_slice(&frame);
        match message::parameter_status(body(&frame)) {
            Some((name, value)) => {
                self.lexing.note(name, value);
                match name {
                    "search_path" => self.path.report(Some(value)),
                    "application_name" => self.host.note_application_name(value),
                    _ => {}
                }
            }
            None if body(&frame).starts_with(b"search_path\0") => self.path.report(None),
            None => {}
        }
    }
}

/// Appends what the server says about a text with a statement that raises an error: in place of its error ours, and
/// everything else as the server would say it of the client's own text. True: it is that error.
fn put_in_place(output: &mut BytesMut, tag: u8, body: &[u8], shift: usize, text: &ErrorText) -> bool {
    let is_unknown = field(body, b'C') == Some(b"42704");
    if tag == backend::ERROR && is_unknown && field(body, b'M').is_some_and(|message| is_raised(message, text)) {
        text.put(output, Severity::Error);
        return true;
    }
    put_frame(output, tag, |out| {
        for (tag, value) in fields(body) {
            out.put_u8(tag);
            let position = (tag == b'P').then(|| std::str::from_utf8(value).ok()?.parse::<usize>().ok()).flatten();
            match position {
                Some(position) => out.put_slice(position.saturating_sub(shift).to_string().as_bytes()),
                None => out.put_slice(value),
            }
            out.put_u8(0);
        }
        out.put_u8(0);
    });
    false
}
