//! The triggers that the policies require.
//!
//! Owns their names and definitions, in the format of `pg_get_triggerdef`: `status` compares the created ones.

use fencegate_policy::guard_arguments;
use fencegate_policy::{FencedTable, Mode, Resource};
use fencegate_postgres::sql::quote;
use fencegate_statement::Operation;
use sha2::{Digest, Sha256};

/// Prefix of all triggers of the guard. No other trigger should have it.
pub(super) const PREFIX: &str = "fencegate_guard_";

/// A relation that a policy covers: a fenced table, or one through which it is written.
#[derive(Clone, Debug)]
pub(super) struct GuardedRelation {
    pub(super) oid: String,
    /// Schema and name, quoted where needed.
    pub(super) name: String,
    pub(super) kind: char,
    /// A partition: the server copies its parent's row triggers to it.
    pub(super) is_partition: bool,
    /// The topmost partitioned table, if the relation is a partition.
    pub(super) root: Option<String>,
    pub(super) may_alter: bool,
    /// True if a parent of the relation is not guarded with it.
    pub(super) has_foreign_parent: bool,
}

/// In which sessions a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fires {
    /// In all sessions.
    Always,
    /// Fires if `session_replication_role` is `replica`, as in a subscription's apply worker.
    InReplicas,
}

impl Fires {
    /// Value of `pg_trigger.tgenabled`: O for a new trigger, D for a disabled one.
    pub(super) fn letter(self) -> char {
        match self {
            Fires::Always => 'A',
            Fires::InReplicas => 'R',
        }
    }

    /// As in `ALTER TABLE … ENABLE … TRIGGER`.
    pub(super) fn keyword(self) -> &'static str {
        match self {
            Fires::Always => "ALWAYS",
            Fires::InReplicas => "REPLICA",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedTrigger {
    pub(super) relation: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) fires: Fires,
    /// None for the copy that the server makes for a partition.
    pub(super) definition: Option<String>,
    pub(super) may_alter: bool,
}

/// The triggers for an entry of a policy, on its relations.
///
/// A row trigger tests only rows that no statement trigger covers: those of relations that were added later, of
/// relations that became a partition of another table, and those applied by logical replication. The last case has its
/// own trigger without a condition, because the server re-parses a condition for each statement. If a parent is not
/// guarded or the resource is keyed, row triggers test all rows.
pub(super) fn wanted(
    resource: &Resource,
    table: &FencedTable,
    relations: &[GuardedRelation],
    exempt_roles: &[String],
    foreign_tables_truncate: bool,
) -> Vec<WantedTrigger> {
    let entry = Sha256::digest(format!("{}\0{}", resource.name, table.name));
    let stem = format!("{PREFIX}{:02x}{:02x}{:02x}{:02x}", entry[0], entry[1], entry[2], entry[3]);
    let function = function(resource, table, exempt_roles);
    let is_keyed = table.key.is_some();
    let statements_cover_rows = !is_keyed && !relations.iter().any(|relation| relation.has_foreign_parent);
    let oids: Vec<&str> = relations.iter().map(|relation| relation.oid.as_str()).collect();
    let mut wanted = Vec::new();
    for relation in relations {
        let mut want = |suffix: &str, is_copy: bool, fires: Fires, timing: &str, events: Vec<&str>, level: String| {
            if events.is_empty() {
                return;
            }
            let (name, events) = (format!("{stem}_{suffix}"), events.join(" OR "));
            let on = &relation.name;
            let definition = format!("CREATE TRIGGER {name} {timing} {events} ON {on} FOR EACH {level} {function}");
            wanted.push(WantedTrigger {
                relation: relation.name.clone(),
                resource: resource.name.clone(),
                name,
                fires,
                definition: (!is_copy).then_some(definition),
                may_alter: relation.may_alter,
            });
        };
        let may_truncate = relation.kind != 'f' || foreign_tables_truncate;
        // Only the rows of a keyed resource show their key.
        let is_told = |it| !is_keyed || it == Operation::Truncate;
        let all = events(table, |it| is_told(it) && (it != Operation::Truncate || may_truncate));
        want("statement", false, Fires::Always, "BEFORE", all, "STATEMENT".into());
        if resource.mode == Mode::Observe && !is_keyed {
            continue;
        }
        let is_copy = relation.is_partition && !relation.has_foreign_parent;
        let level = |row: &str| match statements_cover_rows {
            true => format!("ROW WHEN ({})", condition(row, relation, &oids)),
            false => "ROW".to_owned(),
        };
        let inserts = events(table, |it| it == Operation::Insert);
        want("insert", is_copy, Fires::Always, "AFTER", inserts, level("new"));
        let changes = events(table, |it| matches!(it, Operation::Update | Operation::Delete));
        want("change", is_copy, Fires::Always, "AFTER", changes, level("old"));
        if statements_cover_rows {
            let rows = events(table, |it| it != Operation::Truncate);
            want("replica", is_copy, Fires::InReplicas, "AFTER", rows, "ROW".into());
        }
        // An UPDATE that moves a row to another partition fires the AFTER triggers of a DELETE and an INSERT, not those
        // of an UPDATE. If these are not both fenced, the BEFORE UPDATE trigger detects the move. The apply worker of a
        // subscription executes moves as a DELETE and an INSERT from the start.
        let fences = |it| table.operations.contains(&it);
        if fences(Operation::Update) && !(fences(Operation::Insert) && fences(Operation::Delete)) {
            let level = match statements_cover_rows {
                true => level("old"),
                false => format!("ROW WHEN (({} IS NOT NULL))", partition_root("old")),
            };
            want("move", is_copy, Fires::Always, "BEFORE", vec!["UPDATE"], level);
        }
    }
    wanted
}

/// In the order in which the server lists them.
fn events(table: &FencedTable, among: impl Fn(Operation) -> bool) -> Vec<&'static str> {
    let order = [
        (Operation::Insert, "INSERT"),
        (Operation::Delete, "DELETE"),
        (Operation::Update, "UPDATE"),
        (Operation::Truncate, "TRUNCATE"),
    ];
    let fenced = order.into_iter().filter(|(operation, _)| table.operations.contains(operation) && among(*operation));
    fenced.map(|(_, word)| word).collect()
}

/// The condition for rows that no statement trigger covers.
fn condition(row: &str, relation: &GuardedRelation, oids: &[&str]) -> String {
    let root = partition_root(row);
    match &relation.root {
        None => format!("({root} IS NOT NULL)"),
        Some(oid) => format!(
            "(({row}.tableoid <> ALL ('{{{}}}'::oid[])) OR (({root})::oid IS DISTINCT FROM '{oid}'::oid))",
            oids.join(",")
        ),
    }
}

fn partition_root(row: &str) -> String {
    format!("pg_partition_root(({row}.tableoid)::regclass)")
}

/// The call of the trigger's function, with the arguments of `guard.sql`.
fn function(resource: &Resource, table: &FencedTable, exempt_roles: &[String]) -> String {
    let name = match resource.mode == Mode::Enforce && table.key.is_none() {
        true => "guard_table",
        false => "guard",
    };
    let fixed = guard_arguments(resource, table);
    let arguments: Vec<String> = fixed.into_iter().chain(exempt_roles.iter().map(String::as_str)).map(quote).collect();
    format!("EXECUTE FUNCTION fencegate.{name}({})", arguments.join(", "))
}
