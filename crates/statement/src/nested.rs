//! Statements that run or keep another statement, or code: EXPLAIN, PREPARE, EXECUTE, cursors, CREATE TABLE AS, CALL.
//!
//! Must never report that the inner statement runs exactly once if it may run later or never.

use super::classify::{classify, runs_code};
use super::facts::parts;
use super::query::Walk;
use super::{
    FunctionName, OpaqueReason, ParameterEffect, PreparedEffect, RelationName, Statement, StatementKind, values,
};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    CallStmt, CreateTableAsStmt, DeallocateStmt, DeclareCursorStmt, ExecuteStmt, ExplainStmt, FetchStmt, Node,
    ObjectType, PrepareStmt, a_const::Val,
};
use std::sync::Arc;

/// The effects of a statement within another, which may run it later or never.
fn inner(node: &Option<Box<Node>>) -> Statement {
    let mut statement = whole(node);
    statement.parameter.blur();
    statement
}

/// Like [`inner`], for a statement that runs unchanged.
fn whole(node: &Option<Box<Node>>) -> Statement {
    node.as_ref().and_then(|node| node.node.as_ref()).map(classify).unwrap_or_default()
}

pub(super) fn prepare(prepare: &PrepareStmt, into: &mut Statement) -> StatementKind {
    let declared = prepare.argtypes.iter().map(values::declared).collect();
    let mut statement = Statement { declared, ..whole(&prepare.query) };
    statement.keys_by_path |= prepare.argtypes.iter().any(values::declares_by_path);
    let statement = Arc::new(statement);
    into.prepared = PreparedEffect::Prepare { name: prepare.name.clone(), statement };
    StatementKind::Prepare
}

pub(super) fn execute(execute: &ExecuteStmt, into: &mut Statement) -> StatementKind {
    Walk::new(into).nodes(&execute.params);
    into.parameter = ParameterEffect::Unknown;
    let arguments = execute.params.iter().map(values::literal).collect();
    into.prepared = PreparedEffect::Execute { name: execute.name.clone(), arguments };
    StatementKind::Execute
}

pub(super) fn deallocate(deallocate: &DeallocateStmt, into: &mut Statement) -> StatementKind {
    into.prepared = match deallocate.isall {
        true => PreparedEffect::DeallocateAll,
        false => PreparedEffect::Deallocate { name: deallocate.name.clone() },
    };
    StatementKind::Deallocate
}

pub(super) fn declare_cursor(declare: &DeclareCursorStmt, into: &mut Statement) -> StatementKind {
    *into = inner(&declare.query);
    StatementKind::DeclareCursor
}

/// Fetching runs the query of a cursor, or of a protocol portal, which may call any function.
pub(super) fn fetch(fetch: &FetchStmt, into: &mut Statement) -> StatementKind {
    into.prepared = PreparedEffect::Fetch { name: fetch.portalname.clone() };
    into.parameter = ParameterEffect::Unknown;
    if fetch.ismove { StatementKind::Move } else { StatementKind::Fetch }
}

pub(super) fn create_table_as(create: &CreateTableAsStmt, into: &mut Statement) -> StatementKind {
    *into = inner(&create.query);
    into.changes_catalog = true;
    into.defines.extend(create.into.iter().filter_map(|made| made.rel.as_ref()).map(RelationName::from));
    match create.objtype() {
        ObjectType::ObjectMatview => StatementKind::CreateMaterializedView,
        _ => StatementKind::CreateTableAs,
    }
}

/// Without ANALYZE the statement is only planned, which can call its functions but not write.
pub(super) fn explain(explain: &ExplainStmt, into: &mut Statement) -> StatementKind {
    let explained = inner(&explain.query);
    if is_analyze(&explain.options) {
        *into = explained;
        return StatementKind::ExplainAnalyze;
    }
    if explained.parameter != ParameterEffect::None {
        into.parameter = ParameterEffect::Unknown;
    }
    // Planning evaluates the arguments of EXECUTE and functions that are declared immutable or stable, whatever they
    // do.
    into.functions = explained.functions;
    into.reads = explained.reads;
    StatementKind::Explain
}

/// The last of several options counts. The server refuses values that are not Boolean.
fn is_analyze(options: &[Node]) -> bool {
    let mut analyze = false;
    for option in options {
        let Some(N::DefElem(option)) = &option.node else { continue };
        if option.defname == "analyze" {
            analyze = match option.arg.as_ref().and_then(|argument| argument.node.as_ref()) {
                Some(N::Integer(integer)) => integer.ival != 0,
                Some(N::Boolean(boolean)) => boolean.boolval,
                Some(N::String(word)) => !["false", "off"].iter().any(|no| word.sval.eq_ignore_ascii_case(no)),
                Some(N::AConst(constant)) => !matches!(&constant.val, Some(Val::Boolval(boolean)) if !boolean.boolval),
                _ => true,
            };
        }
    }
    analyze
}

pub(super) fn call(call: &CallStmt, into: &mut Statement) -> StatementKind {
    if let Some(call) = &call.funccall {
        into.functions.extend(FunctionName::from_parts(&parts(&call.funcname)));
        Walk::new(into).nodes(&call.args);
    }
    runs_code(into, StatementKind::Call, OpaqueReason::Call)
}
