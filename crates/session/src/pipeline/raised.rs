//! Statements of the proxy by which the server raises an error of the proxy, and how the proxy recognizes that error.
//!
//! Must never let a statement succeed that rejects another one: the server would run the statements behind it.

use super::request::Request;
use crate::judge::need::PassedWrite;
use crate::rejection::Rejection;
use fencegate_fence::session::Token;
use fencegate_statement::{Statement, StatementKind, TransactionEffect};
use fencegate_wire::error::ErrorText;
use std::sync::Arc;

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

/// Returns true if the server's next answer to this is about a statement of the proxy.
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

/// Returns true if the server's message, in any language, is about the statement that raises this error.
pub fn is_raised(message: &[u8], error: &ErrorText) -> bool {
    let name = unknown_parameter(error);
    message.windows(name.len()).any(|part| part == name.as_bytes())
}

fn unknown_parameter(error: &ErrorText) -> String {
    format!("fencegate_{}", error.code.to_ascii_lowercase())
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
