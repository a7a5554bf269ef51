//! The simple protocol: Query and FunctionCall, which the server runs as soon as it has them.
//!
//! Must never let the server run a rejected statement, or what stands behind it in the same string.

use super::judge::opaque;
use super::names::Meaning;
use super::replies::Request;
use super::verdict::{Run, Verdict};
use super::{Asked, ClientFault, HIGH_WATER, Host, Session, frame_of};
use crate::fence::session::Activity;
use crate::statement::{OpaqueReason, Statement, StatementKind, Unreadable};
use crate::wire::error::Severity;
use crate::wire::frame::{HEADER, Header, split_string};
use crate::wire::message::{self, Status};
use std::sync::Arc;

/// The length of a function's number, in bytes.
const OID: usize = 4;

/// What libpq's `lo_…` call: pg_proc's numbers of loread and lowrite, and of lo_create, lo_open, lo_close, lo_lseek,
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
        let (permit, known) = (self.pending.permit.take(), self.pending.read.take());
        let Some((text, _)) = split_string(self.message_body(header)) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::query(Vec::new())));
            return Ok(true);
        };
        if self.lexing_in_doubt(text) {
            return Ok(self.hold_for_lexing(header));
        }
        // Most writes go where no keys are: those texts that differ in literals share what was read.
        let with_rows = self.pending.with_rows;
        let known = known.filter(|(lexing, rows, _)| (*lexing, *rows) == (self.lexing, with_rows));
        let read = match known.map_or_else(|| self.host.read(text, self.lexing, with_rows, permit), |read| Ok(read.2)) {
            Ok(read) => read,
            Err(turn) => {
                self.ask_for(turn);
                return Ok(false);
            }
        };
        let length = text.len();
        self.pending.read = Some((self.lexing, with_rows, read.clone()));
        let is_done = match &*read {
            Ok(script) => self.judge_query(header, &script.statements, true),
            Err(why) => {
                let statement = self.unreadable(length, why);
                // Where it may be wrong, the server reads it too, to say so; what is too complex only costs it time.
                let has_ranges = self.replicates || *why == Unreadable::TooComplex;
                self.judge_query(header, &[statement], has_ranges)
            }
        };
        // Once, since what was read with its rows leaves none out.
        if !is_done && self.pending.with_rows != with_rows { self.query(header) } else { Ok(is_done) }
    }

    /// Without ranges, it is not known where each statement stands in the text.
    fn judge_query(&mut self, header: Header, statements: &[Arc<Statement>], has_ranges: bool) -> bool {
        let (verdict, resolved) = self.judge(statements, Run::Begins);
        match verdict {
            Verdict::Hold => return false,
            Verdict::Forward if !self.pending.checks.is_empty() => {
                let checks = std::mem::take(&mut self.pending.checks);
                self.forward_checked(header, resolved, &checks);
            }
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved);
                let request = Request::Query { statements: resolved, completed: 0, defines };
                self.batch += 1;
                self.pass(header, Some(request));
            }
            Verdict::Reject(0, rejection) if self.can_answer() && has_ranges => {
                self.log_rejection(&rejection, &resolved[0]);
                rejection.text().put(&mut self.client.output, Severity::Error);
                message::put_ready(&mut self.client.output, Status::Idle);
                frame_of(&mut self.client, header.frame());
                self.message_done();
            }
            Verdict::Reject(..) if self.server.rest > 0 && self.activity == Activity::Idle => return false,
            Verdict::Reject(index, rejection) if has_ranges => {
                self.log_rejection(&rejection, &resolved[index]);
                self.raise_in_query(header, resolved, index, &rejection);
            }
            Verdict::Reject(_, rejection) => self.raise_before_query(header, &resolved[0], rejection),
        }
        true
    }

    /// Stands for a text that cannot be read. In a replication session it is one command, of another grammar.
    fn unreadable(&self, length: usize, why: &Unreadable) -> Arc<Statement> {
        let statement = match self.replicates {
            true => opaque(StatementKind::ReplicationCommand, OpaqueReason::NotSql),
            false => opaque(StatementKind::Unspecified, why.into()),
        };
        Arc::new(Statement { range: 0..length, ..Arc::unwrap_or_clone(statement) })
    }

    /// The proxy may answer a simple query by itself: the server is idle, has no unnamed statement, which such a query
    /// drops, no message to the client is under way, the client reads, and the message was not held for long.
    fn can_answer(&self) -> bool {
        self.activity == Activity::Idle
            // Otherwise its timeout is stopped.
            && self.pending.limit == Asked::Not
            && self.replies.is_empty()
            && self.statements.meaning(b"", self.batch) == Meaning::Unknown
            && self.server.rest == 0
            && self.client.output.len() < HIGH_WATER
    }

    /// It names a function by its number. Of all but those for large objects, nothing tells what they write.
    pub(super) fn function_call(&mut self, header: Header) -> bool {
        self.pending.wanted = HEADER + OID;
        let start = self.start_of_body(header);
        if start.len() < OID.min(header.body) {
            return false;
        }
        if start.first_chunk().is_some_and(|oid| LARGE_OBJECT_FUNCTIONS.contains(&u32::from_be_bytes(*oid))) {
            self.batch += 1;
            self.pass(header, Some(Request::FunctionCall));
            return true;
        }
        let statement = opaque(StatementKind::FunctionCall, OpaqueReason::NamesNoFunction);
        self.unread(header, statement, Request::FunctionCall)
    }
}
