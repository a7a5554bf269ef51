//! Messages from the server: matches replies with the requests that they answer, and forwards those for the client.
//!
//! Must never show the client an answer to a message of the proxy.

use super::host::Host;
use super::message::Stage;
use super::pipeline::request::planning_may_set_parameter;
use super::pipeline::{Audience, Request, is_own, is_raised};
use super::session::{End, HIGH_WATER, LITTLE, Life, Session, frame_of};
use bytes::{BufMut, BytesMut};
use fencegate_statement::{ExclusiveUse, Statement, TransactionEffect};
use fencegate_wire::error::{ErrorText, Severity, field, fields};
use fencegate_wire::frame::{HEADER, Header, body, put_frame};
use fencegate_wire::message::{self, Status};
use fencegate_wire::tag::backend;

/// Maximum body of a message that is forwarded whole, in bytes. Longer ones are forwarded as they arrive. If the server
/// disconnects within a short message, the proxy's last error can follow the message before it.
const WHOLE: usize = 64 * 1024;
/// Number of bytes of an error in which the session looks for its severity and SQLSTATE.
const ERROR_HEAD: usize = 64;

/// read_only_sql_transaction, which a standby reports for a write.
const READ_ONLY: &[u8] = b"25006";

/// Messages that do not answer a text; and errors, which may report a syntax error in it.
const BESIDE_ANSWERS: [u8; 4] = [backend::NOTICE, backend::NOTIFICATION, backend::PARAMETER_STATUS, backend::ERROR];

