//! The resources that a statement affects, directly or through other objects. Each occurs once; a keyed table has one
//! for the key of each affected row.
//!
//! Must never omit a resource that the statement may write, nor guess a key: a write with an unknown key is rejected.

use super::pending_definitions::CatalogView;
use super::rejection::Rejection;
use fencegate_catalog::{Catalog, KeyColumn};
use fencegate_fence::RequiredPrivilege;
use fencegate_policy::{FencedTable, PolicySet, Resource};
use fencegate_statement::rows::{ColumnValue, MOST_VALUES};
use fencegate_statement::{FunctionName, Operation, RelationName, Statement, StatementKind, Write};
use std::collections::HashSet;
use std::sync::Arc;

/// A resource that a statement affects.
pub struct AffectedResource {
    pub resource: Arc<Resource>,
    /// Set if the statement writes; otherwise it only locks.
    pub writes: bool,
    /// The keys of a keyed resource; `None` for any other. Empty if only the guard can determine them, or if the
    /// statement shows that it affects no row.
    pub keys: Option<Vec<KeyedResource>>,
}

/// The resources that a statement affects, as far as its text and the catalog show.
pub fn affected_resources(statement: &Statement, policies: &PolicySet, seen: &CatalogView) -> Vec<AffectedResource> {
    let CatalogView { catalog, dependencies, .. } = seen;
    let mut affected = AffectedResources::default();
    for write in &statement.writes {
        let keys = |resource: &Arc<Resource>, table: &FencedTable, columns| {
            keys_of(statement, catalog, resource, table, write, columns)
        };
        let writes = write.operation != Operation::Lock;
        for (resource, table) in policies.fenced(&write.relation, write.operation) {
            affected.add(resource, writes, || keys(resource, table, Columns::OfTable));
        }
        // A write to a relation that leads to a fenced table counts as the write to that table.
        for reached in catalog.reached_by(write) {
            let columns = if reached.same_columns { Columns::SameNames } else { Columns::Others };
            for (resource, table) in policies.fenced(reached.table, reached.operation) {
                affected.add(resource, reached.operation != Operation::Lock, || keys(resource, table, columns));
            }
        }
        // An object that CASCADE drops counts as if the statement named the fenced table that it belongs to.
        for fenced in dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write)) {
            for (resource, table) in policies.fenced(fenced, Operation::Ddl) {
                affected.add(resource, true, || keys(resource, table, Columns::Others));
            }
        }
    }
    for function in called(statement, catalog) {
        for resource in policies.resources_of_function(function) {
            affected.add(resource, true, Vec::new);
        }
    }
    affected.0
}

/// The privileges by which the statement affects the resource, which may be that of a key.
pub fn privileges(
    statement: &Statement,
    policies: &PolicySet,
    seen: &CatalogView,
    resource: &Resource,
) -> Arc<[RequiredPrivilege]> {
    let CatalogView { catalog, dependencies, .. } = seen;
    let is_it = |it: &Arc<Resource>| it.called(&resource.name).is_some();
    let mut privileges = HashSet::new();
    for write in &statement.writes {
        let is_written = |name: &RelationName, operation| policies.fenced(name, operation).any(|(it, _)| is_it(it));
        let mut cascades = dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write));
        if is_written(&write.relation, write.operation)
            || catalog.reached_by(write).any(|reached| is_written(reached.table, reached.operation))
            || cascades.any(|fenced| is_written(fenced, Operation::Ddl))
        {
            privileges.insert(RequiredPrivilege::Write(write.relation.clone(), write.operation));
        }
    }
    for called in called(statement, catalog) {
        privileges.extend(
            resource.functions.iter().filter_map(|function| function.called(called)).map(RequiredPrivilege::Call),
        );
    }
    privileges.into_iter().collect()
}

/// A fenced object that a statement reaches without naming it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachedObject {
    /// A fenced table, with the relation that leads to it.
    Table(RelationName),
    /// A function of the policies. The statement may name it.
    Function(FunctionName),
}

/// The object of the resource that the statement reaches, unless it names a table of the resource.
pub fn reached_object(
    statement: &Statement,
    policies: &PolicySet,
    seen: &CatalogView,
    resource: &str,
) -> Option<ReachedObject> {
    let CatalogView { catalog, dependencies, .. } = seen;
    let is_it = |it: &Arc<Resource>| it.name == resource || it.is_called(resource);
    let is_of_it = |table: &RelationName, operation| policies.fenced(table, operation).any(|(it, _)| is_it(it));
    if statement.writes.iter().any(|write| is_of_it(&write.relation, write.operation)) {
        return None;
    }
    let table = statement.writes.iter().find_map(|write| {
        let mut ways = catalog.reached_by(write).filter(|way| is_of_it(way.table, way.operation)).map(|way| way.table);
        let cascades = dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write));
        ways.next().or_else(|| cascades.into_iter().find(|table| is_of_it(table, Operation::Ddl)))
    });
    let is_function_of_it = |it: &&FunctionName| policies.resources_of_function(it).into_iter().any(is_it);
    let function = || called(statement, catalog).find(is_function_of_it).cloned().map(ReachedObject::Function);
    table.cloned().map(ReachedObject::Table).or_else(function)
}

/// The functions that the statement calls: by name, or through catalog objects.
fn called<'a>(statement: &'a Statement, catalog: &'a Catalog) -> impl Iterator<Item = &'a FunctionName> {
    let named = &statement.functions;
    let by_others = named.iter().flat_map(|function| catalog.called_by_function(function));
    let by_writes = statement.writes.iter().flat_map(|write| catalog.called_by(&write.relation, write.operation));
    let by_reads = statement.reads.iter().flat_map(|relation| catalog.called_by(relation, Operation::Read));
    let by_any = statement.reads_more.then(|| catalog.called_by_reading()).into_iter().flatten();
    named.iter().chain(by_others).chain(by_writes).chain(by_reads).chain(by_any)
}

