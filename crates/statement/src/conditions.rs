//! The rows that a query affects: values of columns, from VALUES, SET and conditions.
//!
//! Must never report a column if an affected row may have another value: unknown forms of conditions report nothing.
//! The server defines the meaning of the forms; `tests/behaviour/keys` compares them with it.

use super::arrays::{Array, unnested_columns, unnested_in};
use super::facts::parts;
use super::rows::{Beside, Column, ColumnValue, Distinct, MOST_VALUES, Purpose, Rows};
use super::values::{Cast, is_null, parameter, value};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    AExpr, AExprKind, BoolExprType, ColumnRef, InferClause, MergeMatchKind, MergeWhenClause, Node, OnConflictClause,
    ParamRef, RangeVar, ResTarget, SelectStmt, SubLink, SubLinkType,
};
use std::collections::{BTreeMap, HashMap};

/// Approximate maximum number of conditions and values to examine in one statement. Further ones are unknown. One
/// condition can count for many relations.
const MOST_STEPS: usize = 1 << 16;

/// For each column, the possible values of a row.
type ValuesByColumn<'n> = BTreeMap<&'n str, Vec<ColumnValue>>;

/// The relation whose rows are wanted, as conditions name its columns.
pub(super) struct Target<'n> {
    relation: &'n RangeVar,
    /// An unqualified column belongs to this relation, or is an error.
    unqualified: bool,
    /// Its alias in conditions, or its own name.
    name: &'n str,
}

/// Reads the values of one statement, and finds out whether the types of its parameters can be inferred.
#[derive(Default)]
pub(super) struct RowReader<'n> {
    steps: usize,
    /// Where a parameter gets its type from a column: by its position in the text.
    places: HashMap<i32, Use<'n>>,
    /// Every use of a parameter: number, position, and cast.
    uses: Vec<(i32, i32, Option<Cast>)>,
}

/// The source of a parameter's type.
#[derive(Clone, PartialEq)]
enum Use<'n> {
    Column(&'n str, &'n str, Column),
    ArrayOf(&'n str, &'n str, Column),
    Cast(Cast),
}

impl<'n> Target<'n> {
    pub(super) fn new(relation: &'n RangeVar, unqualified: bool) -> Self {
        let name = relation.alias.as_ref().map_or(&relation.relname, |alias| &alias.aliasname);
        Self { relation, unqualified, name }
    }

    /// The name of the column of this relation that `node` is.
    fn column(&self, node: &'n Node) -> Option<&'n str> {
        let Some(N::ColumnRef(ColumnRef { fields, .. })) = &node.node else { return None };
        let names = parts(fields);
        match names.as_slice() {
            // The reference is not only names, as in `t.*`.
            _ if names.len() != fields.len() => None,
            [column] if self.unqualified => Some(column),
            [table, column] if *table == self.name => Some(column),
            [schema, table, column] if self.is_called(schema, table) => Some(column),
            _ => None,
        }
    }

    fn is_called(&self, schema: &str, table: &str) -> bool {
        let RangeVar { schemaname, relname, alias, .. } = self.relation;
        alias.is_none() && !schemaname.is_empty() && schema == schemaname && table == relname
    }
}

impl<'n> RowReader<'n> {
    /// The rows that match a condition.
    pub(super) fn rows_where(&mut self, condition: &'n Option<Box<Node>>, target: &Target<'n>) -> Rows {
        rows(self.maybe(condition, target))
    }

    /// The rows that an UPDATE changes, with the values before and after it.
    pub(super) fn updated(
        &mut self,
        condition: &'n Option<Box<Node>>,
        assignments: &'n [Node],
        target: &Target<'n>,
    ) -> Rows {
        let before = self.maybe(condition, target);
        rows(self.assigned(before, assignments, target, &ValuesByColumn::new()))
    }

