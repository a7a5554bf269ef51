//! From a name in a statement to the resources that it may mean.
//!
//! Must never miss one: a name without a schema means the tables of that name in every schema.

use super::{QualifiedName, Resource};
use crate::statement::Operation;
use std::{collections::HashMap, sync::Arc};

/// The tables and functions of a set, by their own names.
#[derive(Debug, Default)]
pub(super) struct Index {
    tables: HashMap<String, Vec<Entry>>,
    functions: HashMap<String, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    schema: String,
    /// What is fenced of a table; empty for a function.
    operations: Vec<Operation>,
    resource: Arc<Resource>,
}

impl Index {
    pub(super) fn new(resources: &[Arc<Resource>]) -> Self {
        let mut index = Self::default();
        for resource in resources {
            for table in &resource.tables {
                insert(&mut index.tables, &table.name, table.operations.clone(), resource);
            }
            for function in &resource.functions {
                insert(&mut index.functions, function, Vec::new(), resource);
            }
        }
        index
    }

    pub(super) fn resources_of_table(
        &self,
        schema: Option<&str>,
        name: &str,
        operation: Operation,
    ) -> Vec<&Arc<Resource>> {
        matching(&self.tables, schema, name, |entry| match operation {
            Operation::Lock => entry.operations.iter().any(|fenced| is_row_operation(*fenced)),
            _ => entry.operations.contains(&operation),
        })
    }

    pub(super) fn has_table(&self, schema: Option<&str>, name: &str) -> bool {
        !matching(&self.tables, schema, name, |_| true).is_empty()
    }

    pub(super) fn resources_of_function(&self, schema: Option<&str>, name: &str) -> Vec<&Arc<Resource>> {
        matching(&self.functions, schema, name, |_| true)
    }
}

fn insert(
    entries: &mut HashMap<String, Vec<Entry>>,
    name: &QualifiedName,
    operations: Vec<Operation>,
    resource: &Arc<Resource>,
) {
    let entry = Entry { schema: name.schema.clone(), operations, resource: Arc::clone(resource) };
    entries.entry(name.name.clone()).or_default().push(entry);
}

fn matching<'i>(
    entries: &'i HashMap<String, Vec<Entry>>,
    schema: Option<&str>,
    name: &str,
    is_fenced: impl Fn(&Entry) -> bool,
) -> Vec<&'i Arc<Resource>> {
    let mut found: Vec<&Arc<Resource>> = Vec::new();
    for entry in entries.get(name).into_iter().flatten() {
        if schema.is_none_or(|schema| schema == entry.schema)
            && is_fenced(entry)
            && !found.iter().any(|other| Arc::ptr_eq(other, &entry.resource))
        {
            found.push(&entry.resource);
        }
    }
    found
}

/// What locks on rows can hold up.
fn is_row_operation(operation: Operation) -> bool {
    matches!(operation, Operation::Insert | Operation::Update | Operation::Delete)
}