fn keys_of(
    statement: &Statement,
    catalog: &Catalog,
    resource: &Arc<Resource>,
    table: &FencedTable,
    write: &Write,
    columns: Columns,
) -> Vec<KeyedResource> {
    let column = catalog.key_column(table);
    let is_guarded = columns == Columns::OfTable && column.is_some_and(|column| column.is_guarded);
    if statement.kind == StatementKind::CopyFrom && is_guarded {
        // The guard checks each row. It might not see those of a child table.
        return Vec::new();
    }
    resources(resource, table, column, write, columns)
}

/// Each resource once.
#[derive(Default)]
struct AffectedResources(Vec<AffectedResource>);

impl AffectedResources {
    fn add(&mut self, resource: &Arc<Resource>, writes: bool, keys: impl FnOnce() -> Vec<KeyedResource>) {
        let known = self.0.iter().position(|touch| Arc::ptr_eq(&touch.resource, resource));
        let index = known.unwrap_or_else(|| {
            let keys = resource.keyed.as_ref().map(|_| Vec::new());
            self.0.push(AffectedResource { resource: resource.clone(), writes: false, keys });
            self.0.len() - 1
        });
        let touch = &mut self.0[index];
        touch.writes |= writes;
        if let Some(known) = &mut touch.keys {
            known.extend(keys());
        }
    }
}

/// The resource of one key, and whether it is written or only locked; or why the key is unknown.
pub type KeyedResource = Result<(Arc<Resource>, bool), Rejection>;

/// The relation between the columns of the relation that a statement names and those of the keyed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// The relation is the table.
    OfTable,
    /// The columns have the same names, possibly in another order.
    SameNames,
    /// Nothing is known.
    Others,
}

const TOO_MANY: &str = "the statement has more than 10000 keys, the limit for one statement";
const _: () = assert!(MOST_VALUES == 10_000);

/// The resources of the keys of all written rows. `column` describes the table's key in the catalog.
pub fn resources(
    keyed: &Arc<Resource>,
    table: &FencedTable,
    column: Option<&KeyColumn>,
    write: &Write,
    columns: Columns,
) -> Vec<KeyedResource> {
    let name = table.key.as_deref().unwrap_or_default();
    let unknown = |why: &str| {
        let why = format!("the value of \"{name}\" in {} is unknown: {why}", table.name);
        let bare = write.relation.schema.is_none() && write.relation.name == table.name.name;
        let by_bare_name = bare.then(|| table.name.clone());
        let hint = hint(write.operation);
        vec![Err(Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name })]
    };
    let Some(column) = column else { return unknown("the table has no such column") };
    if let Err(why) = column.kind {
        return unknown(why);
    }
    if write.rows.are_unread() {
        return unknown("the statement is too long or too deeply nested to search");
    }
    let values = match columns {
        Columns::OfTable => write.rows.values(name, Some(column.place)),
        Columns::SameNames => write.rows.values(name, None),
        Columns::Others => return unknown("the statement writes to it through another relation"),
    };
    let Some(values) = values else { return unknown("the statement does not show it for every row") };
    let writes = write.operation != Operation::Lock;
    if values.contains(&ColumnValue::TooMany) {
        return unknown(TOO_MANY);
    }
    let is_nothing = |value: &&ColumnValue| column.kind.is_ok_and(|kind| value.is_nothing_in(kind));
    let mut found = Vec::with_capacity(values.len());
    for value in values.iter().filter(|value| !is_nothing(value)) {
        match column.key(value).map(|key| keyed.of_key(&key)) {
            Some(Some(resource)) => found.push(Ok((resource, writes))),
            Some(None) => return unknown("a value is too long, or cannot be part of the name of an election or lease"),
            None => return unknown("a value does not have the column's type"),
        }
    }
    found
}

/// The rejection of a statement that may write rows of any key.
pub fn any(keyed: &Resource, kind: StatementKind) -> Rejection {
    let why = format!("{kind} may write rows of every key of {}", keyed.name);
    let hint = "Write to the table directly. Or install the guard, which checks each row, and set `opaque: allow`.";
    Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name: None }
}

/// The rejection of a statement whose operators or types may not be those of pg_catalog: its keys are unknown.
pub fn by_path(keyed: &Resource) -> Rejection {
    let why = format!(
        "its unqualified operators or types may not be those of pg_catalog, so the keys of {} are unknown",
        keyed.name
    );
    let hint = "A schema in this session's search path has an operator =, or a type such as int8. Remove that schema from the path, send the statement by itself, or write key OPERATOR(pg_catalog.=) 3 and pg_catalog.int8.";
    Rejection::UnknownKey { resource: keyed.name.clone(), why, hint, by_bare_name: None }
}

fn hint(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => {
            "Give the key as a constant or a parameter in every row: INSERT INTO t (key, ...) VALUES (3, ...), or SELECT * FROM unnest(keys, ...)."
        }
        Operation::Update => {
            "Compare the key with constants or parameters: WHERE key = 3 AND ..., key IN (3, 4), or key = ANY ($1). An upsert needs the key in its column list and its ON CONFLICT target."
        }
        Operation::Delete | Operation::Lock | Operation::Read => {
            "Compare the key with constants or parameters: WHERE key = 3 AND ..., key IN (3, 4), or key = ANY ($1)."
        }
        Operation::Truncate | Operation::TruncateCascade | Operation::Ddl | Operation::Cascade => {
            "The statement affects the rows of all keys. Run it as one of the policy's `exempt_roles`, or omit the operation from the table's `operations`."
        }
    }
}
