//! Definitions that touch what fencegate itself has in a database: its schema, and the guard's triggers.
//!
//! Must never let one pass as harmless: without its parts the guard guards nothing, or everything stands still.

use super::facts::parts;
use pg_query::NodeEnum as N;
use pg_query::protobuf::Node;

/// The schema of the tables and functions.
pub(super) const SCHEMA: &str = "fencegate";
/// Of the names of event triggers, which have no schema.
const GUARD: &str = "fencegate_guard_";

/// Of a statement that does: it concerns every fenced table.
pub(super) const OPAQUE: &str = "it touches what fencegate keeps in the database";

/// It changes or drops part of the schema or of the guard.
pub(super) fn defines_own(node: &N) -> bool {
    let objects: Vec<&Node> = match node {
        N::CreateFunctionStmt(create) => return is_own(&parts(&create.funcname)),
        N::AlterEventTrigStmt(alter) => return is_own(&[alter.trigname.as_str()]),
        N::AlterFunctionStmt(alter) => return alter.func.iter().any(|function| is_own(&parts(&function.objname))),
        N::DropStmt(drop) => drop.objects.iter().collect(),
        N::RenameStmt(rename) => rename.object.iter().map(AsRef::as_ref).collect(),
        N::AlterOwnerStmt(alter) => alter.object.iter().map(AsRef::as_ref).collect(),
        N::AlterObjectSchemaStmt(alter) => alter.object.iter().map(AsRef::as_ref).collect(),
        _ => Vec::new(),
    };
    objects.into_iter().any(names_own)
}

fn names_own(object: &Node) -> bool {
    match &object.node {
        Some(N::String(name)) => is_own(&[name.sval.as_str()]),
        Some(N::List(names)) => is_own(&parts(&names.items)),
        Some(N::ObjectWithArgs(function)) => is_own(&parts(&function.objname)),
        _ => false,
    }
}

fn is_own(name: &[&str]) -> bool {
    match name {
        [single] => *single == SCHEMA || single.starts_with(GUARD),
        [.., schema, _] => *schema == SCHEMA,
        [] => false,
    }
}
