//! The simple protocol: Query and FunctionCall, which the server runs as soon as it has them.
//!
//! Must never let the server run a rejected statement, or the statements behind it in the same string.

use super::host::Host;
use super::judge::opaque;
use super::message::Verdict;
use super::names::Meaning;
use super::pipeline::{Audience, Check, Request, pieces, with_checks};
use super::rejection::may_be_another;
use super::session::{ClientFault, HIGH_WATER, Session, frame_of};
use super::verdict::Run;
use fencegate_statement::{OpaqueReason, Statement, StatementKind, Unreadable};
use fencegate_wire::client_error::ClientError;
use fencegate_wire::error::Severity;
use fencegate_wire::frame::{HEADER, Header, split_string};
use fencegate_wire::message::{self, Status};
use std::sync::Arc;

/// Length of an OID, in bytes.
const OID: usize = 4;

/// The functions that libpq's `lo_…` call, by their OIDs in pg_proc: loread and lowrite, and of lo_create, lo_open, lo_close, lo_lseek,
/// lo_creat, lo_tell, lo_unlink, lo_truncate, lo_lseek64, lo_tell64 and lo_truncate64. No table can be reached by them.
const LARGE_OBJECT_FUNCTIONS: [u32; 13] = [954, 955, 715, 952, 953, 956, 957, 958, 964, 1004, 3170, 3171, 3172];

impl<H: Host> Session<H> {
    pub(super) fn query(&mut self, header: Header) -> Result<bool, ClientFault> {
        match self.make_room(header) {
            None => return Ok(false),
            Some(Err(why)) => {
                let statement = opaque(StatementKind::Unspecified, why);
                let request = Request::query(vec![statement.clone()]);
                return Ok(self.unread(header, statement, request));
            }
            Some(Ok(())) if !self.is_whole(header) => return Ok(false),
            Some(Ok(())) => {}
        }
        let (permit, known) = (self.message.text.permit.take(), self.message.text.read.take());
        let Some((text, _)) = split_string(self.client.message_body(header)) else {
            // The server reports the error.
            self.pass(header, Some(Request::query(Vec::new())));
            return Ok(true);
        };
        if self.pipeline.leaves_in_doubt(text) {
            return Ok(self.hold_for_lexing(header));
        }
        // Most writes go to tables without keys: texts that differ only in literals share one analysis.
        let with_rows = self.message.text.with_rows;
        let known = known.filter(|(lexing, rows, _)| (*lexing, *rows) == (self.settings.lexing, with_rows));
        let lexing = self.settings.lexing;
        let read = match known.map_or_else(|| self.host.read(text, lexing, with_rows, permit), |read| Ok(read.2)) {
            Ok(read) => read,
            Err(turn) => {
                self.request(turn);
                return Ok(false);
            }
        };
        let length = text.len();
        self.message.text.read = Some((lexing, with_rows, read.clone()));
        let is_done = match &*read {
            Ok(script) => self.judge_query(header, &script.statements, true),
            Err(why) => {
                let statement = self.unreadable(length, why);
                // The server must parse text that may have a syntax error. Text that is too complex would only cost it
                // time.
                let has_ranges = self.settings.replicates || *why == Unreadable::TooComplex;
                self.judge_query(header, &[statement], has_ranges)
            }
        };
        // This happens at most once: an analysis with rows is complete.
        if !is_done && self.message.text.with_rows != with_rows { self.query(header) } else { Ok(is_done) }
    }

    /// `has_ranges`: the position of each statement in the text is known.
    fn judge_query(&mut self, header: Header, statements: &[Arc<Statement>], has_ranges: bool) -> bool {
        let (verdict, resolved) = self.judge(statements, Run::Begins);
        match verdict {
            Verdict::Hold => return false,
            Verdict::Forward if !self.message.checks.is_empty() => {
                let checks = std::mem::take(&mut self.message.checks);
                self.forward_checked(header, resolved, &checks);
            }
            Verdict::Forward => {
                let defines = self.names.define_prepared(&resolved, self.pipeline.batch());
                let request = Request::Query { statements: resolved, completed: 0, defines };
                self.pipeline.begin_batch();
                self.pass(header, Some(request));
            }
            Verdict::Reject(0, rejection) if self.can_answer() && has_ranges => {
                self.report_rejection(&rejection, &resolved[0]);
                rejection.text().put(&mut self.client.output, Severity::Error);
                message::put_ready(&mut self.client.output, Status::Idle);
                frame_of(&mut self.client, header.frame());
                self.finish_message();
            }
            Verdict::Reject(..) if self.server.rest > 0 && self.process.is_idle() => return false,
            Verdict::Reject(index, rejection) if has_ranges => {
                self.report_rejection(&rejection, &resolved[index]);
                self.raise_in_query(header, resolved, index, &rejection);
            }
            Verdict::Reject(_, rejection) => self.raise_before_query(header, &resolved[0], rejection),
        }
        true
    }

    /// Forwards a string with these checks in it.
    fn forward_checked(&mut self, header: Header, statements: Vec<Arc<Statement>>, checks: &[Check]) {
        let text = split_string(self.client.message_body(header)).map_or(Vec::new(), |(text, _)| text.to_vec());
        let Some(pieces) = pieces(&text, &statements, checks) else {
            let kind = statements.first().map_or(StatementKind::Unspecified, |statement| statement.kind);
            return self.raise_in_query(header, statements, 0, &may_be_another(kind));
        };
        frame_of(&mut self.client, header.frame());
        self.host.note_query();
        self.forward_query(&pieces, with_checks(statements, checks), Audience::Client);
    }

    /// A statement in place of an unreadable text. In a replication session it is one command of another grammar.
    fn unreadable(&self, length: usize, why: &Unreadable) -> Arc<Statement> {
        let statement = match self.settings.replicates {
            true => opaque(StatementKind::ReplicationCommand, OpaqueReason::NotSql),
            false => opaque(StatementKind::Unspecified, why.into()),
        };
        Arc::new(Statement { range: 0..length, ..Arc::unwrap_or_clone(statement) })
    }

    /// Returns true if the proxy may answer a simple query itself: the server is idle and has no unnamed statement,
    /// which a simple query would drop; no message to the client is under way, the client reads, and the message was
    /// not held for long.
    fn can_answer(&self) -> bool {
        self.process.is_idle()
            // Otherwise the session has restarted a timeout of the server.
            && self.message.hold.is_short()
            && self.pipeline.is_empty()
            && self.names.statements.meaning(b"", self.pipeline.batch()) == Meaning::Unknown
            && self.server.rest == 0
            && self.client.output.len() < HIGH_WATER
    }

    /// Judges a call, which names its function by OID. Except for large-object functions, the call does not show its
    /// writes.
    pub(super) fn function_call(&mut self, header: Header) -> bool {
        self.message.want(HEADER + OID);
        let start = self.client.start_of_body(header);
        if start.len() < OID.min(header.body) {
            return false;
        }
        if start.first_chunk().is_some_and(|oid| LARGE_OBJECT_FUNCTIONS.contains(&u32::from_be_bytes(*oid))) {
            self.pipeline.begin_batch();
            self.pass(header, Some(Request::FunctionCall));
            return true;
        }
        let statement = opaque(StatementKind::FunctionCall, OpaqueReason::NamesNoFunction);
        self.unread(header, statement, Request::FunctionCall)
    }
}