impl<H: Host> Session<H> {
    /// Handles the server's output, as far as the client's output has room.
    pub(super) fn handle_server(&mut self) -> Result<(), End> {
        self.client.output.reserve(self.server.input.len().min(LITTLE));
        while self.client.output.len() < HIGH_WATER {
            if self.server.rest > 0 && !self.server.pass_on(&mut self.client.output) {
                break;
            }
            let header = Header::from_server(&self.server.input);
            let Some(header) = header.map_err(|error| End::ServerFault(error.to_string()))? else { break };
            if !self.server_message(header)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns false if more of the message is needed.
    fn server_message(&mut self, header: Header) -> Result<bool, End> {
        let audience = self.pipeline.audience();
        let available = self.server.input.len();
        if header.body <= WHOLE && available < header.frame() {
            return Ok(false);
        }
        if self.pipeline.unread.is_some() && !BESIDE_ANSWERS.contains(&header.tag) {
            self.note_read(false);
        }
        let is_own = self.pipeline.front().is_some_and(|reply| is_own(&reply.to));
        match header.tag {
            backend::NOTICE if is_own => self.stream(header, Audience::Proxy),
            backend::NOTICE
                if let Audience::Rejection { shift: shift @ 1.., text } = &audience
                    && header.body <= WHOLE =>
            {
                self.answer_in_place(header, *shift, text);
            }
            backend::NOTICE | backend::NOTIFICATION => {
                self.note_answer(header);
                self.stream(header, Audience::Client);
            }
            backend::PARAMETER_STATUS if header.body <= WHOLE => self.parameter_status(header),
            backend::PARAMETER_STATUS => {
                // Only the search path can be that long.
                self.settings.path.report(None);
                self.stream(header, Audience::Client);
            }
            backend::ERROR => {
                if available < header.frame().min(HEADER + ERROR_HEAD) {
                    return Ok(false);
                }
                return self.error_response(header, audience);
            }
            backend::READY if header.body <= WHOLE => {
                let status = Status::read(self.server.message_body(header));
                self.ready(status.ok_or_else(|| End::ServerFault("unknown transaction status".into()))?)?;
                match audience.is_clients() {
                    true => self.forward_ready(header),
                    false => self.stream(header, Audience::Proxy),
                }
                self.follow_path(&audience);
            }
            backend::COMMAND_COMPLETE if header.body <= WHOLE => {
                let tag = self.server.message_body(header);
                self.command_complete(tag.starts_with(b"ROLLBACK"), tag.starts_with(b"COPY"));
                let is_clients = audience.is_clients() && !is_own;
                if is_clients {
                    self.show_description();
                }
                self.stream(header, if is_clients { Audience::Client } else { Audience::Proxy });
            }
            backend::DATA_ROW if matches!(audience, Audience::ProxyAhead) && header.body <= WHOLE => {
                let frame = frame_of(&mut self.server, header.frame());
                let path = message::columns(body(&frame)).and_then(|columns| columns.into_iter().next()).flatten();
                self.settings.path.learn_ahead(path.as_deref());
            }
            backend::DATA_ROW if matches!(audience, Audience::Proxy) && header.body <= WHOLE => {
                let frame = frame_of(&mut self.server, header.frame());
                self.message.facts.answer.extend(message::columns(body(&frame)).unwrap_or_default());
            }
            _ if matches!(audience, Audience::Client) && header.body <= WHOLE && self.keep_description(header) => {}
            tag => {
                if matches!(audience, Audience::Client) {
                    self.note_answer(header);
                }
                self.note_reply(tag);
                if self.host.is_fenced() && self.pipeline.is_sync_in_doubt() {
                    return Err(End::ServerFault("COPY from the client where none was due".into()));
                }
                self.stream(header, audience);
            }
        }
        Ok(true)
    }

    /// Forwards a message as it arrives, or discards it if it is not for the client. Complete rows after a row are
    /// forwarded with it, because nothing happens between them.
    pub(super) fn stream(&mut self, header: Header, audience: Audience) {
        self.server.rest = match header.tag {
            backend::DATA_ROW | backend::COPY_DATA if audience.is_clients() => self.server.run(header),
            _ => header.frame(),
        };
        self.server.discard = !audience.is_clients();
        self.server.pass_on(&mut self.client.output);
    }

    fn note_reply(&mut self, tag: u8) {
        let Some(front) = self.pipeline.front() else { return };
        let ends = match (tag, &front.to) {
            (backend::PARSE_COMPLETE, Request::Parse { defines }) => {
                defines.iter().for_each(|it| self.names.statements.confirm(&it.name, it.sequence));
                true
            }
            (backend::BIND_COMPLETE, Request::Bind { defines, plans }) => {
                defines.iter().for_each(|it| self.names.portals.confirm(&it.name, it.sequence));
                if planning_may_set_parameter(plans) {
                    self.settings.parameter.planned();
                }
                true
            }
            (backend::CLOSE_COMPLETE, Request::Close) => true,
            (backend::CLOSE_COMPLETE, Request::CloseStatement { name }) => {
                self.names.statements.close(name);
                true
            }
            (backend::CLOSE_COMPLETE, Request::ClosePortal { name }) => {
                self.names.portals.close(name);
                true
            }
            (backend::ROW_DESCRIPTION | backend::NO_DATA, Request::Describe) => true,
            // A statement may have run to its end before it returns its first row: CALL, EXPLAIN ANALYZE.
            (backend::PORTAL_SUSPENDED, Request::Execute { statement, .. }) => {
                let statement = statement.clone();
                self.statement_done(&statement, false, None);
                true
            }
            // Nothing has run. The server gives this answer in a failed transaction, too.
            (backend::EMPTY_QUERY, Request::Execute { .. }) => true,
            (backend::COPY_IN, _) => {
                self.pipeline.copy_in();
                false
            }
            _ => false,
        };
        if ends {
            self.pipeline.pop();
        }
    }

    /// A statement has completed. `rolled_back`: the server may answer COMMIT with ROLLBACK. `is_copy`: it was a COPY.
    fn command_complete(&mut self, rolled_back: bool, is_copy: bool) {
        if is_copy {
            self.pipeline.copy_done();
        }
        let Some(front) = self.pipeline.front() else { return };
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
                self.pipeline.pop();
                self.statement_done(&statement, rolled_back, defines);
            }
            _ => (),
        }
    }

