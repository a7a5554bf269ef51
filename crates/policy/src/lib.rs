//! Policies: which tables are fenced, how, and for which roles.
//!
//! Owns the YAML model, the loading of a directory with positions for every error, and the lookup of the resources that
//! a name in a statement may mean. Must never
//! - apply a part of a directory: a set is accepted or refused as a whole;
//! - take longer to look up resources if there are more of them, because each statement looks them up;
//! - miss a resource: a name without a schema means the tables of that name in every schema.

mod difference;
mod document;
mod keyed;
mod load;
mod name;
pub mod nearest;
mod resource;
#[cfg(test)]
mod tests;
pub mod yaml;

pub use difference::PolicyChange;
pub use keyed::{InvalidTemplate, Keyed, Template, percent_decoded, percent_encoded};
pub use load::{join, load};
pub use name::{FencedFunction, QualifiedName, quoted};
pub use resource::{FencedTable, Issuer, Issuers, Mode, OnMissing, Resource, guard_arguments, guarded_lease};
pub use yaml::FileError;

use crate::yaml::Position;
use fencegate_leader::ElectionName;
use fencegate_statement::{FunctionName, Operation, RelationName};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// All policies of one directory, validated. Created by [`load()`] or [`PolicySet::new`], and immutable.
#[derive(Clone, Debug)]
pub struct PolicySet {
    /// The resources, in the order of the file names and of the lists in the files.
    pub resources: Vec<Arc<Resource>>,
    /// Rule for statements whose text does not show what they write.
    pub opaque: Opaque,
    /// Rules for opaque statements of individual login roles.
    pub opaque_roles: BTreeMap<String, Opaque>,
    /// The databases in which the resources are fenced; None: wherever a named table exists.
    pub databases: Option<Vec<String>>,
    /// Login roles that bypass the fences.
    pub exempt_roles: Vec<String>,
    /// Number of files that the set was read from.
    pub files: usize,
    /// Time of the load. If proxies load different sets, the latest one is in force.
    pub loaded: Instant,
    index: Index,
    /// Position of each table's declaration, if it was in a file.
    places: HashMap<QualifiedName, (PathBuf, Position)>,
}

/// An empty set, which fences nothing.
impl Default for PolicySet {
    fn default() -> Self {
        Self::new(Vec::new(), Opaque::default(), None, Vec::new())
    }
}

impl PolicySet {
    /// A set of these resources. Sets their fingerprints, which depend on the rest of the set.
    pub fn new(
        resources: Vec<Resource>,
        opaque: Opaque,
        databases: Option<Vec<String>>,
        exempt_roles: Vec<String>,
    ) -> Self {
        let set = Self {
            resources: resources.into_iter().map(Arc::new).collect(),
            opaque,
            opaque_roles: BTreeMap::new(),
            databases,
            exempt_roles,
            files: 0,
            loaded: Instant::now(),
            index: Index::default(),
            places: HashMap::new(),
        };
        set.with_opaque_roles(BTreeMap::new())
    }

    /// This set with another value of `opaque` for these login roles.
    pub fn with_opaque_roles(mut self, opaque_roles: BTreeMap<String, Opaque>) -> Self {
        self.opaque_roles = opaque_roles;
        let settings = difference::settings(&self);
        let with_fingerprint = |resource: &Arc<Resource>| {
            let fingerprint = difference::fingerprint(&settings, resource);
            Arc::new(Resource { fingerprint, ..Resource::clone(resource) })
        };
        self.resources = self.resources.iter().map(with_fingerprint).collect();
        self.index = Index::new(&self.resources);
        self
    }

    /// An error about a table, with the position of its declaration; `None` if it is in no file.
    pub fn fault_at(&self, table: &QualifiedName, message: &str) -> Option<FileError> {
        let (file, at) = self.places.get(table)?;
        Some(FileError::new(file, *at, message))
    }

    /// Returns true if the role bypasses the fences.
    pub fn exempts(&self, role: &str) -> bool {
        self.exempt_roles.iter().any(|exempt| exempt == role)
    }

    /// Returns true if the set may fence a table in the database of that name.
    pub fn applies_to(&self, database: &str) -> bool {
        !self.resources.is_empty()
            && self.databases.as_ref().is_none_or(|databases| databases.iter().any(|name| name == database))
    }

