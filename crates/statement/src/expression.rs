//! Expressions: their function calls and subqueries.
//!
//! Must never skip a part of the tree: an unknown node makes the statement opaque.

use super::facts::parts;
use super::query::Walk;
use super::rows::UNNEST;
use super::values::{cast_parameter, is_by_path};
use super::{FunctionName, OpaqueReason, ParameterEffect, PathEffect, parameter};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    FuncCall, JsonAggConstructor, JsonBehavior, JsonTableColumn, JsonValueExpr, Node, SubLinkType, WindowDef,
};

impl<'n> Walk<'_, 'n> {
    pub(super) fn expression(&mut self, node: &'n N) {
        match node {
            N::ColumnRef(_) | N::AConst(_) | N::AStar(_) | N::SetToDefault(_) | N::CurrentOfExpr(_) => {}
            N::SqlvalueFunction(_) | N::MergeSupportFunc(_) | N::TypeName(_) | N::Alias(_) => {}
            N::Integer(_) | N::Float(_) | N::Boolean(_) | N::String(_) | N::BitString(_) => {}

            N::RangeVar(relation) => self.read(relation),
            N::ParamRef(parameter) => self.reader.used(parameter, None),
            N::TypeCast(e) => {
                self.statement.keys_by_path |= e.type_name.as_ref().is_some_and(is_by_path);
                match cast_parameter(&e.arg, &e.type_name) {
                    Some((parameter, kind)) => self.reader.used(parameter, Some(kind)),
                    None => self.maybe(&e.arg),
                }
            }
            N::FuncCall(call) => self.call(call),
            N::AExpr(e) => {
                self.operator(&e.name);
                self.each([&e.lexpr, &e.rexpr]);
            }
            N::BoolExpr(e) => self.nodes(&e.args),
            N::NullTest(e) => self.maybe(&e.arg),
            N::BooleanTest(e) => self.maybe(&e.arg),
            N::CaseExpr(e) => {
                self.maybe(&e.arg);
                self.nodes(&e.args);
                self.maybe(&e.defresult);
            }
            N::CaseWhen(e) => self.each([&e.expr, &e.result]),
            N::CoalesceExpr(e) => self.nodes(&e.args),
            N::MinMaxExpr(e) => self.nodes(&e.args),
            N::RowExpr(e) => self.nodes(&e.args),
            N::GroupingFunc(e) => self.nodes(&e.args),
            N::GroupingSet(e) => self.nodes(&e.content),
            N::AArrayExpr(e) => self.nodes(&e.elements),
            N::List(list) => self.nodes(&list.items),
            N::CollateClause(e) => self.maybe(&e.arg),
            N::NamedArgExpr(e) => self.maybe(&e.arg),
            N::MultiAssignRef(e) => self.maybe(&e.source),
            N::AIndices(e) => self.each([&e.lidx, &e.uidx]),
            N::AIndirection(e) => {
                self.maybe(&e.arg);
                self.nodes(&e.indirection);
            }
            N::ResTarget(e) => {
                self.nodes(&e.indirection);
                self.maybe(&e.val);
            }
            N::SubLink(e) => {
                // IN is written without an operator, and means `=`.
                self.statement.keys_by_path |= e.sub_link_type() == SubLinkType::AnySublink && e.oper_name.is_empty();
                self.operator(&e.oper_name);
                self.each([&e.testexpr, &e.subselect]);
            }
            N::SortBy(e) => {
                self.operator(&e.use_op);
                self.maybe(&e.node);
            }
            N::WindowDef(window) => self.window(window),
            N::IndexElem(e) => self.maybe(&e.expr),

            N::JoinExpr(join) => self.each([&join.larg, &join.rarg, &join.quals]),
            N::RangeSubselect(item) => self.maybe(&item.subquery),
            N::RangeFunction(item) => item.functions.iter().for_each(|function| self.range_function(function)),
            N::RangeTableSample(item) => {
                self.maybe(&item.relation);
                self.nodes(&item.args);
                self.maybe(&item.repeatable);
            }
            N::RangeTableFunc(item) => {
                self.each([&item.docexpr, &item.rowexpr]);
                self.nodes(&item.namespaces);
                self.nodes(&item.columns);
            }
            N::RangeTableFuncCol(column) => self.each([&column.colexpr, &column.coldefexpr]),

            N::XmlExpr(e) => {
                self.nodes(&e.named_args);
                self.nodes(&e.args);
            }
            N::XmlSerialize(e) => self.maybe(&e.expr),

            N::JsonValueExpr(e) => self.json_value(e),
            N::JsonIsPredicate(e) => self.maybe(&e.expr),
            N::JsonParseExpr(e) => self.maybe_json_value(&e.expr),
            N::JsonScalarExpr(e) => self.maybe(&e.expr),
            N::JsonSerializeExpr(e) => self.maybe_json_value(&e.expr),
            N::JsonKeyValue(e) => {
                self.maybe(&e.key);
                self.maybe_json_value(&e.value);
            }
            N::JsonObjectConstructor(e) => self.nodes(&e.exprs),
            N::JsonArrayConstructor(e) => self.nodes(&e.exprs),
            N::JsonArrayQueryConstructor(e) => self.maybe(&e.query),
            N::JsonObjectAgg(e) => {
                self.json_aggregate(&e.constructor);
                if let Some(argument) = &e.arg {
                    self.maybe(&argument.key);
                    self.maybe_json_value(&argument.value);
                }
            }
            N::JsonArrayAgg(e) => {
                self.json_aggregate(&e.constructor);
                self.maybe_json_value(&e.arg);
            }
            N::JsonArgument(e) => self.maybe_json_value(&e.val),
            N::JsonFuncExpr(e) => {
                self.maybe_json_value(&e.context_item);
                self.maybe(&e.pathspec);
                self.nodes(&e.passing);
                self.json_behaviors(&e.on_empty, &e.on_error);
            }
            N::JsonTable(item) => {
                self.maybe_json_value(&item.context_item);
                if let Some(path) = &item.pathspec {
                    self.maybe(&path.string);
                }
                self.nodes(&item.passing);
                self.nodes(&item.columns);
                self.json_behaviors(&None, &item.on_error);
            }
            N::JsonTableColumn(column) => self.json_column(column),

            _ => self.statement.set_runs_code(OpaqueReason::UnknownExpression),
        }
    }

    fn call(&mut self, call: &'n FuncCall) {
        match FunctionName::from_parts(&parts(&call.funcname)) {
            Some(function) if parameter::sets_another(&function, &call.args) => {
                if parameter::sets_path(&function, &call.args) {
                    self.statement.path = PathEffect::Unknown;
                }
                self.statement.functions.push(function);
            }
            Some(function) => {
                self.statement.keys_by_path |= function.schema.is_none() && function.name == UNNEST;
                self.statement.add_call(function);
            }
            None => self.statement.set_runs_code(OpaqueReason::NamelessFunction),
        }
        self.nodes(&call.args);
        self.nodes(&call.agg_order);
        self.maybe(&call.agg_filter);
        if let Some(window) = &call.over {
            self.window(window);
        }
    }

    /// A list of the call and the columns that it is said to return.
    fn range_function(&mut self, function: &'n Node) {
        match &function.node {
            Some(N::List(call_and_columns)) => {
                if let Some(call) = call_and_columns.items.first() {
                    self.node(call);
                }
            }
            _ => self.node(function),
        }
    }

    /// An operator of another schema runs whatever function its owner gave it.
    fn operator(&mut self, name: &[Node]) {
        match parts(name).as_slice() {
            [schema, .., _] if *schema != "pg_catalog" => self.statement.parameter = ParameterEffect::Unknown,
            ["="] => self.statement.keys_by_path = true,
            _ => {}
        }
    }

    fn window(&mut self, window: &'n WindowDef) {
        self.nodes(&window.partition_clause);
        self.nodes(&window.order_clause);
        self.each([&window.start_offset, &window.end_offset]);
    }

    fn json_value(&mut self, value: &'n JsonValueExpr) {
        self.each([&value.raw_expr, &value.formatted_expr]);
    }

    fn maybe_json_value(&mut self, value: &'n Option<Box<JsonValueExpr>>) {
        if let Some(value) = value {
            self.json_value(value);
        }
    }

    fn json_aggregate(&mut self, constructor: &'n Option<Box<JsonAggConstructor>>) {
        if let Some(constructor) = constructor {
            self.maybe(&constructor.agg_filter);
            self.nodes(&constructor.agg_order);
            if let Some(window) = &constructor.over {
                self.window(window);
            }
        }
    }

    fn json_column(&mut self, column: &'n JsonTableColumn) {
        if let Some(path) = &column.pathspec {
            self.maybe(&path.string);
        }
        self.nodes(&column.columns);
        self.json_behaviors(&column.on_empty, &column.on_error);
    }

    fn json_behaviors(&mut self, empty: &'n Option<Box<JsonBehavior>>, error: &'n Option<Box<JsonBehavior>>) {
        [empty, error].into_iter().flatten().for_each(|behavior| self.maybe(&behavior.expr));
    }
}