    fn statement_done(&mut self, statement: &Statement, rolled_back: bool, defined: Option<(String, u64)>) {
        // Outside a transaction block, the server answers PREPARE TRANSACTION with ROLLBACK, but commits.
        let was_rolled_back = rolled_back && statement.transaction != TransactionEffect::PrepareTransaction;
        let may_commit = !was_rolled_back && (statement.may_commit() || !self.host.is_fenced());
        self.transaction.note_completed(may_commit, statement.changes_catalog);
        self.settings.completed(statement, rolled_back);
        if let Some(ExclusiveUse { database, .. }) = &statement.needs_database_alone {
            self.host.forget_database(database);
        }
        if matches!(statement.transaction, TransactionEffect::Commit | TransactionEffect::Rollback) {
            self.transaction.restart(self.pipeline.sent_since());
            self.transaction_ended();
            self.definitions_ended();
        }
        self.names.completed(statement, defined);
    }

    /// Returns false if more of the message is needed.
    fn error_response(&mut self, header: Header, audience: Audience) -> Result<bool, End> {
        let available = self.server.input.len();
        let head = &self.server.input[HEADER..available.min(header.frame()).min(HEADER + ERROR_HEAD)];
        let severity = field(head, b'V').or_else(|| field(head, b'S')).unwrap_or_default();
        let is_syntax_error = field(head, b'C') == Some(b"42601");
        if field(head, b'C') == Some(READ_ONLY) {
            self.host.note_recovery();
        }
        if severity != b"ERROR" {
            // This is the last message. `last_error` reads it once the reason for the end is known.
            return if available < header.frame().min(HEADER + WHOLE) { Ok(false) } else { Err(End::Server) };
        }
        self.note_read(is_syntax_error);
        let is_clients = audience == Audience::Client && header.body <= WHOLE && self.host.is_fenced();
        let refusal = if is_clients { self.guard_refusal(header) } else { None };
        let refusal = refusal.map(|refusal| (refusal, frame_of(&mut self.server, header.frame())));
        if let Audience::Rejection { shift, text } = &audience
            && header.body <= WHOLE
        {
            if available < header.frame() {
                return Ok(false);
            }
            let is_raised = self.answer_in_place(header, *shift, text);
            self.note_raised(*shift, is_raised);
        } else if audience == Audience::ProxyAhead {
            if self.transaction.status() == Status::Transaction {
                // A cancel request met the question and has rolled back a transaction that the client considers open.
                return Err(End::ServerFault("a query of the proxy was canceled, and the transaction with it".into()));
            }
            self.stream(header, audience);
        } else if refusal.is_none() {
            self.show_description();
            // If a restart failed, the client receives the guard's error instead.
            let is_hidden = matches!(self.message.stage(), Stage::Restarting);
            self.stream(header, if is_hidden { Audience::Proxy } else { Audience::Client });
        }
        self.settings.error();
        if let Some(to) = self.pipeline.front().map(|reply| &reply.to).filter(|to| to.may_commit()) {
            // A text that the proxy cannot read either often has a syntax error, and nothing has run.
            let changes_catalog = to.changes_catalog() && !(is_syntax_error && to.is_unread());
            self.transaction.note_completed(true, changes_catalog);
            self.settings.parameter.forget_all();
        }
        let skipped = self.pipeline.error();
        skipped.into_iter().for_each(|reply| self.names.cancel(reply.to));
        if let Some((refusal, error)) = refusal {
            self.keep_error(refusal, error);
        }
        if self.pipeline.take_withheld_sync() {
            self.begin_forwarding();
            self.pipeline.put_sync(&mut self.server.output, Audience::Client);
        }
        if self.waits_for_answer() {
            self.question_refused();
        }
        Ok(true)
    }

