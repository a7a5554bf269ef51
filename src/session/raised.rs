//! The proxy's own statements: those by which the server raises an error of ours, and how that error is known again.
//!
//! Must never let one succeed by which a statement is rejected: what stands behind it would run.

use super::replies::Request;
use crate::fence::session::Token;
use crate::statement::{Statement, StatementKind, TransactionEffect};
use crate::wire::error::ErrorText;
use std::sync::Arc;

/// A statement of the proxy's that ends no transaction.
pub fn own() -> Arc<Statement> {
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

/// The server's next answer to this is about a statement of the proxy's.
pub fn is_own(request: &Request) -> bool {
    let at_hand = match request {
        Request::Query { statements, completed, .. } => statements.get(*completed),
        Request::Execute { statement, .. } => Some(statement),
        _ => None,
    };
    at_hand.is_some_and(|statement| statement.kind == StatementKind::OfProxy)
}

/// A statement that makes the server raise an error in place of this one, so that its transaction state is the truth. No
/// server knows the parameter, and no session can make it known: its name has no dot. All that the server logs is this text
/// and the parameter's name. In ASCII without quotes or backslashes: it means the same in every encoding and lexing mode.
pub fn raising_statement(error: &ErrorText) -> String {
    format!("SET {} = 1", unknown_parameter(error))
}

/// A statement that raises LF003 unless the session presents these tokens. What it calls stands there with its schema, so that
/// no search path leads elsewhere. In ASCII without backslashes; no name of a resource has a quote or a dollar sign.
pub fn checking_statement(tokens: &[(&str, Token)]) -> String {
    let check = |(resource, token): &(&str, Token)| {
        format!(
            "IF pg_catalog.int8eq(fencegate.token('{resource}'), {token}) IS NOT TRUE THEN RAISE EXCEPTION USING \
             ERRCODE='LF003', MESSAGE='a statement before in the same string has changed lease.fence', \
             DETAIL='resource={resource} presented={token}', HINT='Set the token in a string of its own.'; END IF; "
        )
    };
    format!("DO LANGUAGE plpgsql $fencegate$BEGIN {}END$fencegate$", tokens.iter().map(check).collect::<String>())
}

/// The server's message, in whatever language, is about the statement that raises this error.
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
    fn what_raises_an_error_is_known_again() {
        let error = ErrorText::new("LF004", "a $f$ b'\\").hint("é\n; DROP");
        assert_eq!(raising_statement(&error), "SET fencegate_lf004 = 1");
        assert!(is_raised("paramètre « fencegate_lf004 » non reconnu".as_bytes(), &error));
        assert!(!is_raised(b"unrecognized configuration parameter \"fencegate_lf001\"", &error));
    }
}