    /// Returns true if a fence is enforced.
    pub fn enforces(&self) -> bool {
        self.resources.iter().any(|resource| resource.mode == Mode::Enforce)
    }

    /// The rule for opaque statements of the role.
    pub fn opaque_of(&self, role: &str) -> Opaque {
        self.opaque_roles.get(role).copied().unwrap_or(self.opaque)
    }

    /// Returns true if the set names functions.
    pub fn has_functions(&self) -> bool {
        self.index.has_functions()
    }

    /// Returns true if a resource is keyed.
    pub fn has_keys(&self) -> bool {
        self.index.has_keys()
    }

    /// The resource as declared in its policy, by its own name or by the name of one of its keys.
    pub fn resource_called(&self, name: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|resource| resource.is_called(name))
    }

    /// The elections in etcd that issue tokens of resources, without those of single keys.
    pub fn elections(&self) -> BTreeSet<ElectionName> {
        self.resources.iter().filter_map(|resource| resource.election().cloned()).collect()
    }

    /// The tables whose fences an operation on a relation may affect, each with its resource. A relation without a
    /// schema may be the table of that name in any schema. [`Operation::Lock`] affects every table with fenced inserts,
    /// updates or deletes.
    pub fn fenced<'a>(
        &'a self,
        relation: &'a RelationName,
        operation: Operation,
    ) -> impl Iterator<Item = (&'a Arc<Resource>, &'a FencedTable)> {
        self.tables_called(relation).filter(move |(_, table)| table.fences(operation))
    }

    /// The fenced tables that a relation's name may refer to, each with its resource.
    pub fn tables_called<'a>(
        &'a self,
        relation: &'a RelationName,
    ) -> impl Iterator<Item = (&'a Arc<Resource>, &'a FencedTable)> {
        self.index.tables(relation.schema.as_deref(), &relation.name)
    }

    /// The resources that a call of this function may write, each once. A function without a schema may be the one of that
    /// name in any schema.
    pub fn resources_of_function(&self, function: &FunctionName) -> Vec<&Arc<Resource>> {
        self.index.resources_of_function(function)
    }
}

/// The rule for opaque statements in a database where a fenced table exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opaque {
    /// LF004.
    #[default]
    Reject,
    /// The statement passes if the session's token is in force for every resource that it may write. It raises no token.
    RequireToken,
    /// The statement passes.
    Allow,
}

impl Opaque {
    /// The value's name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Opaque::Reject => "reject",
            Opaque::RequireToken => "require_token",
            Opaque::Allow => "allow",
        }
    }
}

/// The tables and functions of a set, by their own names.
#[derive(Clone, Debug, Default)]
struct Index {
    /// Each with its index in the list of its resource's tables.
    tables: HashMap<String, Vec<(Arc<Resource>, usize)>>,
    functions: HashMap<String, Vec<(Arc<Resource>, FencedFunction)>>,
    /// Functions declared by a prefix of their names.
    prefixes: Vec<(Arc<Resource>, FencedFunction)>,
    has_keys: bool,
}

impl Index {
    fn new(resources: &[Arc<Resource>]) -> Self {
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

    fn has_functions(&self) -> bool {
        !(self.functions.is_empty() && self.prefixes.is_empty())
    }

    fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// The tables that the name may mean, regardless of the fenced operations.
    fn tables<'i>(
        &'i self,
        schema: Option<&'i str>,
        name: &str,
    ) -> impl Iterator<Item = (&'i Arc<Resource>, &'i FencedTable)> {
        let entries = self.tables.get(name).into_iter().flatten();
        let tables = entries.map(|(resource, place)| (resource, &resource.tables[*place]));
        tables.filter(move |(_, table)| schema.is_none_or(|schema| schema == table.name.schema))
    }

    fn resources_of_function(&self, called: &FunctionName) -> Vec<&Arc<Resource>> {
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
    /// Returns true if a missing table must be reported for that database.
    pub fn is_expected_in(&self, database: &str) -> bool {
        self.database.as_ref().is_none_or(|expected| expected == database)
    }

    /// The fence applies to the operation.
    fn fences(&self, operation: Operation) -> bool {
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
