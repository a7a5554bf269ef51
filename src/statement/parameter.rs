//! SET, RESET and DISCARD: what they do to `lease.fence`.
//!
//! Must give the value as the server will hold it, or say that it is unknown.

use super::ParameterEffect;
use pg_query::NodeEnum;
use pg_query::protobuf::{Node, VariableSetKind, VariableSetStmt, a_const::Val};

const PARAMETER: &str = "lease.fence";

pub(super) fn set(set: &VariableSetStmt) -> ParameterEffect {
    let local = set.is_local;
    match set.kind() {
        VariableSetKind::VarResetAll => ParameterEffect::Reset { local: false },
        VariableSetKind::VarSetMulti => ParameterEffect::None,
        _ if !set.name.eq_ignore_ascii_case(PARAMETER) => ParameterEffect::None,
        VariableSetKind::VarReset => ParameterEffect::Reset { local: false },
        VariableSetKind::VarSetDefault => ParameterEffect::Reset { local },
        VariableSetKind::VarSetValue => {
            value(&set.args).map_or(ParameterEffect::Unknown, |value| ParameterEffect::Set { value, local })
        }
        // FROM CURRENT makes a value that was set LOCAL outlive the transaction.
        VariableSetKind::VarSetCurrent | VariableSetKind::Undefined => ParameterEffect::Unknown,
    }
}

/// The server refuses a list of values for a parameter that it does not know, so there is one or an error.
fn value(arguments: &[Node]) -> Option<String> {
    let [Node { node: Some(NodeEnum::AConst(constant)) }] = arguments else { return None };
    match constant.val.as_ref()? {
        Val::Ival(integer) => Some(integer.ival.to_string()),
        Val::Fval(number) => Some(number.fval.clone()),
        Val::Sval(text) => Some(text.sval.clone()),
        Val::Boolval(_) | Val::Bsval(_) => None,
    }
}