    /// Forwards an error or notice as one about the client's own text. Returns true if the proxy's statement raised it.
    fn answer_in_place(&mut self, header: Header, shift: usize, text: &ErrorText) -> bool {
        let frame = frame_of(&mut self.server, header.frame());
        put_in_place(&mut self.client.output, header.tag, body(&frame), shift, text)
    }

    fn ready(&mut self, status: Status) -> Result<(), End> {
        match self.pipeline.pop() {
            Some(reply) if matches!(reply.to, Request::Query { .. }) => {
                self.names.statements.close(b"");
                self.names.cancel(reply.to);
            }
            Some(reply) if matches!(reply.to, Request::Sync) => (),
            // The function may have called set_config.
            Some(reply) if matches!(reply.to, Request::FunctionCall) => self.settings.parameter.forget(),
            None if self.pipeline.is_sync_in_doubt() => self.pipeline.sync_answered(),
            _ => return Err(End::ServerFault("unexpected ReadyForQuery".into())),
        }
        self.transaction.ready(status, self.pipeline.now());
        self.settings.ready(status);
        self.host.note_presented(self.settings.parameter.current());
        if status == Status::Idle {
            self.transaction_ended();
        }
        // After COMMIT AND CHAIN, for example, another transaction is open, which has no definitions.
        if status == Status::Idle || !self.transaction.has_changed_catalog() {
            self.definitions_ended();
        }
        if self.pipeline.is_empty() && self.client.rest == 0 {
            self.pipeline.all_answered(status != Status::Idle);
            if status == Status::Idle {
                self.names.portals.clear();
            }
        }
        Ok(())
    }

    /// Forgets the writes of the ended transaction, unless others are under way.
    fn transaction_ended(&mut self) {
        if !self.pipeline.writes_fenced() {
            self.transaction.forget_written();
            self.process.fence.transaction_ended();
        }
    }

    /// The server has ended the transaction, or the session. Unanswered messages may define more.
    pub fn definitions_ended(&mut self) {
        let is_gone = self.server.ended;
        let may_have_more =
            is_gone && (self.pipeline.may_change_catalog() || !self.transaction.definitions().own().is_empty());
        let is_last = is_gone || !self.pipeline.may_change_catalog() && self.client.rest == 0;
        self.transaction.end_definitions(&self.host, may_have_more, is_last);
    }

    /// The server is ready: it has reported the search path, or answered the query sent ahead. If the last statements
    /// were judged by the path, and code that ran since may have set it, the proxy queries the path ahead, so that the
    /// next statements need not wait.
    fn follow_path(&mut self, audience: &Audience) {
        if self.settings.path.ready_reports(matches!(audience, Audience::ProxyAhead)) {
            self.pipeline.path_reported();
        }
        let is_quiet = self.pipeline.is_empty()
            && self.client.rest == 0
            && self.client.input.is_empty()
            && !self.message.is_held()
            && matches!(self.life, Life::Open)
            && self.transaction.status() != Status::Failed;
        if audience.is_clients()
            && is_quiet
            && self.pipeline.path_in_doubt()
            && self.host.is_fenced()
            && self.settings.path.take_turn_ahead()
        {
            self.query_path_ahead();
        }
    }

    fn parameter_status(&mut self, header: Header) {
        let frame = frame_of(&mut self.server, header.frame());
        self.client.output.extend_from_slice(&frame);
        match message::parameter_status(body(&frame)) {
            Some((name, value)) => {
                self.settings.report_lexing(name, value);
                match name {
                    "search_path" => self.settings.path.report(Some(value)),
                    "application_name" => self.host.note_application_name(value),
                    "in_hot_standby" => self.host.note_recovery(),
                    _ => {}
                }
            }
            None if body(&frame).starts_with(b"search_path\0") => self.settings.path.report(None),
            None => {}
        }
    }
}

/// Appends the server's message about a text with a statement that raises an error. Returns true if that statement
/// raised it: the proxy's error then replaces it. Other messages read as if about the client's own text.
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