    /// The rows of an INSERT; `lists` follows VALUES.
    pub(super) fn inserted(
        &mut self,
        relation: &'n RangeVar,
        columns: &'n [Node],
        lists: &[&'n [Node]],
    ) -> Vec<(Column, Vec<ColumnValue>)> {
        let width = lists.first().map_or(0, |list| list.len());
        // `(row).*` represents several values.
        if lists.iter().any(|list| list.len() != width || list.iter().any(is_star)) {
            return Vec::new();
        }
        let column_values = |place| {
            let column = inserted_column(columns, place)?;
            let values = self.values(lists.iter().map(|list| &list[place]), relation, &column)?;
            Some((column, values))
        };
        (0..width).filter_map(column_values).collect()
    }

    /// The rows of an INSERT from a query.
    pub(super) fn inserted_from(
        &mut self,
        columns: &'n [Node],
        select: &'n SelectStmt,
    ) -> Vec<(Column, Vec<ColumnValue>)> {
        let values = unnested_columns(select).into_iter().enumerate();
        values.filter_map(|(place, values)| Some((inserted_column(columns, place)?, values?))).collect()
    }

    /// The existing rows that `ON CONFLICT DO UPDATE` changes. In the columns of the conflict target they equal the
    /// rows to insert. Other columns may have any value.
    pub(super) fn in_conflict(
        &mut self,
        conflict: &'n OnConflictClause,
        relation: &'n RangeVar,
        inserted: &[(Column, Vec<ColumnValue>)],
    ) -> Rows {
        let inserted: ValuesByColumn = conflict_columns(conflict, inserted);
        let indexed = conflict.infer.iter().flat_map(|infer| indexed(infer));
        let before: ValuesByColumn = indexed.filter_map(|name| Some((name, inserted.get(name)?.clone()))).collect();
        let target = Target::new(relation, false);
        let before = both(before, self.maybe(&conflict.where_clause, &target));
        rows(self.assigned(before, &conflict.target_list, &target, &inserted))
    }

    /// The existing rows that a branch of MERGE changes.
    pub(super) fn merged(
        &mut self,
        clause: &'n MergeWhenClause,
        join: &'n Option<Box<Node>>,
        target: &Target<'n>,
    ) -> Rows {
        let own = self.maybe(&clause.condition, target);
        let before = match clause.match_kind() {
            MergeMatchKind::MergeWhenMatched => both(self.maybe(join, target), own),
            // The join's condition does not hold for these rows.
            _ => own,
        };
        rows(self.assigned(before, &clause.target_list, target, &ValuesByColumn::new()))
    }

    fn maybe(&mut self, condition: &'n Option<Box<Node>>, target: &Target<'n>) -> ValuesByColumn<'n> {
        condition.as_ref().map(|condition| self.condition(condition, target)).unwrap_or_default()
    }

