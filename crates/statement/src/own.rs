//! Statements on fencegate's own objects in a database (its schemas and the guard's triggers), and writes to the
//! server's catalog, by which a superuser could change these objects, table names or dependencies.
//!
//! Must never treat one as harmless: with parts missing, the guard protects nothing or blocks everything.

use super::facts::parts;
use super::{OpaqueReason, Operation, RelationName, Write};
use pg_query::NodeEnum as N;
use pg_query::protobuf::Node;

/// The schemas of the tables and functions.
pub const OWN_SCHEMAS: [&str; 2] = ["fencegate", "fencegate_state"];
/// Prefix of the names of event triggers, which have no schema.
const GUARD: &str = "fencegate_guard_";

/// The relations in these schemas.
#[rustfmt::skip]
const RELATIONS: [&str; 18] = [
    "admission", "admission_epoch", "admission_pkey", "epoch", "epoch_pkey", "lease", "lease_grant", "lease_grant_pkey",
    "lease_history", "lease_history_pkey", "lease_last_day", "lease_pkey", "lease_token", "leased", "leased_pkey", "proxy", "proxy_pkey", "reset",
];

/// The functions in these schemas.
#[rustfmt::skip]
const FUNCTIONS: [&str; 45] = [
    "acquire", "announce", "await_lock", "check_every_key", "check_write", "claim", "end_holders", "guard", "guard_table",
    "is_admitted", "is_key", "keyed", "leader", "lease_caller", "lease_candidate", "lease_day", "lease_durable", "lease_ended",
    "lease_extend", "lease_fence", "lease_holder", "lease_matches", "lease_may", "lease_prune", "lease_resources", "lease_role",
    "lease_time", "leased_resources", "leases", "missing_token_hint", "notice_definition", "observe_write", "own_database", "own_pid",
    "own_start", "own_system_identifier", "presented", "proclaim", "prune", "receive_epoch", "release", "renew",
    "renew_all", "take_lock", "token",
];

/// Why a write is opaque because of the relation that it names.
pub(super) fn written(write: &Write) -> Option<OpaqueReason> {
    match write.relation.schema.as_deref() {
        Some(schema) if OWN_SCHEMAS.contains(&schema) => Some(OpaqueReason::FencegatesOwn),
        _ if write.operation != Operation::Lock && is_catalog(&write.relation) => Some(OpaqueReason::SystemCatalog),
        _ => None,
    }
}

/// Returns true if the write names one of fencegate's own relations when the search path contains its schemas.
pub(super) fn may_be_written(write: &Write) -> bool {
    write.relation.schema.is_none() && RELATIONS.contains(&write.relation.name.as_str())
}

/// All catalog relations are named `pg_…`, so an unqualified name of that form may mean one under every search path.
fn is_catalog(relation: &RelationName) -> bool {
    // Writing it is the same as SET.
    const SETTINGS: &str = "pg_settings";
    match relation.schema.as_deref() {
        Some("pg_catalog" | "pg_toast") => relation.name != SETTINGS,
        Some(_) => false,
        None => relation.name.starts_with("pg_") && relation.name != SETTINGS,
    }
}

/// How a definition concerns fencegate's own objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Concern {
    /// Not at all.
    None,
    /// Only if the search path contains their schemas.
    ByPath,
    /// The statement changes or drops a part of the schemas or of the guard.
    Own,
}

/// The greatest concern among the names in a definition.
pub(super) fn defined(node: &N) -> Concern {
    let objects: Vec<&Node> = match node {
        N::CreateFunctionStmt(create) => return concern(&parts(&create.funcname)),
        N::AlterEventTrigStmt(alter) => return of_no_schema(&alter.trigname),
        N::AlterSeqStmt(alter) => {
            let sequence = alter.sequence.as_ref().map(RelationName::from);
            return sequence.map_or(Concern::None, |it| concern(&it.names().collect::<Vec<_>>()));
        }
        N::AlterFunctionStmt(alter) => {
            return alter.func.as_ref().map_or(Concern::None, |it| concern(&parts(&it.objname)));
        }
        N::DropStmt(drop) => drop.objects.iter().collect(),
        N::RenameStmt(rename) => rename.object.iter().map(AsRef::as_ref).collect(),
        N::AlterOwnerStmt(alter) => alter.object.iter().map(AsRef::as_ref).collect(),
        N::AlterObjectSchemaStmt(alter) => alter.object.iter().map(AsRef::as_ref).collect(),
        _ => Vec::new(),
    };
    objects.into_iter().map(named).max().unwrap_or(Concern::None)
}

fn named(object: &Node) -> Concern {
    match &object.node {
        Some(N::String(name)) => of_no_schema(&name.sval),
        Some(N::List(names)) => concern(&parts(&names.items)),
        Some(N::TypeName(name)) => concern(&parts(&name.names)),
        Some(N::ObjectWithArgs(function)) => concern(&parts(&function.objname)),
        _ => Concern::None,
    }
}

/// The concern of a name without a schema: a schema or an event trigger.
fn of_no_schema(name: &str) -> Concern {
    if OWN_SCHEMAS.contains(&name) || name.starts_with(GUARD) { Concern::Own } else { Concern::None }
}

fn concern(name: &[&str]) -> Concern {
    match name {
        [single] if RELATIONS.contains(single) || FUNCTIONS.contains(single) => Concern::ByPath,
        [single] => of_no_schema(single),
        [.., schema, _] if OWN_SCHEMAS.contains(schema) => Concern::Own,
        _ => Concern::None,
    }
}
