//! Values in the tree: constants and parameters, and the types that they are cast to.
//!
//! Must never take an expression that the server computes for a value, nor one type for another.

use super::facts::parts;
use super::rows::{ColumnValue, Declared, KEY_TYPES, LONGEST_KEY, ValueType};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{Node, ParamRef, TypeName, a_const::Val};

/// A parameter without a cast.
pub(super) fn parameter(node: &Node) -> Option<&ParamRef> {
    match &node.node {
        Some(N::ParamRef(parameter)) => Some(parameter),
        _ => None,
    }
}

/// A constant or a parameter, also with a cast to a type in which values can be told.
pub(super) fn value(node: &Node) -> Option<ColumnValue> {
    match node.node.as_ref()? {
        N::TypeCast(cast) => {
            let kind = kind(cast.type_name.as_ref()?)?;
            match plain_value(cast.arg.as_ref()?)? {
                ColumnValue::Literal { text, .. } => Some(ColumnValue::Literal { text, kind: Some(kind) }),
                ColumnValue::Parameter { number, .. } => {
                    Some(ColumnValue::Parameter { number, cast: Some(kind), is_alone: false })
                }
                ColumnValue::Binary(_) => None,
            }
        }
        _ => plain_value(node),
    }
}

/// As [`value`], of an argument of EXECUTE.
pub(super) fn literal(node: &Node) -> Option<ColumnValue> {
    value(node).filter(|value| matches!(value, ColumnValue::Literal { .. }))
}

fn plain_value(node: &Node) -> Option<ColumnValue> {
    let (text, kind) = match node.node.as_ref()? {
        N::ParamRef(parameter) => {
            let number = usize::try_from(parameter.number).ok()?;
            return Some(ColumnValue::Parameter { number, cast: None, is_alone: false });
        }
        N::AConst(constant) => match constant.val.as_ref()? {
            Val::Ival(integer) => (integer.ival.to_string(), Some(ValueType::Integer)),
            Val::Fval(number) => (number.fval.parse::<i64>().ok()?.to_string(), Some(ValueType::Integer)),
            Val::Sval(text) => (text.sval.clone(), None),
            Val::Boolval(_) | Val::Bsval(_) => return None,
        },
        _ => return None,
    };
    (text.len() <= LONGEST_KEY).then_some(ColumnValue::Literal { text, kind })
}

/// A cast parameter, and the type of the cast.
pub(super) fn cast_parameter<'n>(
    argument: &'n Option<Box<Node>>,
    to: &Option<TypeName>,
) -> Option<(&'n ParamRef, ValueType)> {
    Some((parameter(argument.as_ref()?)?, kind(to.as_ref()?)?))
}

/// A type in the list of PREPARE.
pub(super) fn declared(node: &Node) -> Declared {
    match &node.node {
        Some(N::TypeName(name)) => kind(name).map_or(Declared::Otherwise, Declared::As),
        _ => Declared::Otherwise,
    }
}

/// As [`is_by_path`], of a type in the list of PREPARE.
pub(super) fn declares_by_path(node: &Node) -> bool {
    matches!(&node.node, Some(N::TypeName(name)) if is_by_path(name))
}

/// The search path says which type it is, and it may be one in which values can be told. Those that the grammar knows by
/// key words, such as `integer`, come from it with their schema.
pub(super) fn is_by_path(name: &TypeName) -> bool {
    matches!(parts(&name.names).as_slice(), [word] if KEY_TYPES.contains(word))
}

/// The kind of a type as it is written.
fn kind(name: &TypeName) -> Option<ValueType> {
    let is_more = name.setof || name.pct_type || !name.array_bounds.is_empty() || !name.typmods.is_empty();
    let names = parts(&name.names);
    match names.as_slice() {
        _ if is_more => None,
        [word] | ["pg_catalog", word] => match *word {
            "int2" | "int4" | "int8" => Some(ValueType::Integer),
            "text" | "varchar" => Some(ValueType::Text),
            "uuid" => Some(ValueType::Uuid),
            _ => None,
        },
        _ => None,
    }
}
