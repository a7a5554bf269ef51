//! Values in the tree: constants and parameters, and the types that they are cast to.
//!
//! Must never report an expression that the server computes as a value, nor confuse types.

use super::facts::parts;
use super::rows::{COUNTED_TYPES, ColumnValue, Declared, ElementType, KEY_TYPES, LONGEST_KEY, ValueType};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{Node, ParamRef, TypeName, a_const::Val};

/// A parameter without a cast.
pub(super) fn parameter(node: &Node) -> Option<&ParamRef> {
    match &node.node {
        Some(N::ParamRef(parameter)) => Some(parameter),
        _ => None,
    }
}

/// A constant or a parameter, possibly with a cast to a supported type.
pub(super) fn value(node: &Node) -> Option<ColumnValue> {
    match node.node.as_ref()? {
        N::TypeCast(cast) => {
            let kind = kind(cast.type_name.as_ref()?)?;
            match plain_value(cast.arg.as_ref()?)? {
                ColumnValue::Literal { text, .. } => Some(ColumnValue::Literal { text, kind: Some(kind) }),
                ColumnValue::Parameter { number, .. } => {
                    Some(ColumnValue::Parameter { number, cast: Some(kind), is_alone: false })
                }
                _ => None,
            }
        }
        _ => plain_value(node),
    }
}

/// Like [`value`], for an argument of EXECUTE.
pub(super) fn literal(node: &Node) -> Option<ColumnValue> {
    value(node).filter(|value| matches!(value, ColumnValue::Literal { .. }))
}

/// Like [`value`], without a cast.
pub(super) fn plain_value(node: &Node) -> Option<ColumnValue> {
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

/// The constant NULL.
pub(super) fn is_null(node: &Node) -> bool {
    matches!(&node.node, Some(N::AConst(constant)) if constant.isnull)
}

/// The type of a cast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cast {
    Value(ValueType),
    Array(ElementType),
}

/// A cast parameter, and the type of the cast.
pub(super) fn cast_parameter<'n>(
    argument: &'n Option<Box<Node>>,
    to: &Option<TypeName>,
) -> Option<(&'n ParamRef, Cast)> {
    let to = to.as_ref()?;
    let cast = kind(to).map(Cast::Value).or_else(|| array_cast(to).map(Cast::Array))?;
    Some((parameter(argument.as_ref()?)?, cast))
}

/// The type of the elements of an array type.
pub(super) fn array_cast(name: &TypeName) -> Option<ElementType> {
    if name.array_bounds.is_empty() || name.setof || name.pct_type {
        return None;
    }
    if let Some(kind) = plain_kind(name) {
        // A length modifier truncates texts.
        return name.typmods.is_empty().then_some(ElementType::Key(kind));
    }
    let names = parts(&name.names);
    let ([word] | ["pg_catalog", word]) = names.as_slice() else { return None };
    COUNTED_TYPES.iter().position(|known| known == word).map(ElementType::Counted)
}

/// A type in the list of PREPARE.
pub(super) fn declared(node: &Node) -> Declared {
    match &node.node {
        Some(N::TypeName(name)) => match (kind(name), array_cast(name)) {
            (Some(kind), _) => Declared::As(kind),
            (None, Some(of)) => Declared::Array(of),
            (None, None) => Declared::Otherwise,
        },
        _ => Declared::Otherwise,
    }
}

/// Like [`is_by_path`], for a type in the list of PREPARE.
pub(super) fn declares_by_path(node: &Node) -> bool {
    matches!(&node.node, Some(N::TypeName(name)) if is_by_path(name))
}

/// Returns true if the search path determines the type, and it may be a supported one. The grammar adds the schema to
/// types that it knows by key words, such as `integer`.
pub(super) fn is_by_path(name: &TypeName) -> bool {
    let is_counted = |word| !name.array_bounds.is_empty() && COUNTED_TYPES.contains(word);
    matches!(parts(&name.names).as_slice(), [word] if KEY_TYPES.contains(word) || is_counted(word))
}

/// The value type of a type name.
fn kind(name: &TypeName) -> Option<ValueType> {
    let is_more = name.setof || name.pct_type || !name.array_bounds.is_empty() || !name.typmods.is_empty();
    plain_kind(name).filter(|_| !is_more)
}

fn plain_kind(name: &TypeName) -> Option<ValueType> {
    match parts(&name.names).as_slice() {
        [word] | ["pg_catalog", word] => match *word {
            "int2" | "int4" | "int8" => Some(ValueType::Integer),
            "text" | "varchar" => Some(ValueType::Text),
            "uuid" => Some(ValueType::Uuid),
            _ => None,
        },
        _ => None,
    }
}
