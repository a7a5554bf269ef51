//! Statements on what fencegate itself has in a database, its schema and the guard's triggers; and writes to the server's
//! own catalogue, by which a superuser could change these, or the names of tables and the ways to them.
//!
//! Must never let one pass as harmless: with parts of it missing the guard guards nothing, or blocks everything.

use super::facts::parts;
use super::{Operation, RelationName, Write};
use pg_query::NodeEnum as N;
use pg_query::protobuf::Node;

/// The schema of the tables and functions.
pub(super) const SCHEMA: &str = "fencegate";
/// Of the names of event triggers, which have no schema.
const GUARD: &str = "fencegate_guard_";

/// Of a statement that does: it concerns every fenced table.
pub(super) const OPAQUE: &str = "it touches what fencegate keeps in the database";

/// Of a statement that writes the catalogue. Nothing tells to what it leads.
const CATALOGUE: &str = "it writes the server's own catalogue";

/// Why a write is opaque by the relation that it names.
pub(super) fn written(write: &Write) -> Option<&'static str> {
    match write.relation.schema.as_deref() {
        Some(SCHEMA) => Some(OPAQUE),
        _ if write.operation != Operation::Lock && is_catalogue(&write.relation) => Some(CATALOGUE),
        _ => None,
    }
}

/// All of its relations are called `pg_…`, so that every search path, however long, may mean one of them by such a name.
fn is_catalogue(relation: &RelationName) -> bool {
    // To write it is to SET.
    const SETTINGS: &str = "pg_settings";
    match relation.schema.as_deref() {
        Some("pg_catalog" | "pg_toast") => relation.name != SETTINGS,
        Some(_) => false,
        None => relation.name.starts_with("pg_") && relation.name != SETTINGS,
    }
}

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
