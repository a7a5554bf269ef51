//! Types in a Parse and values in a Bind.

use fencegate_statement::rows::{ColumnValue, Declared, ValueType};
use fencegate_wire::message::{Bound, bound_values, parameter_types};

pub fn check(input: &[u8]) -> bool {
    types(input) | values(input)
}

fn types(input: &[u8]) -> bool {
    let Some(types) = parameter_types(input) else { return false };
    let written = types.iter().flat_map(|oid| oid.to_be_bytes());
    assert_eq!((types.len() as u16).to_be_bytes().into_iter().chain(written).collect::<Vec<_>>(), input);
    types.into_iter().map(Declared::from_oid).for_each(drop);
    true
}

fn values(input: &[u8]) -> bool {
    let Some(values) = bound_values(input) else { return false };
    let count = (values.len() as u16).to_be_bytes();
    let formats = values.iter().flat_map(|value| u16::from(matches!(value, Bound::Binary(_))).to_be_bytes());
    let written = values.iter().flat_map(|value| match value {
        Bound::Null => (-1i32).to_be_bytes().to_vec(),
        Bound::Text(bytes) | Bound::Binary(bytes) => [&(bytes.len() as i32).to_be_bytes(), *bytes].concat(),
    });
    let again: Vec<u8> = count.into_iter().chain(formats).chain(count).chain(written).chain([0, 0]).collect();
    assert_eq!(bound_values(&again), Some(values.clone()));
    assert_eq!(bound_values(&[input, b"\0"].concat()), None);
    values.into_iter().for_each(key);
    true
}

/// A bound value has at most one text as a key of each type, and that text denotes the same key.
fn key(bound: Bound) {
    let value = match bound {
        Bound::Null => None,
        Bound::Text(bytes) => ColumnValue::from_text(bytes),
        Bound::Binary(bytes) => ColumnValue::from_binary(bytes),
    };
    for kind in [ValueType::Integer, ValueType::Text, ValueType::Uuid] {
        let Some(text) = value.as_ref().and_then(|value| value.in_column(kind)) else { continue };
        let again = ColumnValue::Literal { text: text.clone(), kind: Some(kind) };
        assert_eq!(again.in_column(kind), Some(text));
    }
}
