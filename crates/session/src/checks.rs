//! Strings in which a statement may change `lease.fence` unseen, where the policies permit that: the writes behind it were
//! admitted under the token from before. The server checks in between that the token is still the same.
//!
//! Must never let a write run before its check: the check precedes it in the same string, whose first error ends the string.

use super::judge::need::Need;
use super::pipeline::{checking_statement, own_statement};
use fencegate_fence::session::Token;
use fencegate_statement::Statement;
use std::sync::Arc;

/// A statement of the proxy that runs before the client's statement at that index.
pub(super) struct Check {
    before: usize,
    text: String,
}

/// The checks that have to run between these statements.
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

/// The text with the checks in their places; `None` where a statement has no place in it.
pub(super) fn pieces<'t>(text: &'t [u8], statements: &[Arc<Statement>], checks: &'t [Check]) -> Option<Vec<&'t [u8]>> {
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
pub(super) fn with_checks(statements: Vec<Arc<Statement>>, checks: &[Check]) -> Vec<Arc<Statement>> {
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
