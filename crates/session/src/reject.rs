//! Rejection by an error that the server raises: inside transactions and pipelines, so that the server's transaction state is
//! the truth.
//!
//! Must never let the server run a rejected statement, or the statements behind it in the same string or pipeline.

use super::host::Host;
use super::judge::need::PassedWrite;
use super::pipeline::{Audience, Request, UnreadVerdict, raising_statement, rollback};
use super::rejection::Rejection;
use super::session::{Session, frame_of};
use fencegate_statement::Statement;
use fencegate_wire::client_error::ClientError;
use fencegate_wire::frame::{Header, body, split_string};
use fencegate_wire::message;
use fencegate_wire::tag::frontend;
use std::sync::Arc;

/// A statement that makes the server raise an error, and the client's replacement for that error.
fn in_place(rejection: &Rejection, shift: usize) -> (String, Audience) {
    let text = rejection.text();
    (raising_statement(&text), Audience::Rejection { shift, text: Arc::new(text) })
}

/// Precedes the statement that raises the error if the rejected statement would have ended the transaction.
const ROLLBACK_FIRST: &str = "ROLLBACK; ";

impl<H: Host> Session<H> {
    /// Puts a statement that raises the error in place of the rejected one.
    pub(super) fn raise_in_query(
        &mut self,
        header: Header,
        mut statements: Vec<Arc<Statement>>,
        index: usize,
        rejection: &Rejection,
    ) {
        let (raise, audience) = in_place(rejection, 0);
        let frame = frame_of(&mut self.client, header.frame());
        let text = split_string(body(&frame)).map_or(&[][..], |(text, _)| text);
        let range = statements[index].range.clone();
        let (before, after) = (text.get(..range.start), text.get(range.end..));
        let rolls_back = rejection.ends_transaction();
        let end = if rolls_back { ROLLBACK_FIRST } else { "" };
        let pieces = [before.unwrap_or_default(), end.as_bytes(), raise.as_bytes(), after.unwrap_or_default()];
        statements.truncate(index);
        statements.extend(rolls_back.then(rollback));
        self.forward_query(&pieces, statements, audience);
    }

    /// Forwards a string of the client that the proxy has changed, as one simple query.
    pub(super) fn forward_query(&mut self, pieces: &[&[u8]], statements: Vec<Arc<Statement>>, audience: Audience) {
        self.begin_forwarding();
        message::put_query(&mut self.server.output, pieces);
        let defines = self.names.define_prepared(&statements, self.pipeline.batch());
        self.pipeline.begin_batch();
        self.pipeline.push(Request::Query { statements, completed: 0, defines }, audience);
        self.finish_message();
    }

    /// Puts a statement that raises the error before a string that the proxy cannot read. The server parses the whole
    /// string first. If it reports a syntax error, nothing counts as rejected.
    pub(super) fn raise_before_query(&mut self, header: Header, statement: &Arc<Statement>, rejection: Rejection) {
        let raise = format!("{}; ", in_place(&rejection, 0).0);
        let audience = in_place(&rejection, raise.len()).1;
        let frame = frame_of(&mut self.client, header.frame());
        let text = split_string(body(&frame)).map_or(&[][..], |(text, _)| text);
        self.forward_query(&[raise.as_bytes(), text], Vec::new(), audience);
        self.pipeline.unread = Some(UnreadVerdict::Rejected(rejection, statement.clone()));
    }

    /// Reports writes that pass fences: at once, or once the server has found no syntax error in the text.
    pub(super) fn report_passed(&mut self, statements: &[Arc<Statement>], passed: Vec<PassedWrite>) {
        match statements.iter().any(|statement| statement.is_unread()) && !self.is_extended() {
            true => self.pipeline.unread = Some(UnreadVerdict::Passed(passed)),
            false => self.host.note_passed(passed),
        }
    }

    /// The server has begun to answer a text that the proxy could not read and has forwarded.
    pub(super) fn note_read(&mut self, has_syntax_error: bool) {
        let is_passed = |verdict: &mut UnreadVerdict| matches!(verdict, UnreadVerdict::Passed(_));
        if let Some(UnreadVerdict::Passed(passed)) = self.pipeline.unread.take_if(is_passed)
            && !has_syntax_error
        {
            self.host.note_passed(passed);
        }
    }

    /// The server has answered the statement that replaced a rejected one. `is_raised`: with the proxy's error.
    pub(super) fn note_raised(&mut self, shift: usize, is_raised: bool) {
        if shift > 0
            && let Some(UnreadVerdict::Rejected(rejection, statement)) = self.pipeline.unread.take()
        {
            match is_raised {
                true => self.report_rejection(&rejection, &statement),
                false => self.host.note_query(),
            }
        }
    }

    /// A rejected message has been read to its end and discarded.
    pub(super) fn raise_discarded(&mut self) {
        match self.message.take_discarded() {
            // A Query would drop the client's unnamed statement. Replication sessions know no other message.
            Some((frontend::FUNCTION_CALL, rejection)) if !self.settings.replicates => {
                self.raise_in_pipeline(&rejection);
                self.pipeline.put_sync(&mut self.server.output, Audience::Client);
                self.pipeline.close_rejection(&mut self.server.output);
            }
            Some((frontend::QUERY | frontend::FUNCTION_CALL, rejection)) => {
                let (raise, audience) = in_place(&rejection, 0);
                self.forward_query(&[raise.as_bytes()], Vec::new(), audience);
            }
            Some((_, rejection)) => self.raise_in_pipeline(&rejection),
            None => (),
        }
    }

    /// Sends messages that raise the error in place of an extended-protocol message.
    fn raise_in_pipeline(&mut self, rejection: &Rejection) {
        let (raise, audience) = in_place(rejection, 0);
        self.begin_forwarding();
        self.pipeline.put_rejection(&mut self.server.output, &raise, audience, rejection.ends_transaction());
        self.finish_message();
    }

    /// Reports that the message at hand is rejected.
    pub(super) fn report_rejection(&self, rejection: &Rejection, statement: &Statement) {
        self.host.note_query();
        self.host.note_rejected(rejection, statement);
    }
}
