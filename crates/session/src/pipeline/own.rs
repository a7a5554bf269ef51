//! The proxy's own messages among the client's: questions, rejections, Sync and Flush.
//!
//! Must never let the client see an answer to them, except an error; and never touch the client's own statements and
//! portals, not even the unnamed ones.

use super::raised::rollback;
use super::{Audience, Part, Pipeline, Request};
use bytes::BytesMut;
use fencegate_statement::Statement;
use fencegate_wire::message;
use std::sync::Arc;

/// Name of the statement and portal of a question at the server, closed after each use.
const QUESTION: &str = "fencegate value";

/// Name of the statement and portal that raise an error at the server, closed after the next Sync.
const REJECTION: &str = "fencegate reject";

impl Pipeline {
    /// Sends a Sync, which ends the pipeline.
    pub fn put_sync(&mut self, output: &mut BytesMut, audience: Audience) {
        message::put_sync(output);
        self.push(Request::Sync, audience);
        self.part = Part::Empty;
        self.begin_batch();
    }

    /// Sends texts as one simple query of the proxy.
    pub fn put_query(&mut self, output: &mut BytesMut, texts: &[&str]) {
        message::put_query(output, &[texts.join("; ").as_bytes()]);
        let statements = vec![Arc::default(); texts.len()];
        self.push(Request::query(statements), Audience::Proxy);
    }

    /// Runs a statement of the proxy in the extended protocol, without a Sync.
    pub fn run(&mut self, output: &mut BytesMut, text: &str, statement: Arc<Statement>, audience: &Audience) {
        message::put_parse(output, QUESTION, text);
        message::put_bind(output, QUESTION, QUESTION);
        message::put_execute(output, QUESTION);
        message::put_close_portal(output, QUESTION);
        message::put_close_statement(output, QUESTION);
        let requests = [
            Request::Parse { defines: None },
            Request::bind(),
            Request::Execute { statement, defines: None },
            Request::ClosePortal { name: QUESTION.into() },
            Request::CloseStatement { name: QUESTION.into() },
        ];
        for request in requests {
            self.push(request, audience.clone());
        }
    }

    /// Sends messages that raise an error in place of one of the extended protocol. `rolls_back`: the rejected statement
    /// would have ended the transaction.
    pub fn put_rejection(&mut self, output: &mut BytesMut, raise: &str, audience: Audience, rolls_back: bool) {
        if rolls_back {
            self.run(output, "ROLLBACK", rollback(), &Audience::Proxy);
        }
        message::put_close_statement(output, REJECTION);
        message::put_parse(output, REJECTION, raise);
        message::put_bind(output, REJECTION, REJECTION);
        message::put_execute(output, REJECTION);
        self.push(Request::CloseStatement { name: REJECTION.into() }, Audience::Proxy);
        self.push(Request::Parse { defines: None }, Audience::Proxy);
        self.push(Request::bind(), Audience::Proxy);
        self.push(Request::execute(), audience);
        self.rejection_prepared = true;
    }

    /// After a Sync: closes the statement that raised an error, which must not stay at the server.
    pub fn close_rejection(&mut self, output: &mut BytesMut) {
        if std::mem::take(&mut self.rejection_prepared) {
            message::put_close_statement(output, REJECTION);
            self.push(Request::CloseStatement { name: REJECTION.into() }, Audience::Proxy);
            self.put_sync(output, Audience::Proxy);
        }
    }

    /// While the queue is full, returns true once if a Flush has to make the server answer: it may keep answers in its
    /// buffer, without which nothing more is read.
    pub fn flush_is_due(&mut self) -> bool {
        let is_due = self.is_full() && self.needs_flush() && !self.flush_sent;
        self.flush_sent |= is_due;
        is_due
    }
}
