//! Arrays in the tree: those that a condition compares with a column, and those that an INSERT turns into rows.
//!
//! Must never report the values of a column if a longer array beside it may add NULL, nor mistake another function for
//! `unnest` without marking the statement ([`super::Statement::keys_by_path`]).

use super::bound::element_value;
use super::elements::of_text;
use super::facts::parts;
use super::rows::{ArrayParameter, Beside, ColumnValue, Distinct, ElementType, Purpose, UNNEST, ValueType};
use super::values::{array_cast, is_null, plain_value, value};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    ColumnRef, FuncCall, LimitOption, Node, ParamRef, RangeFunction, SelectStmt, SetOperation, a_const::Val,
};

/// An array in a statement.
pub(super) enum Array<'n> {
    /// `ARRAY[…]`, with the type to which the elements are cast.
    Items(&'n [Node], Option<ElementType>),
    /// A string, with the type of the elements.
    Text(&'n str, Option<ElementType>),
    /// A parameter, with the type of the elements.
    Parameter(&'n ParamRef, Option<ElementType>),
}

impl<'n> Array<'n> {
    /// None for an expression that the server computes, and for a cast to an unknown type.
    pub(super) fn read(node: &'n Node) -> Option<Self> {
        match node.node.as_ref()? {
            N::TypeCast(cast) => {
                let of = Some(array_cast(cast.type_name.as_ref()?)?);
                match Self::read(cast.arg.as_ref()?)? {
                    Array::Items(items, None) => Some(Array::Items(items, of)),
                    Array::Text(text, None) => Some(Array::Text(text, of)),
                    Array::Parameter(parameter, None) => Some(Array::Parameter(parameter, of)),
                    _ => None,
                }
            }
            N::AArrayExpr(array) => Some(Array::Items(&array.elements, None)),
            N::AConst(constant) => match constant.val.as_ref()? {
                Val::Sval(text) => Some(Array::Text(&text.sval, None)),
                _ => None,
            },
            N::ParamRef(parameter) => Some(Array::Parameter(parameter, None)),
            _ => None,
        }
    }

    /// The values to compare with, each once.
    pub(super) fn compared(&self) -> Option<Vec<ColumnValue>> {
        match *self {
            Array::Items(items, cast) => {
                let items = items.iter().filter(|item| !is_null(item));
                Some(items.map(|item| item_value(item, cast)).collect::<Option<Distinct>>()?.list())
            }
            Array::Text(text, of) => {
                let (kind, mut values) = (key_type(of)?, Distinct::default());
                of_text(text.as_bytes(), |element| {
                    element_value(element, kind, kind, true)?.into_iter().for_each(|value| values.add(value));
                    Some(())
                })?;
                Some(values.list())
            }
            Array::Parameter(parameter, of) => Some(vec![elements(parameter, of, Purpose::Compare)?]),
        }
    }

    /// The values to store, each once. `beside`: the arrays whose elements are stored in the same rows.
    fn stored(&self, beside: Vec<Beside>) -> Option<Vec<ColumnValue>> {
        let (count, values) = match *self {
            Array::Items(items, cast) => {
                let values = items.iter().map(|item| item_value(item, cast)).collect::<Option<Vec<_>>>()?;
                // The server finds a common type for all of them, in which '07' may be 7.
                let kind = |value: &ColumnValue| match value {
                    ColumnValue::Literal { kind, .. } => Some(*kind),
                    _ => None,
                };
                let first = kind(values.first()?)?;
                if !values.iter().all(|value| kind(value) == Some(first)) {
                    return None;
                }
                (items.len(), values.into_iter().collect())
            }
            // The server does not know the type of such a string.
            Array::Text(_, None) => return None,
            Array::Text(text, of) => {
                let (kind, mut count, mut values) = (key_type(of)?, 0, Distinct::default());
                of_text(text.as_bytes(), |element| {
                    count += 1;
                    values.add(element_value(element, kind, kind, false)??);
                    Some(())
                })?;
                (count, values)
            }
            Array::Parameter(parameter, of) => return Some(vec![elements(parameter, of, Purpose::Store(beside))?]),
        };
        beside.iter().all(|other| matches!(other, Beside::Count(other) if *other <= count)).then(|| values.list())
    }

    fn beside(&self) -> Option<Beside> {
        match *self {
            // A parameter may be an array, whose elements count.
            Array::Items(items, _) => {
                let is_one = |item: &Node| is_null(item) || matches!(value(item), Some(ColumnValue::Literal { .. }));
                items.iter().all(is_one).then_some(Beside::Count(items.len()))
            }
            Array::Text(_, None) => None,
            Array::Text(text, Some(_)) => {
                let mut count = 0;
                of_text(text.as_bytes(), |_| {
                    count += 1;
                    Some(())
                })?;
                Some(Beside::Count(count))
            }
            Array::Parameter(parameter, _) => Some(Beside::Parameter { number: number(parameter)?, is_alone: false }),
        }
    }
}

fn elements(parameter: &ParamRef, of: Option<ElementType>, purpose: Purpose) -> Option<ColumnValue> {
    let (number, cast) = (number(parameter)?, key_type(of)?);
    Some(ColumnValue::Elements(Box::new(ArrayParameter { number, cast, is_alone: false, purpose })))
}

fn number(parameter: &ParamRef) -> Option<usize> {
    usize::try_from(parameter.number).ok()
}

/// None: the elements cannot be keys. `Some(None)`: the statement does not tell their type.
fn key_type(of: Option<ElementType>) -> Option<Option<ValueType>> {
    match of {
        None => Some(None),
        Some(ElementType::Key(kind)) => Some(Some(kind)),
        Some(ElementType::Counted(_)) => None,
    }
}

fn item_value(item: &Node, cast: Option<ElementType>) -> Option<ColumnValue> {
    let Some(kind) = key_type(cast)? else { return value(item) };
    match plain_value(item)? {
        ColumnValue::Literal { text, .. } => Some(ColumnValue::Literal { text, kind: Some(kind) }),
        ColumnValue::Parameter { number, .. } => {
            Some(ColumnValue::Parameter { number, cast: Some(kind), is_alone: false })
        }
        _ => None,
    }
}

/// The array of `SELECT unnest(array)`, `SELECT * FROM unnest(array)` and the like.
pub(super) fn unnested_in(select: &SelectStmt) -> Option<Array<'_>> {
    let rows = UnnestedRows::read(select)?;
    match (rows.arrays.as_slice(), rows.columns.as_slice()) {
        ([array], [Source::Array(_)]) => Array::read(array).filter(|array| !matches!(array, Array::Text(_, None))),
        _ => None,
    }
}

/// The values of each column of `SELECT … FROM unnest(…)` and `SELECT unnest(…), …`; None for one that is not known.
pub(super) fn unnested_columns(select: &SelectStmt) -> Vec<Option<Vec<ColumnValue>>> {
    let Some(UnnestedRows { arrays, columns }) = UnnestedRows::read(select) else { return Vec::new() };
    let of_array = |wanted: usize| {
        let beside = arrays.iter().enumerate().filter(|(place, _)| *place != wanted);
        let beside = beside.map(|(_, array)| Array::read(array)?.beside()).collect::<Option<_>>()?;
        Array::read(arrays.get(wanted)?)?.stored(beside)
    };
    let values = |source| match source {
        Source::Array(place) => of_array(place),
        Source::Value(value) => Some(vec![value]),
        Source::Other => None,
    };
    columns.into_iter().map(values).collect()
}

/// A query whose rows consist of the elements of arrays, side by side.
struct UnnestedRows<'n> {
    arrays: Vec<&'n Node>,
    columns: Vec<Source>,
}

