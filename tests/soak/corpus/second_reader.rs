//! A second parser's analysis of a text: which relations its statements write, and which values a row has before or
//! after.
//!
//! It reports only certain results, so the verdict must include each of them.

use fencegate_statement::Operation;
use fencegate_statement::rows::Column;
use sqlparser::ast::{
    Assignment, AssignmentTarget, BinaryOperator, CopySource, Delete, Expr, FromTable, Insert, Merge, MergeAction,
    ObjectName, ObjectType, OnConflictAction, OnInsert, SetExpr, Statement, TableFactor, TableObject, Update, Value,
    Visit, Visitor,
};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use std::ops::ControlFlow;

/// A relation that is written.
#[derive(Debug)]
pub struct Target {
    pub schema: Option<String>,
    pub name: String,
    pub operation: Operation,
    /// Possible values of some columns of a row, before or after the write.
    pub values: Vec<(Column, String)>,
}

/// Returns None if the parser cannot parse the text.
pub fn targets(text: &str) -> Option<Vec<Target>> {
    let statements = Parser::parse_sql(&PostgreSqlDialect {}, text).ok()?;
    let mut reader = Reader(Vec::new());
    for statement in statements.iter().filter(|statement| is_run_with_its_text(statement)) {
        let ControlFlow::Continue(()) = statement.visit(&mut reader);
    }
    Some(reader.0)
}

fn is_run_with_its_text(statement: &Statement) -> bool {
    match statement {
        Statement::Explain { analyze, options, .. } => *analyze && options.is_none(),
        Statement::Prepare { .. } | Statement::CreateFunction(_) | Statement::CreateProcedure { .. } => false,
        _ => true,
    }
}

struct Reader(Vec<Target>);

impl Visitor for Reader {
    type Break = std::convert::Infallible;

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<Self::Break> {
        match statement {
            Statement::Insert(insert) => self.insert(insert),
            Statement::Update(update) => self.update(update),
            Statement::Delete(delete) => self.delete(delete),
            Statement::Merge(merge) => self.merge(merge),
            Statement::Truncate(truncate) => {
                truncate.table_names.iter().for_each(|table| self.add(&table.name, Operation::Truncate, Vec::new()));
            }
            Statement::Copy { source: CopySource::Table { table_name, .. }, to: false, .. } => {
                self.add(table_name, Operation::Insert, Vec::new());
            }
            Statement::AlterTable(alter) => self.add(&alter.name, Operation::Ddl, Vec::new()),
            Statement::Drop { object_type: ObjectType::Table, names, .. } => {
                names.iter().for_each(|name| self.add(name, Operation::Ddl, Vec::new()));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Reader {
    fn add(&mut self, relation: &ObjectName, operation: Operation, values: Vec<(Column, String)>) {
        let parts: Option<Vec<_>> = relation.0.iter().map(|part| part.as_ident().map(folded)).collect();
        if let Some(mut parts) = parts
            && let Some(name) = parts.pop()
        {
            self.0.push(Target { schema: parts.pop(), name, operation, values });
        }
    }

    fn insert(&mut self, insert: &Insert) {
        let TableObject::TableName(table) = &insert.table else { return };
        let column = |place: usize| match insert.columns.get(place) {
            Some(name) => last(name),
            None => Some(Column::Placed(place)).filter(|_| insert.columns.is_empty()),
        };
        let mut values = Vec::new();
        if let Some(source) = &insert.source
            && let SetExpr::Values(rows) = source.body.as_ref()
            && source.with.is_none()
        {
            let cells = rows.rows.iter().flat_map(|row| row.content.iter().enumerate());
            values.extend(cells.filter_map(|(place, value)| Some((column(place)?, literal(value)?))));
        }
        self.add(table, Operation::Insert, values);
        if let Some(OnInsert::OnConflict(conflict)) = &insert.on
            && let OnConflictAction::DoUpdate(update) = &conflict.action
        {
            self.add(table, Operation::Update, assigned(&update.assignments));
        }
    }

    fn update(&mut self, update: &Update) {
        let TableFactor::Table { name, .. } = &update.table.relation else { return };
        let mut values = assigned(&update.assignments);
        if update.from.is_none() {
            values.extend(update.selection.iter().flat_map(wanted));
        }
        self.add(name, Operation::Update, values);
    }

    fn delete(&mut self, delete: &Delete) {
        let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
        let [table] = tables.as_slice() else { return };
        let TableFactor::Table { name, .. } = &table.relation else { return };
        let values = match delete.using {
            None => delete.selection.iter().flat_map(wanted).collect(),
            Some(_) => Vec::new(),
        };
        self.add(name, Operation::Delete, values);
    }

    fn merge(&mut self, merge: &Merge) {
        let TableFactor::Table { name, .. } = &merge.table else { return };
        for clause in &merge.clauses {
            let operation = match &clause.action {
                MergeAction::Insert(_) => Operation::Insert,
                MergeAction::Update(_) => Operation::Update,
                MergeAction::Delete { .. } => Operation::Delete,
                MergeAction::DoNothing { .. } => continue,
            };
            self.add(name, operation, Vec::new());
        }
    }
}

/// Folds and truncates the name like PostgreSQL.
fn folded(name: &sqlparser::ast::Ident) -> String {
    let mut folded = match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    };
    while folded.len() > 63 {
        folded.pop();
    }
    folded
}

fn last(name: &ObjectName) -> Option<Column> {
    name.0.last()?.as_ident().map(|name| Column::Named(folded(name)))
}

fn assigned(assignments: &[Assignment]) -> Vec<(Column, String)> {
    let assigned = assignments.iter().filter_map(|assignment| match &assignment.target {
        AssignmentTarget::ColumnName(column) if column.0.len() == 1 => {
            Some((last(column)?, literal(&assignment.value)?))
        }
        _ => None,
    });
    assigned.collect()
}

/// The values that a condition requires in columns of the only relation.
fn wanted(condition: &Expr) -> Vec<(Column, String)> {
    match condition {
        Expr::Nested(inner) => wanted(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => [wanted(left), wanted(right)].concat(),
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => match (left.as_ref(), literal(right)) {
            (Expr::Identifier(column), Some(value)) => vec![(Column::Named(folded(column)), value)],
            _ => Vec::new(),
        },
        Expr::InList { expr, list, negated: false } => match expr.as_ref() {
            Expr::Identifier(column) => {
                list.iter().filter_map(|value| Some((Column::Named(folded(column)), literal(value)?))).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn literal(value: &Expr) -> Option<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => Some(digits.clone()),
            Value::SingleQuotedString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}