    fn condition(&mut self, node: &'n Node, target: &Target<'n>) -> ValuesByColumn<'n> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return ValuesByColumn::new();
        }
        match &node.node {
            Some(N::AExpr(comparison)) => self.comparison(comparison, target).into_iter().collect(),
            Some(N::SubLink(link)) => self.membership(link, target).into_iter().collect(),
            Some(N::BoolExpr(e)) => {
                let sides = e.args.iter().map(|side| self.condition(side, target));
                match e.boolop() {
                    BoolExprType::AndExpr => sides.reduce(both).unwrap_or_default(),
                    BoolExprType::OrExpr => sides.reduce(either).unwrap_or_default(),
                    BoolExprType::NotExpr | BoolExprType::Undefined => ValuesByColumn::new(),
                }
            }
            _ => ValuesByColumn::new(),
        }
    }

    fn comparison(&mut self, comparison: &'n AExpr, target: &Target<'n>) -> Option<(&'n str, Vec<ColumnValue>)> {
        if !matches!(parts(&comparison.name).as_slice(), ["="] | ["pg_catalog", "="]) {
            return None;
        }
        let (left, right) = (comparison.lexpr.as_deref()?, comparison.rexpr.as_deref()?);
        if comparison.kind() == AExprKind::AexprOpAny {
            let column = target.column(left)?;
            return Some((column, self.array(&Array::read(right)?, target.relation, column)?));
        }
        let (column, values) = match (comparison.kind(), &right.node) {
            (AExprKind::AexprOp, _) => match target.column(left) {
                Some(column) => (column, std::slice::from_ref(right)),
                None => (target.column(right)?, std::slice::from_ref(left)),
            },
            (AExprKind::AexprIn, Some(N::List(list))) => (target.column(left)?, list.items.as_slice()),
            _ => return None,
        };
        self.steps += values.len();
        let is_list = comparison.kind() == AExprKind::AexprIn;
        let values = values.iter().filter(|value| !(is_list && is_null(value)));
        Some((column, self.values(values, target.relation, &Column::Named(column.to_owned()))?))
    }

    /// `column IN (SELECT unnest(array))`, and the like.
    fn membership(&mut self, link: &'n SubLink, target: &Target<'n>) -> Option<(&'n str, Vec<ColumnValue>)> {
        let is_any = link.sub_link_type() == SubLinkType::AnySublink;
        if !is_any || !matches!(parts(&link.oper_name).as_slice(), [] | ["="] | ["pg_catalog", "="]) {
            return None;
        }
        let column = target.column(link.testexpr.as_deref()?)?;
        let Some(N::SelectStmt(select)) = &link.subselect.as_deref()?.node else { return None };
        let values = unnested_in(select)?.compared()?;
        self.steps += values.len();
        Some((column, values))
    }

    /// The values of an array that is compared with the column. Without a cast, the array has the column's type.
    fn array(&mut self, array: &Array<'n>, relation: &'n RangeVar, column: &'n str) -> Option<Vec<ColumnValue>> {
        let column = Column::Named(column.to_owned());
        if let Array::Items(items, None) = array {
            self.steps += items.len();
            return self.values(items.iter().filter(|item| !is_null(item)), relation, &column);
        }
        if let Array::Parameter(parameter, None) = array {
            let place = Use::ArrayOf(&relation.schemaname, &relation.relname, column);
            self.places.insert(parameter.location, place);
        }
        let values = array.compared()?;
        self.steps += values.len();
        Some(values)
    }

    /// Adds the values that SET assigns to the columns. Omits columns whose new value is unknown.
    fn assigned(
        &mut self,
        mut known: ValuesByColumn<'n>,
        assignments: &'n [Node],
        target: &Target<'n>,
        inserted: &ValuesByColumn<'n>,
    ) -> ValuesByColumn<'n> {
        for assignment in assignments {
            let Some(N::ResTarget(assignment)) = &assignment.node else { return ValuesByColumn::new() };
            let name = assignment.name.as_str();
            let Some(before) = known.remove(name) else { continue };
            if let Some(after) = self.assignment(assignment, target, inserted) {
                known.insert(name, union(before, after));
            }
        }
        known
    }

    fn assignment(
        &mut self,
        assignment: &'n ResTarget,
        target: &Target<'n>,
        inserted: &ValuesByColumn<'n>,
    ) -> Option<Vec<ColumnValue>> {
        let name = assignment.name.as_str();
        let value = assignment.val.as_deref().filter(|_| assignment.indirection.is_empty())?;
        if target.column(value) == Some(name) {
            return Some(Vec::new());
        }
        let excluded = Target { relation: target.relation, unqualified: false, name: "excluded" };
        if excluded.column(value) == Some(name) {
            return inserted.get(name).cloned();
        }
        self.values([value], target.relation, &Column::Named(name.to_owned()))
    }

    /// The values for a column, each once; `None` unless all are known.
    fn values(
        &mut self,
        nodes: impl IntoIterator<Item = &'n Node, IntoIter: Clone>,
        relation: &'n RangeVar,
        column: &Column,
    ) -> Option<Vec<ColumnValue>> {
        let nodes = nodes.into_iter();
        let values: Distinct = nodes.clone().map(value).collect::<Option<_>>()?;
        for parameter in nodes.filter_map(parameter) {
            let place = Use::Column(&relation.schemaname, &relation.relname, column.clone());
            self.places.insert(parameter.location, place);
        }
        Some(values.list())
    }

    /// Records that the statement uses a parameter, cast to that type.
    pub(super) fn used(&mut self, parameter: &ParamRef, cast: Option<Cast>) {
        self.uses.push((parameter.number, parameter.location, cast));
    }

    /// Marks the parameters that have the same type in every use.
    pub(super) fn settle<'r>(&self, rows: impl Iterator<Item = &'r mut Rows>) {
        let mut types: HashMap<usize, Option<Use>> = HashMap::new();
        for &(number, location, cast) in &self.uses {
            let Ok(number) = usize::try_from(number) else { continue };
            let found = cast.map(Use::Cast).or_else(|| self.places.get(&location).cloned());
            let known = types.entry(number).or_insert_with(|| found.clone());
            if *known != found {
                *known = None;
            }
        }
        let has_one_type = |number: &usize| types.get(number).is_some_and(Option::is_some);
        let is_array =
            |number: &usize| matches!(types.get(number), Some(Some(Use::Cast(Cast::Array(_)) | Use::ArrayOf(..))));
        for value in rows.flat_map(Rows::all_values) {
            match value {
                ColumnValue::Parameter { number, is_alone, .. } => *is_alone = has_one_type(number),
                ColumnValue::Elements(array) => {
                    array.is_alone = is_array(&array.number);
                    if let Purpose::Store(beside) = &mut array.purpose {
                        for other in beside {
                            if let Beside::Parameter { number, is_alone } = other {
                                *is_alone = is_array(number);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

fn rows(known: ValuesByColumn) -> Rows {
    Rows::new(known.into_iter().map(|(name, values)| (Column::Named(name.to_owned()), values)))
}

/// Combines two conditions that both hold. For each column, keeps the shorter list of values.
fn both<'n>(mut one: ValuesByColumn<'n>, other: ValuesByColumn<'n>) -> ValuesByColumn<'n> {
    for (column, values) in other {
        if one.get(column).is_none_or(|known| extent(known) > extent(&values)) {
            one.insert(column, values);
        }
    }
    one
}

/// Approximate number of values.
fn extent(values: &[ColumnValue]) -> usize {
    let of_one = |value: &ColumnValue| match value {
        ColumnValue::TooMany | ColumnValue::Elements(_) => MOST_VALUES,
        _ => 1,
    };
    values.iter().map(of_one).sum()
}

/// Combines two conditions that `OR` joins: at least one holds.
fn either<'n>(one: ValuesByColumn<'n>, mut other: ValuesByColumn<'n>) -> ValuesByColumn<'n> {
    let in_both = |(column, values): (&'n str, Vec<ColumnValue>)| Some((column, union(values, other.remove(column)?)));
    one.into_iter().filter_map(in_both).collect()
}

/// [`Rows::new`] removes duplicates.
fn union(mut values: Vec<ColumnValue>, mut others: Vec<ColumnValue>) -> Vec<ColumnValue> {
    values.append(&mut others);
    values
}

/// The column of an INSERT in which the value at that place is stored.
fn inserted_column(columns: &[Node], place: usize) -> Option<Column> {
    match columns.get(place).map(|column| &column.node) {
        None if columns.is_empty() => Some(Column::Placed(place)),
        Some(Some(N::ResTarget(target))) if target.indirection.is_empty() => Some(Column::Named(target.name.clone())),
        _ => None,
    }
}

/// The values to insert for the columns that `ON CONFLICT` names.
fn conflict_columns<'n>(conflict: &'n OnConflictClause, inserted: &[(Column, Vec<ColumnValue>)]) -> ValuesByColumn<'n> {
    let assigned = conflict.target_list.iter().filter_map(|assignment| match &assignment.node {
        Some(N::ResTarget(assignment)) => Some(assignment.name.as_str()),
        _ => None,
    });
    let by_name: HashMap<&str, &Vec<ColumnValue>> =
        inserted.iter().filter_map(|(column, values)| Some((column.name()?, values))).collect();
    let indexed = conflict.infer.iter().flat_map(|infer| indexed(infer));
    assigned.chain(indexed).filter_map(|name| Some((name, (*by_name.get(name)?).clone()))).collect()
}

/// The columns in which a conflicting row equals the row to insert.
fn indexed(infer: &InferClause) -> impl Iterator<Item = &str> {
    infer.index_elems.iter().filter_map(|element| match &element.node {
        Some(N::IndexElem(e)) if e.expr.is_none() && e.collation.is_empty() && e.opclass.is_empty() => {
            Some(e.name.as_str())
        }
        _ => None,
    })
}

fn is_star(node: &Node) -> bool {
    let fields = match &node.node {
        Some(N::ColumnRef(column)) => &column.fields,
        Some(N::AIndirection(e)) => &e.indirection,
        _ => return false,
    };
    fields.iter().any(|field| matches!(field.node, Some(N::AStar(_))))
}
