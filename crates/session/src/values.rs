//! The types and values of a prepared statement's parameters, where its keys depend on them.
//!
//! Must never decode a value in another way than the server does.

use super::pipeline::Pipeline;
use super::settings::Settings;
use super::side::Side;
use fencegate_policy::PolicySet;
use fencegate_statement::Statement;
use fencegate_statement::rows::{ColumnValue, Declared};
use fencegate_wire::frame::{HEADER, Header, split_string};
use fencegate_wire::message::{self, Bound};
use std::sync::Arc;

/// The values of a Bind; none if the message has not arrived whole.
pub(super) fn bound_values(client: &Side, header: Header) -> Vec<Bound<'_>> {
    let body = client.input.get(HEADER..header.frame()).unwrap_or_default();
    let values = split_string(body).and_then(|(_portal, rest)| split_string(rest));
    values.and_then(|(_name, rest)| message::bound_values(rest)).unwrap_or_default()
}

/// The statement with the values that a Bind gives its parameters.
pub(super) fn with_values(
    statement: &Statement,
    values: Vec<Bound>,
    settings: &Settings,
    pipeline: &Pipeline,
) -> Arc<Statement> {
    let is_clear = |bytes: &[u8]| bytes.is_ascii() || settings.lexing.keeps_text();
    let value = |value: Bound| match value {
        Bound::Text(bytes) | Bound::Binary(bytes) if !is_clear(bytes) || pipeline.leaves_in_doubt(bytes) => None,
        Bound::Text(bytes) => ColumnValue::from_text(bytes),
        Bound::Binary(bytes) => ColumnValue::from_binary(bytes),
        Bound::Null => None,
    };
    let values: Vec<_> = values.into_iter().map(value).collect();
    Arc::new(statement.bound(&values))
}

/// Returns true if a value for a key may be read in another way once the effect of forwarded messages is known.
pub(super) fn has_key_in_doubt(
    statement: &Statement,
    values: &[Bound],
    policies: &PolicySet,
    pipeline: &Pipeline,
) -> bool {
    let tables = || policies.resources.iter().flat_map(|resource| &resource.tables);
    let is_key = |column: &str| tables().any(|table| table.key.as_deref() == Some(column));
    values.iter().enumerate().any(|(index, value)| match value {
        Bound::Text(bytes) | Bound::Binary(bytes) => {
            pipeline.leaves_in_doubt(bytes) && statement.uses_parameter(index + 1, is_key)
        }
        Bound::Null => false,
    })
}

/// The statement with the types that a Parse declares for its parameters.
pub(super) fn with_types(statement: Arc<Statement>, types: &[u8]) -> Arc<Statement> {
    // The types matter for keys, and where a statement runs nothing: a value that is bound to it may run code.
    if !statement.has_parameters() && !statement.runs_nothing() {
        return statement;
    }
    // The server refuses a truncated list.
    let types = message::parameter_types(types).unwrap_or_default();
    let declared = types.into_iter().map(Declared::from_oid).collect();
    Arc::new(Statement { declared, ..Arc::unwrap_or_clone(statement) })
}
