//! The fast reader: single SELECT, INSERT, UPDATE and DELETE statements, from the parser's summary.
//!
//! The summary costs a fifth of the tree and takes deeper expressions, but it leaves things out. This must never accept
//! a text that may hold one of them: it answers None, and the tree is read instead.

use super::{FunctionName, Operation, RelationName, Statement, StatementKind};
use pg_query::ParserOptions;
use pg_query::protobuf::summary_result::Context;
use std::ops::Range;

/// Words that may indicate clauses which the summary does not show: `ON CONFLICT DO UPDATE`, locking clauses, operators
/// of another schema, writes in WITH, and the arguments of `set_config`. The tree usually shows that they do not.
const WORDS_FOR_THE_TREE: [&[u8]; 5] = [b"config", b"conflict", b"for", b"operator", b"with"];
/// The summary does not show the function calls of RETURNING.
const RETURNING: &[u8] = b"returning";

/// Reads the text if it is one plain statement; None says nothing about it.
pub(super) fn read(sql: &str, options: ParserOptions) -> Option<Statement> {
    let range = trim(sql, 0..sql.trim_ascii_end().trim_end_matches(';').len());
    let text = sql.get(range.clone())?;
    if text.contains(';') || needs_the_tree(text) {
        return None;
    }
    let (_, kind, type_name, operation) = start_of(text)?;
    let summary = pg_query::summary(sql, options, -1).ok()?.protobuf;
    if !summary.statement_types.iter().all(|found| found == type_name || found == "SelectStmt") {
        return None;
    }
    let mut statement = Statement { range, kind, ..Statement::default() };
    for table in &summary.tables {
        if table.context == Context::Select as i32 {
            statement.reads.push(relation(&table.schema_name, &table.table_name));
            continue;
        }
        // A second table, or one in a SELECT, is none that this reader understands.
        if !statement.writes.is_empty() || table.context != Context::Dml as i32 {
            return None;
        }
        statement.add_write(relation(&table.schema_name, &table.table_name), operation?);
    }
    if operation.is_some() == statement.writes.is_empty() {
        return None;
    }
    for function in summary.functions {
        let schema = Some(function.schema_name).filter(|schema| !schema.is_empty());
        statement.add_call(FunctionName { schema, name: function.function_name });
    }
    statement.settle();
    Some(statement)
}

fn relation(schema: &str, name: &str) -> RelationName {
    RelationName { schema: Some(schema.to_owned()).filter(|schema| !schema.is_empty()), name: name.to_owned() }
}

type Start = (&'static [u8], StatementKind, &'static str, Option<Operation>);

fn start_of(text: &str) -> Option<Start> {
    const STARTS: [Start; 4] = [
        (b"select", StatementKind::Select, "SelectStmt", None),
        (b"insert", StatementKind::Insert, "InsertStmt", Some(Operation::Insert)),
        (b"update", StatementKind::Update, "UpdateStmt", Some(Operation::Update)),
        (b"delete", StatementKind::Delete, "DeleteStmt", Some(Operation::Delete)),
    ];
    let word = words(text.as_bytes()).next()?;
    STARTS.into_iter().find(|(start, ..)| text.as_bytes().starts_with(word) && word.eq_ignore_ascii_case(start))
}

fn needs_the_tree(text: &str) -> bool {
    // A RETURNING of nothing but names, to the end, calls nothing.
    let names = |c: char| c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || "_,.*\"".contains(c);
    let before_names = text.trim_end_matches(names);
    let is_one = |word: &[u8], wanted: &[u8]| word.eq_ignore_ascii_case(wanted);
    words(before_names.as_bytes()).any(|word| is_one(word, RETURNING))
        || words(text.as_bytes())
            .filter(|word| (3..=9).contains(&word.len()))
            .any(|word| WORDS_FOR_THE_TREE.iter().any(|wanted| is_one(word, wanted)))
}

/// Everything that may be a key word, also within literals and comments.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

/// Leaves out the white space around a range; comments stay in.
pub(super) fn trim(sql: &str, range: Range<usize>) -> Range<usize> {
    let Some(text) = sql.get(range.clone()) else { return range };
    let start = range.start + (text.len() - text.trim_ascii_start().len());
    start..(start + text.trim_ascii().len())
}
