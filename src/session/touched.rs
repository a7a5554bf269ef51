//! The resources that a statement touches, directly or by way of others: each once, with the keys of keyed ones.
//!
//! Must never leave out a resource that the statement may write.

use super::host::Seen;
use super::keys::{self, Columns, KeyedResource};
use crate::catalogue::Catalogue;
use crate::fence::Deed;
use crate::policy::{FencedTable, PolicySet, Resource};
use crate::statement::{FunctionName, Operation, RelationName, Statement, StatementKind, Write};
use std::collections::HashSet;
use std::sync::Arc;

/// A resource that a statement touches.
pub struct Touch {
    pub resource: Arc<Resource>,
    /// Else it only locks.
    pub writes: bool,
    /// Of a keyed resource, the keys; None for any other. Empty where only the guard can tell them.
    pub keys: Option<Vec<KeyedResource>>,
}

/// The resources that a statement touches, as far as its text and the catalogue tell.
pub fn touched(statement: &Statement, policies: &PolicySet, seen: &Seen) -> Vec<Touch> {
    let Seen { catalogue, dependencies, .. } = seen;
    let mut touched = Touched::default();
    for write in &statement.writes {
        let keys = |resource: &Arc<Resource>, table: &FencedTable, columns| {
            keys_of(statement, catalogue, resource, table, write, columns)
        };
        let writes = write.operation != Operation::Lock;
        for (resource, table) in policies.fenced(&write.relation, write.operation) {
            touched.add(resource, writes, || keys(resource, table, Columns::OfTable));
        }
        // What is a way to a fenced table counts as the write to that table that it becomes.
        for reached in catalogue.reached_by(write) {
            let columns = if reached.same_columns { Columns::SameNames } else { Columns::Others };
            for (resource, table) in policies.fenced(reached.table, reached.operation) {
                touched.add(resource, reached.operation != Operation::Lock, || keys(resource, table, columns));
            }
        }
        // What CASCADE takes from a fenced table is as if the statement named that table.
        for fenced in dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write)) {
            for (resource, table) in policies.fenced(fenced, Operation::Ddl) {
                touched.add(resource, true, || keys(resource, table, Columns::Others));
            }
        }
    }
    for function in called(statement, catalogue) {
        for resource in policies.resources_of_function(function) {
            touched.add(resource, true, Vec::new);
        }
    }
    touched.0
}

/// By what the statement touches the resource, which may be that of a key.
pub fn deeds(statement: &Statement, policies: &PolicySet, seen: &Seen, resource: &Resource) -> Arc<[Deed]> {
    let Seen { catalogue, dependencies, .. } = seen;
    let is_it = |it: &Arc<Resource>| it.called(&resource.name).is_some();
    let mut deeds = HashSet::new();
    for write in &statement.writes {
        let is_written = |name: &RelationName, operation| policies.fenced(name, operation).any(|(it, _)| is_it(it));
        let mut cascades = dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write));
        if is_written(&write.relation, write.operation)
            || catalogue.reached_by(write).any(|reached| is_written(reached.table, reached.operation))
            || cascades.any(|fenced| is_written(fenced, Operation::Ddl))
        {
            deeds.insert(Deed::Write(write.relation.clone(), write.operation));
        }
    }
    for called in called(statement, catalogue) {
        deeds.extend(resource.functions.iter().filter_map(|function| function.called(called)).map(Deed::Call));
    }
    deeds.into_iter().collect()
}

/// What a statement comes to without naming it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComesTo {
    /// A fenced table, by what leads to it.
    Table(RelationName),
    /// A function of the policies; it may name it.
    Function(FunctionName),
}

/// What of the resource the statement comes to, unless it names a table of it.
pub fn comes_to(statement: &Statement, policies: &PolicySet, seen: &Seen, resource: &str) -> Option<ComesTo> {
    let Seen { catalogue, dependencies, .. } = seen;
    let is_it = |it: &Arc<Resource>| it.name == resource || it.is_called(resource);
    let is_of_it = |table: &RelationName, operation| policies.fenced(table, operation).any(|(it, _)| is_it(it));
    if statement.writes.iter().any(|write| is_of_it(&write.relation, write.operation)) {
        return None;
    }
    let table = statement.writes.iter().find_map(|write| {
        let mut ways =
            catalogue.reached_by(write).filter(|way| is_of_it(way.table, way.operation)).map(|way| way.table);
        let cascades = dependencies.iter().flat_map(|dependencies| dependencies.cascades_to(write));
        ways.next().or_else(|| cascades.into_iter().find(|table| is_of_it(table, Operation::Ddl)))
    });
    let is_function_of_it = |it: &&FunctionName| policies.resources_of_function(it).into_iter().any(is_it);
    let function = || called(statement, catalogue).find(is_function_of_it).cloned().map(ComesTo::Function);
    table.cloned().map(ComesTo::Table).or_else(function)
}

/// The functions that it calls: by name, and by what the catalogue has between the text and them.
fn called<'a>(statement: &'a Statement, catalogue: &'a Catalogue) -> impl Iterator<Item = &'a FunctionName> {
    let named = &statement.functions;
    let by_others = named.iter().flat_map(|function| catalogue.called_by_function(function));
    let by_writes = statement.writes.iter().flat_map(|write| catalogue.called_by(&write.relation, write.operation));
    let by_reads = statement.reads.iter().flat_map(|relation| catalogue.called_by(relation, Operation::Read));
    let by_any = statement.reads_more.then(|| catalogue.called_by_reading()).into_iter().flatten();
    named.iter().chain(by_others).chain(by_writes).chain(by_reads).chain(by_any)
}

fn keys_of(
    statement: &Statement,
    catalogue: &Catalogue,
    resource: &Arc<Resource>,
    table: &FencedTable,
    write: &Write,
    columns: Columns,
) -> Vec<KeyedResource> {
    let column = catalogue.key_column(table);
    let is_guarded = columns == Columns::OfTable && column.is_some_and(|column| column.is_guarded);
    if statement.kind == StatementKind::CopyFrom && is_guarded {
        // The guard looks at each row. Those of a child it need not see.
        return Vec::new();
    }
    keys::resources(resource, table, column, write, columns)
}

/// Each resource once.
#[derive(Default)]
struct Touched(Vec<Touch>);

impl Touched {
    fn add(&mut self, resource: &Arc<Resource>, writes: bool, keys: impl FnOnce() -> Vec<KeyedResource>) {
        let known = self.0.iter().position(|touch| Arc::ptr_eq(&touch.resource, resource));
        let index = known.unwrap_or_else(|| {
            let keys = resource.keyed.as_ref().map(|_| Vec::new());
            self.0.push(Touch { resource: resource.clone(), writes: false, keys });
            self.0.len() - 1
        });
        let touch = &mut self.0[index];
        touch.writes |= writes;
        if let Some(known) = &mut touch.keys {
            known.extend(keys());
        }
    }
}