/// The source of a column.
enum Source {
    /// An array, by its place.
    Array(usize),
    /// One value for all rows.
    Value(ColumnValue),
    Other,
}

impl<'n> UnnestedRows<'n> {
    fn read(select: &'n SelectStmt) -> Option<Self> {
        if !is_plain(select) {
            return None;
        }
        match select.from_clause.as_slice() {
            [] => Self::of_targets(&select.target_list),
            [item] => match &item.node {
                Some(N::RangeFunction(function)) => Self::of_function(function, &select.target_list),
                _ => None,
            },
            _ => None,
        }
    }

    /// Several calls in the list of columns return as many rows as the longest array has elements, as does any other function that
    /// returns a set.
    fn of_targets(targets: &'n [Node]) -> Option<Self> {
        let mut rows = UnnestedRows { arrays: Vec::new(), columns: Vec::new() };
        for target in targets {
            let target = target_value(target)?;
            let source = match (unnest(target), cast_argument(target).and_then(unnest)) {
                (Some([array]), _) => {
                    rows.arrays.push(array);
                    Source::Array(rows.arrays.len() - 1)
                }
                (None, Some([array])) => {
                    rows.arrays.push(array);
                    Source::Other
                }
                (None, None) if is_single(target) => typed_value(target),
                _ => return None,
            };
            rows.columns.push(source);
        }
        (!rows.arrays.is_empty()).then_some(rows)
    }

