//! Rejection by an error that the server raises: inside transactions and pipelines, so that its
//! transaction state is the truth.

use super::judge::PassedWrite;
use super::raised::{raising_statement, rollback};
use super::rejection::Rejection;
use super::replies::{Audience, Request};
use super::{Host, Session, frame_of};
use crate::statement::Statement;
use crate::wire::frame::body;
use crate::wire::frame::{Header, split_string};
use crate::wire::message;
use crate::wire::tag::frontend;
use std::sync::Arc;

/// The name of our own statement and portal at the server, closed after each use.
const REJECT_NAME: &str = "fencegate reject";

/// What makes the server raise an error, and what the client sees of it.
fn in_place(rejection: &Rejection, shift: usize) -> (String, Audience) {
    let text = rejection.text();
    (raising_statement(&text), Audience::Rejection { shift, text: Arc::new(text) })
}

/// Before the statement that raises the error, where the rejected one would have ended the transaction.
const ROLLBACK_FIRST: &str = "ROLLBACK; ";

/// What is to be told of a text that the proxy cannot read.
pub(super) enum Unread {
    /// It is rejected.
    Rejected(Rejection, Arc<Statement>),
    /// It passes. It was forwarded when nothing was owed.
    Passes(Vec<PassedWrite>),
}

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
        self.note_forwarding();
        let output = &mut self.server.output;
        let rolls_back = rejection.ends_transaction();
        let end = if rolls_back { ROLLBACK_FIRST } else { "" };
        let pieces = [before.unwrap_or_default(), end.as_bytes(), raise.as_bytes(), after.unwrap_or_default()];
        message::put_query(output, &pieces);
        statements.truncate(index);
        statements.extend(rolls_back.then(rollback));
        let defines = self.define_prepared(&statements);
        self.batch += 1;
        self.replies.push(Request::Query { statements, completed: 0, defines }, audience);
        self.message_done();
    }

    /// Puts a statement that raises the error before a string that the proxy cannot read. The server reads the whole string
    /// first: a mistake in it is answered by the server, and is no rejection.
    pub(super) fn raise_before_query(&mut self, header: Header, statement: &Arc<Statement>, rejection: Rejection) {
        let (raise, _) = in_place(&rejection, 0);
        let raise = format!("{raise}; ");
        let frame = frame_of(&mut self.client, header.frame());
        let text = split_string(body(&frame)).map_or(&[][..], |(text, _)| text);
        self.note_forwarding();
        message::put_query(&mut self.server.output, &[raise.as_bytes(), text]);
        self.batch += 1;
        self.replies.push(Request::query(Vec::new()), in_place(&rejection, raise.len()).1);
        self.unread = Some(Unread::Rejected(rejection, statement.clone()));
        self.message_done();
    }

    /// What passes fences that only observe, or is exempt, counts: at once, or when the server has found no mistake in it.
    pub(super) fn note_passed(&mut self, statements: &[Arc<Statement>], passed: Vec<PassedWrite>) {
        match statements.iter().any(|statement| statement.is_unread()) && !self.is_extended() {
            true => self.unread = Some(Unread::Passes(passed)),
            false => self.host.note_passed(passed),
        }
    }

    /// The server has begun to answer a text that the proxy could not read, and let pass.
    pub(super) fn note_read(&mut self, is_mistaken: bool) {
        if let Some(Unread::Passes(passed)) = self.unread.take_if(|unread| matches!(unread, Unread::Passes(_)))
            && !is_mistaken
        {
            self.host.note_passed(passed);
        }
    }

    /// The server has answered what stands in place of a rejected statement.
    pub(super) fn note_raised(&mut self, shift: usize, is_ours: bool) {
        if shift > 0
            && let Some(Unread::Rejected(rejection, statement)) = self.unread.take()
        {
            match is_ours {
                true => self.log_rejection(&rejection, &statement),
                false => self.host.note_query(),
            }
        }
    }

    /// A rejected message has been read to its end, and gone nowhere.
    pub(super) fn raise_discarded(&mut self) {
        match self.discarded.take() {
            // A Query would take the client's unnamed statement away. Replication sessions know nothing else.
            Some((frontend::FUNCTION_CALL, rejection)) if !self.replicates => {
                self.raise_in_pipeline(&rejection);
                self.put_sync(Audience::Client);
                self.close_reject_statement();
            }
            Some((frontend::QUERY | frontend::FUNCTION_CALL, rejection)) => self.raise_in_place(&rejection),
            Some((_, rejection)) => self.raise_in_pipeline(&rejection),
            None => (),
        }
    }

    fn raise_in_place(&mut self, rejection: &Rejection) {
        self.note_forwarding();
        let (raise, audience) = in_place(rejection, 0);
        message::put_query(&mut self.server.output, &[raise.as_bytes()]);
        self.batch += 1;
        self.replies.push(Request::query(Vec::new()), audience);
        self.message_done();
    }

    /// Puts messages that raise the error in place of one of the extended protocol. The client's own statements and
    /// portals, also the unnamed ones, stay as they are.
    fn raise_in_pipeline(&mut self, rejection: &Rejection) {
        let (raise, audience) = in_place(rejection, 0);
        self.note_forwarding();
        if rejection.ends_transaction() {
            self.run_in_pipeline("ROLLBACK", rollback(), &Audience::Proxy);
        }
        let output = &mut self.server.output;
        message::put_close_statement(output, REJECT_NAME);
        message::put_parse(output, REJECT_NAME, &raise);
        message::put_bind(output, REJECT_NAME, REJECT_NAME);
        message::put_execute(output, REJECT_NAME);
        self.replies.push(Request::CloseStatement { name: REJECT_NAME.into() }, Audience::Proxy);
        self.replies.push(Request::Parse { defines: None }, Audience::Proxy);
        self.replies.push(Request::bind(), Audience::Proxy);
        self.replies.push(Request::execute(), audience);
        self.reject_prepared = true;
        self.message_done();
    }

    /// After a Sync: the statement that raised the error must not stay at the server.
    pub(super) fn close_reject_statement(&mut self) {
        if std::mem::take(&mut self.reject_prepared) {
            message::put_close_statement(&mut self.server.output, REJECT_NAME);
            self.replies.push(Request::CloseStatement { name: REJECT_NAME.into() }, Audience::Proxy);
            self.put_sync(Audience::Proxy);
        }
    }

    /// Records that the message at hand is rejected.
    pub(super) fn log_rejection(&self, rejection: &Rejection, statement: &Statement) {
        self.host.note_query();
        self.host.note_rejected(rejection, statement);
    }
}
