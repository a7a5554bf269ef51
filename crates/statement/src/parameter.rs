//! The effects of SET, RESET and set_config on `lease.fence` and on the search path.
//!
//! Must report the value exactly as the server will store it, or as unknown.

use super::facts::parts;
use super::{FunctionName, ParameterEffect, PathEffect};
use pg_query::NodeEnum;
use pg_query::protobuf::{LimitOption, Node, SelectStmt, SetOperation, VariableSetKind, VariableSetStmt, a_const::Val};

const PARAMETER: &str = "lease.fence";
const PATH: &str = "search_path";
/// Parameters that change how text is read. After a change of one of them, the proxy queries the server.
const LEXING: [&str; 2] = ["standard_conforming_strings", "client_encoding"];

pub(super) fn set(set: &VariableSetStmt) -> ParameterEffect {
    let local = set.is_local;
    match set.kind() {
        VariableSetKind::VarResetAll => ParameterEffect::ResetAll,
        VariableSetKind::VarSetMulti => ParameterEffect::None,
        _ if !set.name.eq_ignore_ascii_case(PARAMETER) => ParameterEffect::None,
        VariableSetKind::VarReset => ParameterEffect::Reset { local: false },
        VariableSetKind::VarSetDefault => ParameterEffect::Reset { local },
        VariableSetKind::VarSetValue => {
            value(&set.args).map_or(ParameterEffect::Unknown, |value| ParameterEffect::Set { value, local })
        }
        // FROM CURRENT lets a value from SET LOCAL outlive the transaction.
        VariableSetKind::VarSetCurrent | VariableSetKind::Undefined => ParameterEffect::Unknown,
    }
}

/// The effect of a SET or RESET on the search path.
pub(super) fn set_path(set: &VariableSetStmt) -> PathEffect {
    if !set.name.eq_ignore_ascii_case(PATH) {
        return PathEffect::None;
    }
    // Each argument is the name of one schema.
    let name = |argument: &Node| Some(format!("\"{}\"", text(argument)?.replace('"', "\"\"")));
    match (set.kind(), set.args.iter().map(name).collect::<Option<Vec<String>>>()) {
        (VariableSetKind::VarSetValue, Some(names)) => PathEffect::Set { value: names.join(", "), local: set.is_local },
        _ => PathEffect::Unknown,
    }
}

/// Returns true if the call is a `set_config` of the search path.
pub(super) fn sets_path(function: &FunctionName, arguments: &[Node]) -> bool {
    is_set_config(function) && arguments.first().and_then(text).is_some_and(|name| name.eq_ignore_ascii_case(PATH))
}

/// The effect of a query that is only `SELECT set_config('lease.fence', 'value', true)`: the same as a SET.
pub(super) fn set_by_query(select: &SelectStmt) -> Option<ParameterEffect> {
    let bare = SelectStmt {
        target_list: select.target_list.clone(),
        limit_option: LimitOption::Default.into(),
        op: SetOperation::SetopNone.into(),
        ..SelectStmt::default()
    };
    let [Node { node: Some(NodeEnum::ResTarget(target)) }] = select.target_list.as_slice() else { return None };
    let Some(NodeEnum::FuncCall(call)) = &target.val.as_ref()?.node else { return None };
    let [name, value, local] = call.args.as_slice() else { return None };
    let is_set = *select == bare
        && is_set_config(&FunctionName::from_parts(&parts(&call.funcname))?)
        && text(name)?.eq_ignore_ascii_case(PARAMETER);
    match constant(local)? {
        Val::Boolval(local) if is_set => {
            Some(ParameterEffect::Set { value: text(value)?.to_owned(), local: local.boolval })
        }
        _ => None,
    }
}

/// Returns true if the call is a `set_config` of another parameter, which does not change how text is read.
pub(super) fn sets_another(function: &FunctionName, arguments: &[Node]) -> bool {
    let is_another = |name: &str| ![PARAMETER].iter().chain(&LEXING).any(|known| name.eq_ignore_ascii_case(known));
    is_set_config(function) && arguments.first().and_then(text).is_some_and(is_another)
}

/// Returns true for `set_config`, whose arguments name the parameter.
pub(super) fn is_set_config(function: &FunctionName) -> bool {
    function.name == "set_config" && function.schema.as_deref().is_none_or(|schema| schema == "pg_catalog")
}

fn text(node: &Node) -> Option<&str> {
    match constant(node)? {
        Val::Sval(text) => Some(&text.sval),
        _ => None,
    }
}

fn constant(node: &Node) -> Option<&Val> {
    match &node.node {
        Some(NodeEnum::AConst(constant)) => constant.val.as_ref(),
        _ => None,
    }
}

/// The server refuses a list of values for an unknown parameter, so there is one value or an error.
fn value(arguments: &[Node]) -> Option<String> {
    let [argument] = arguments else { return None };
    match constant(argument)? {
        Val::Ival(integer) => Some(integer.ival.to_string()),
        Val::Fval(number) => Some(number.fval.clone()),
        Val::Sval(text) => Some(text.sval.clone()),
        Val::Boolval(_) | Val::Bsval(_) => None,
    }
}
