//! The proxy's own messages among the client's: questions, rejections, Sync and Flush; statements by which the server
//! raises an error of the proxy; and checks of the token between the statements of a string, where one may change
//! `lease.fence` unseen.
//!
//! Must never
//! - let the client see an answer to them, except an error;
//! - touch the client's own statements and portals, not even the unnamed ones;
//! - let a statement that rejects another one succeed: the server would run the statements behind it;
//! - let a write run before its check: the check precedes it in the same string, which the first error ends.

use super::{Audience, Part, Pipeline, Request};
use crate::judge::need::{Need, PassedWrite};
use crate::rejection::Rejection;
use bytes::BytesMut;
use fencegate_fence::session::Token;
use fencegate_statement::{Statement, StatementKind, TransactionEffect};
use fencegate_wire::error::ErrorText;
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

    /// Sends messages that raise an error in place of an extended-protocol message. `rolls_back`: the rejected
    /// statement would have ended the transaction.
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

    /// After a Sync, closes the statement that raised an error: it must not stay at the server.
    pub fn close_rejection(&mut self, output: &mut BytesMut) {
        if std::mem::take(&mut self.rejection_prepared) {
            message::put_close_statement(output, REJECTION);
            self.push(Request::CloseStatement { name: REJECTION.into() }, Audience::Proxy);
            self.put_sync(output, Audience::Proxy);
        }
    }

    /// Returns true once while the queue is full and a Flush must make the server answer: it may buffer its answers,
    /// and the proxy reads no more until it gets some.
    pub fn flush_is_due(&mut self) -> bool {
        let is_due = self.is_full() && self.needs_flush() && !self.flush_sent;
        self.flush_sent |= is_due;
        is_due
    }
}

/// The verdict on a text that the proxy cannot read. It is reported once the server has found no syntax error in the text.
pub enum UnreadVerdict {
    /// The text is rejected.
    Rejected(Rejection, Arc<Statement>),
    /// The text was forwarded when nothing was owed.
    Passed(Vec<PassedWrite>),
}

/// A statement of the proxy that ends no transaction.
pub fn own_statement() -> Arc<Statement> {
    Arc::new(Statement { kind: StatementKind::OfProxy, ..Statement::default() })
}

/// The proxy's ROLLBACK.
pub fn rollback() -> Arc<Statement> {
    Arc::new(Statement {
        kind: StatementKind::OfProxy,
        transaction: TransactionEffect::Rollback,
        ..Statement::default()
    })
}

/// Returns true if the server's next answer to this is for a statement of the proxy.
pub fn is_own(request: &Request) -> bool {
    let at_hand = match request {
        Request::Query { statements, completed, .. } => statements.get(*completed),
        Request::Execute { statement, .. } => Some(statement),
        _ => None,
    };
    at_hand.is_some_and(|statement| statement.kind == StatementKind::OfProxy)
}

/// A statement that makes the server raise an error, so that the server's transaction state is the truth. No server knows the
/// parameter, and no session can define it: its name has no dot. The server logs only this text and the parameter's name.
/// ASCII without quotes or backslashes, which means the same in every encoding and lexing mode.
pub fn raising_statement(error: &ErrorText) -> String {
    format!("SET {} = 1", unknown_parameter(error))
}

/// A statement that raises LF003 unless the session presents these tokens. Its functions are qualified, so that the search
/// path does not matter. ASCII without backslashes; names of resources have neither quotes nor dollar signs.
pub fn checking_statement(tokens: &[(&str, Token)]) -> String {
    let check = |(resource, token): &(&str, Token)| {
        format!(
            "IF pg_catalog.int8eq(fencegate.token('{resource}'), {token}) IS NOT TRUE THEN RAISE EXCEPTION USING \
             ERRCODE='LF003', MESSAGE='an earlier statement of the same string has changed lease.fence', \
             DETAIL='resource={resource} presented={token}', HINT='Set the token in a separate query.'; END IF; "
        )
    };
    format!("DO LANGUAGE plpgsql $fencegate$BEGIN {}END$fencegate$", tokens.iter().map(check).collect::<String>())
}

/// Returns true if the server's message, in any language, comes from the statement that raises this error.
pub fn is_raised(message: &[u8], error: &ErrorText) -> bool {
    let name = unknown_parameter(error);
    message.windows(name.len()).any(|part| part == name.as_bytes())
}

fn unknown_parameter(error: &ErrorText) -> String {
    format!("fencegate_{}", error.code.to_ascii_lowercase())
}

/// A statement of the proxy that runs before the client's statement at that index.
pub(crate) struct Check {
    before: usize,
    text: String,
}

/// The checks that have to run between these statements.
pub(crate) fn checks(needs: &[Need], statements: &[Arc<Statement>]) -> Vec<Check> {
    let presumed: Vec<&Need> = needs.iter().filter(|need| need.presumed).collect();
    let check = |(before, statement): (usize, &Arc<Statement>)| {
        let of_it = presumed.iter().filter(|need| Arc::ptr_eq(&need.statement, statement));
        let tokens: Vec<(&str, Token)> = of_it.map(|need| (need.resource.name.as_str(), need.token)).collect();
        (!tokens.is_empty()).then(|| Check { before, text: format!("{}; ", checking_statement(&tokens)) })
    };
    match presumed.is_empty() {
        true => Vec::new(),
        false => statements.iter().enumerate().filter_map(check).collect(),
    }
}

/// The text with the checks in their places; `None` if a statement's place in it is unknown.
pub(crate) fn pieces<'t>(text: &'t [u8], statements: &[Arc<Statement>], checks: &'t [Check]) -> Option<Vec<&'t [u8]>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for check in checks {
        let to = statements.get(check.before)?.range.start;
        pieces.extend([text.get(from..to)?, check.text.as_bytes()]);
        from = to;
    }
    pieces.push(text.get(from..)?);
    Some(pieces)
}

/// The statements of that text.
pub(crate) fn with_checks(statements: Vec<Arc<Statement>>, checks: &[Check]) -> Vec<Arc<Statement>> {
    let mut checks = checks.iter().peekable();
    let mut all = Vec::with_capacity(statements.len() + checks.len());
    for (index, statement) in statements.into_iter().enumerate() {
        if checks.next_if(|check| check.before == index).is_some() {
            all.push(own_statement());
        }
        all.push(statement);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_error_is_recognized_in_any_language() {
        let error = ErrorText::new("LF004", "a $f$ b'\\").hint("é\n; DROP");
        assert_eq!(raising_statement(&error), "SET fencegate_lf004 = 1");
        assert!(is_raised("paramètre « fencegate_lf004 » non reconnu".as_bytes(), &error));
        assert!(!is_raised(b"unrecognized configuration parameter \"fencegate_lf001\"", &error));
    }
}
