//! From a name in a statement to the resources that it may mean.
//!
//! Each statement asks, so that no answer may take longer where there are more resources. Must never miss one: a name without
//! a schema means the tables of that name in every schema.

use super::{FencedFunction, FencedTable, Resource};
use fencegate_statement::{FunctionName, Operation};
use std::{collections::HashMap, sync::Arc};

/// The tables and functions of a set, by their own names.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Each with its place in the list of its resource's tables.
    tables: HashMap<String, Vec<(Arc<Resource>, usize)>>,
    functions: HashMap<String, Vec<(Arc<Resource>, FencedFunction)>>,
    /// Functions given by a prefix of their name.
    prefixes: Vec<(Arc<Resource>, FencedFunction)>,
    has_keys: bool,
}

impl Index {
    pub(super) fn new(resources: &[Arc<Resource>]) -> Self {
        let has_keys = resources.iter().any(|resource| resource.keyed.is_some());
        let mut index = Self { has_keys, ..Self::default() };
        for resource in resources {
            for (place, table) in resource.tables.iter().enumerate() {
                index.tables.entry(table.name.name.clone()).or_default().push((resource.clone(), place));
            }
            for function in &resource.functions {
                let entry = (resource.clone(), function.clone());
                match function.is_prefix {
                    true => index.prefixes.push(entry),
                    false => index.functions.entry(function.name.name.clone()).or_default().push(entry),
                }
            }
        }
        index
    }

    pub(super) fn has_functions(&self) -> bool {
        !(self.functions.is_empty() && self.prefixes.is_empty())
    }

    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// The tables that may be meant, whatever is fenced of them.
    pub(super) fn tables<'i>(
        &'i self,
        schema: Option<&'i str>,
        name: &str,
    ) -> impl Iterator<Item = (&'i Arc<Resource>, &'i FencedTable)> {
        let entries = self.tables.get(name).into_iter().flatten();
        let tables = entries.map(|(resource, place)| (resource, &resource.tables[*place]));
        tables.filter(move |(_, table)| schema.is_none_or(|schema| schema == table.name.schema))
    }

    pub(super) fn resources_of_function(&self, called: &FunctionName) -> Vec<&Arc<Resource>> {
        let mut found: Vec<&Arc<Resource>> = Vec::new();
        for (resource, function) in self.functions.get(&called.name).into_iter().flatten().chain(&self.prefixes) {
            if function.is_meant_by(called) && !found.iter().any(|other| Arc::ptr_eq(other, resource)) {
                found.push(resource);
            }
        }
        found
    }
}

impl FencedTable {
    /// Returns true if its absence there is to be reported.
    pub fn is_expected_in(&self, database: &str) -> bool {
        self.database.as_ref().is_none_or(|expected| expected == database)
    }

    /// The fence applies to the operation.
    pub(super) fn fences(&self, operation: Operation) -> bool {
        match operation {
            Operation::Lock => self.operations.iter().any(|fenced| is_row_operation(*fenced)),
            _ => self.operations.contains(&operation),
        }
    }
}

/// Returns true if locks on rows can delay the operation.
fn is_row_operation(operation: Operation) -> bool {
    matches!(operation, Operation::Insert | Operation::Update | Operation::Delete)
}