    fn of_function(function: &'n RangeFunction, targets: &'n [Node]) -> Option<Self> {
        let [Node { node: Some(N::List(call)) }] = function.functions.as_slice() else { return None };
        let arrays = unnest(call.items.first()?)?;
        // The parser adds an empty node in place of a list of columns.
        if call.items.iter().skip(1).any(|columns| columns.node.is_some())
            || function.ordinality
            || function.is_rowsfrom
            || !function.coldeflist.is_empty()
        {
            return None;
        }
        let alias = function.alias.as_ref();
        let table = alias.map_or(UNNEST, |alias| alias.aliasname.as_str());
        let names = match alias {
            Some(alias) if !alias.colnames.is_empty() => parts(&alias.colnames),
            _ if arrays.len() == 1 => vec![table],
            _ => Vec::new(),
        };
        let mut columns = Vec::new();
        // If the elements are rows, `*` makes several columns of each.
        let mut is_after_star = false;
        for target in targets {
            let target = target_value(target)?;
            let Some(N::ColumnRef(ColumnRef { fields, .. })) = &target.node else {
                columns.push(if is_after_star { Source::Other } else { typed_value(target) });
                continue;
            };
            let (qualifier, last) = match fields.as_slice() {
                [last] => (None, last),
                [qualifier, last] => (Some(parts(std::slice::from_ref(qualifier)).first().copied()?), last),
                _ => return None,
            };
            if qualifier.is_some_and(|qualifier| qualifier != table) {
                return None;
            }
            match &last.node {
                Some(N::AStar(_)) => {
                    columns.extend((0..arrays.len()).map(Source::Array));
                    is_after_star = true;
                }
                Some(N::String(name)) => {
                    let place = names.iter().position(|it| *it == name.sval).filter(|place| *place < arrays.len());
                    columns.push(place.map_or(Source::Other, Source::Array));
                }
                _ => return None,
            }
        }
        Some(UnnestedRows { arrays: arrays.iter().collect(), columns })
    }
}

/// The query has a list of columns and FROM, and nothing else.
fn is_plain(select: &SelectStmt) -> bool {
    select.with_clause.is_none()
        && select.into_clause.is_none()
        && select.where_clause.is_none()
        && select.having_clause.is_none()
        && select.distinct_clause.is_empty()
        && select.group_clause.is_empty()
        && select.window_clause.is_empty()
        && select.values_lists.is_empty()
        && select.sort_clause.is_empty()
        && select.locking_clause.is_empty()
        && select.limit_offset.is_none()
        && select.limit_count.is_none()
        && matches!(select.limit_option(), LimitOption::Default | LimitOption::Undefined)
        && matches!(select.op(), SetOperation::SetopNone | SetOperation::Undefined)
}

fn target_value(target: &Node) -> Option<&Node> {
    match target.node.as_ref()? {
        N::ResTarget(target) if target.indirection.is_empty() => target.val.as_deref(),
        _ => None,
    }
}

fn cast_argument(node: &Node) -> Option<&Node> {
    match node.node.as_ref()? {
        N::TypeCast(cast) => cast.arg.as_deref(),
        _ => None,
    }
}

/// The arguments of a call of `unnest`.
fn unnest(node: &Node) -> Option<&[Node]> {
    let N::FuncCall(call) = node.node.as_ref()? else { return None };
    let FuncCall { funcname, args, agg_order, agg_filter, over, agg_within_group, agg_star, .. } = &**call;
    let is_bare = agg_order.is_empty() && agg_filter.is_none() && over.is_none() && !agg_within_group && !agg_star;
    let is_bare = is_bare && !call.agg_distinct && !call.func_variadic && !args.is_empty();
    matches!(parts(funcname).as_slice(), [UNNEST] | ["pg_catalog", UNNEST])
        .then_some(args.as_slice())
        .filter(|_| is_bare)
}

/// Returns true if the node is a single value of any kind.
fn is_single(node: &Node) -> bool {
    match &node.node {
        Some(N::AConst(_) | N::ParamRef(_) | N::SqlvalueFunction(_)) => true,
        Some(N::TypeCast(cast)) => cast.arg.as_deref().is_some_and(is_single),
        _ => false,
    }
}

/// A value whose type does not depend on the column that it is stored in.
fn typed_value(node: &Node) -> Source {
    match value(node) {
        Some(value @ (ColumnValue::Literal { kind: Some(_), .. } | ColumnValue::Parameter { cast: Some(_), .. })) => {
            Source::Value(value)
        }
        _ => Source::Other,
    }
}
