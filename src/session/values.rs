//! The types and values of a prepared statement's parameters, where its keys depend on them.
//!
//! Must never decode a value in another way than the server does.

use super::{Host, Session};
use crate::statement::Statement;
use crate::statement::rows::{ColumnValue, Declared};
use crate::wire::frame::{HEADER, Header, split_string};
use crate::wire::message::{self, Bound};
use std::sync::Arc;

impl<H: Host> Session<H> {
    /// The statement with the values that this Bind has for it. Of a message that is not wholly there they are unknown.
    pub(super) fn with_values(&self, header: Header, statement: &Statement) -> Arc<Statement> {
        let is_clear = |bytes: &[u8]| bytes.is_ascii() || self.lexing.keeps_text();
        let value = |value: Bound| match value {
            Bound::Text(bytes) | Bound::Binary(bytes) if !is_clear(bytes) || self.lexing_in_doubt(bytes) => None,
            Bound::Text(bytes) => ColumnValue::from_text(bytes),
            Bound::Binary(bytes) => ColumnValue::from_binary(bytes),
            Bound::Null => None,
        };
        let values: Vec<_> = self.values(header).into_iter().map(value).collect();
        Arc::new(statement.bound(&values))
    }

    /// A value that this Bind has for a key may be read in another way once what is under way is known.
    pub(super) fn has_key_in_doubt(&self, header: Header, statement: &Statement) -> bool {
        let policies = self.host.policies();
        let tables = || policies.resources.iter().flat_map(|resource| &resource.tables);
        let is_key = |column: &str| tables().any(|table| table.key.as_deref() == Some(column));
        self.values(header).into_iter().enumerate().any(|(index, value)| match value {
            Bound::Text(bytes) | Bound::Binary(bytes) => {
                self.lexing_in_doubt(bytes) && statement.uses_parameter(index + 1, is_key)
            }
            Bound::Null => false,
        })
    }

    fn values(&self, header: Header) -> Vec<Bound<'_>> {
        let body = self.client.input.get(HEADER..header.frame()).unwrap_or_default();
        let values = split_string(body).and_then(|(_portal, rest)| split_string(rest));
        values.and_then(|(_name, rest)| message::bound_values(rest)).unwrap_or_default()
    }
}

/// With the types that a Parse declares for its parameters, behind its text.
pub(super) fn with_types(statement: Arc<Statement>, types: &[u8]) -> Arc<Statement> {
    // Of others nobody asks, save of those that run nothing: a value that is bound to one of them may run code.
    if !statement.has_parameters() && !statement.runs_nothing() {
        return statement;
    }
    // The server refuses a list that is cut short.
    let types = message::parameter_types(types).unwrap_or_default();
    let declared = types.into_iter().map(Declared::from_oid).collect();
    Arc::new(Statement { declared, ..Arc::unwrap_or_clone(statement) })
}
