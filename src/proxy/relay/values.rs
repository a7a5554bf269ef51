//! What the parameters of a prepared statement are declared as and bound to, where its keys depend on them.
//!
//! Must never take bytes for text that the server reads otherwise.

use super::Relay;
use crate::statement::rows::{Declared, Value};
use crate::statement::{Encoding, Statement};
use crate::wire::frame::{HEADER, Header, split_string};
use crate::wire::message::{self, Bound};
use std::sync::Arc;

impl Relay {
    /// The statement with the values that this Bind has for it. Of a message that is not wholly there they are unknown.
    pub(super) fn with_values(&self, header: Header, statement: &Statement) -> Arc<Statement> {
        let values = self.client.reader.input.get(HEADER..header.frame()).and_then(|body| {
            let (_portal, rest) = split_string(body)?;
            let (_name, rest) = split_string(rest)?;
            message::bound_values(rest)
        });
        let is_clear = |bytes: &[u8]| bytes.is_ascii() || self.lexing.encoding == Encoding::Utf8;
        let value = |value: Bound| match value {
            Bound::Text(bytes) | Bound::Binary(bytes) if !is_clear(bytes) || self.lexing_in_doubt(bytes) => None,
            Bound::Text(bytes) => Value::from_text(bytes),
            Bound::Binary(bytes) => Value::from_binary(bytes),
            Bound::Null => None,
        };
        let values: Vec<_> = values.into_iter().flatten().map(value).collect();
        Arc::new(statement.bound(&values))
    }
}

/// With the types that a Parse declares for its parameters, behind its text.
pub(super) fn with_types(statement: Arc<Statement>, types: &[u8]) -> Arc<Statement> {
    if !statement.has_parameters() {
        return statement;
    }
    // The server refuses a list that is cut short.
    let types = message::parameter_types(types).unwrap_or_default();
    let declared = types.into_iter().map(Declared::from_oid).collect();
    Arc::new(Statement { declared, ..Arc::unwrap_or_clone(statement) })
}
