//! Strings in which a statement may change `lease.fence` unseen, and the policies let it: what writes behind it was admitted
//! under the token from before, and the server checks in between that it is still the one.
//!
//! Must never let a write run whose check has not: it stands before it in the same string, whose first error ends it.

use super::judge::Need;
use super::raised::{checking_statement, own};
use super::rejection::may_be_another;
use super::replies::{Audience, Request};
use super::{Host, Session, frame_of};
use crate::fence::session::Token;
use crate::statement::{Statement, StatementKind};
use crate::wire::frame::{Header, split_string};
use crate::wire::message;
use std::sync::Arc;

/// A statement that runs before one of the client's, which has that index.
pub(super) struct Check {
    before: usize,
    text: String,
}

/// What has to be checked between these statements.
pub(super) fn checks(needs: &[Need], statements: &[Arc<Statement>]) -> Vec<Check> {
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

impl<H: Host> Session<H> {
    /// Forwards a string with these checks in it.
    pub(super) fn forward_checked(&mut self, header: Header, statements: Vec<Arc<Statement>>, checks: &[Check]) {
        let text = split_string(self.message_body(header)).map_or(Vec::new(), |(text, _)| text.to_vec());
        let Some(pieces) = pieces(&text, &statements, checks) else {
            let kind = statements.first().map_or(StatementKind::Unspecified, |statement| statement.kind);
            return self.raise_in_query(header, statements, 0, &may_be_another(kind));
        };
        frame_of(&mut self.client, header.frame());
        self.note_forwarding();
        self.host.note_query();
        message::put_query(&mut self.server.output, &pieces);
        let statements = with_checks(statements, checks);
        let defines = self.define_prepared(&statements);
        self.batch += 1;
        self.replies.push(Request::Query { statements, completed: 0, defines }, Audience::Client);
        self.message_done();
    }
}

/// The text with the checks in their places; None where a statement has none in it.
fn pieces<'t>(text: &'t [u8], statements: &[Arc<Statement>], checks: &'t [Check]) -> Option<Vec<&'t [u8]>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for check in checks {
        let to = statements.get(check.before)?.range.start;
        pieces.extend([text.get(from..to)?, check.text.as_bytes()]);
        from = to;
    }
    pieces.push(text.get(from..)?);
    Some(pieces)
}

fn with_checks(statements: Vec<Arc<Statement>>, checks: &[Check]) -> Vec<Arc<Statement>> {
    let mut checks = checks.iter().peekable();
    let mut all = Vec::with_capacity(statements.len() + checks.len());
    for (index, statement) in statements.into_iter().enumerate() {
        if checks.next_if(|check| check.before == index).is_some() {
            all.push(own());
        }
        all.push(statement);
    }
    all
}
