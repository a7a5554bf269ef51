//! Fenced tables in the catalog: which of them exist, which writes to other relations reach them, and which functions
//! call functions that count as writes.
//!
//! Owns the catalog query and its result. Must never omit a relation because its path is complicated: a write that may
//! reach a fenced table counts as reaching it.

mod explain;
mod graph;
mod lost;
mod names;
mod sql;

pub use explain::{Covered, Explanation, Unnamed, explanation};
pub use lost::{DatabaseNames, LostFence, fences_at_risk, lost_fences, with_tables};
pub use names::{KeyColumn, NamesFound, PolicyNames, missing_text};
pub use sql::{
    Dependencies, FENCED_KINDS, Fenced, Keys, Subject, Views, database_and_functions, functions_that_mention,
    most_rows, question, question_of_dependencies, settings, with_parameters,
};

use fencegate_policy::{FencedTable, QualifiedName, Resource};
use fencegate_postgres::sql::{StatementResult, column};
use fencegate_statement::{FunctionName, Operation, RelationName, Write};
use graph::{Action, Edge, Graph, Link, Oid, Paths, Through, Way};
use std::collections::{HashMap, HashSet};
use tokio_postgres::SimpleQueryRow;

/// Why the server's catalog rows cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// More rows than are read.
    #[error("more than {most} dependencies lead to the fenced tables{}", of_owner(owner.as_deref()))]
    TooManyWays {
        /// The limit.
        most: usize,
        /// The role that owns most of these relations, so that an operator can ask for some to be dropped.
        owner: Option<String>,
    },
    /// More rows than are read.
    #[error("the fenced tables depend on more than {} relations", sql::MOST_ROWS)]
    TooManyDependencies,
    /// A kind of dependency that this program does not know.
    #[error("the catalog has an unknown type of dependency")]
    UnknownEdge,
}

fn of_owner(owner: Option<&str>) -> String {
    owner.map(|owner| format!(", most of them for relations of role {owner}")).unwrap_or_default()
}

/// The catalog at one moment.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The existing relations with the names of fenced tables.
    fenced: HashSet<QualifiedName>,
    relations: HashMap<Oid, Relation>,
    /// The ways to fenced tables, by the unqualified name of the written relation.
    ways: HashMap<String, Vec<WayTo>>,
    graph: Graph,
    paths: Paths,
    /// The functions that the policies name.
    functions: HashMap<Oid, FunctionName>,
    /// Callers of these functions, by the caller's unqualified name.
    callers: HashMap<String, Vec<Caller>>,
    /// The schemas of temporary relations that lead to fenced tables, but only in the session that created them.
    temporary: HashSet<String>,
    key_columns: HashMap<QualifiedName, KeyColumn>,
    /// Schemas with an operator `=` or a type that may shadow the catalog's in key comparisons.
    shadowing: HashSet<String>,
    has_event_triggers: bool,
}

/// A function that calls one that a policy names.
#[derive(Debug)]
struct Caller {
    schema: String,
    calls: Oid,
}

#[derive(Debug)]
struct Relation {
    name: RelationName,
    /// For users: `partition`, `view`.
    kind: String,
}

/// A path from a relation to a fenced table.
#[derive(Debug)]
struct WayTo {
    table: Oid,
    way: Way,
}

/// The effect of a write to another relation on a fenced table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached<'a> {
    /// The fenced table.
    pub table: &'a RelationName,
    /// The operation on that table.
    pub operation: Operation,
    /// The written relation has the table's columns, with the same names and values.
    pub same_columns: bool,
}

impl Catalog {
    /// Returns true if any fenced table exists.
    pub fn has_fenced_tables(&self) -> bool {
        !self.fenced.is_empty()
    }

    /// Returns true if this fenced table exists.
    pub fn has(&self, table: &QualifiedName) -> bool {
        self.fenced.contains(table)
    }

    /// Returns true if the resource could be written here: one of its tables exists, or it has only functions.
    pub fn may_have(&self, resource: &Resource) -> bool {
        resource.tables.is_empty() || resource.tables.iter().any(|table| self.has(&table.name))
    }

    /// Returns true if the database has event triggers: a statement that changes the catalog may then run code that changes
    /// more of it.
    pub fn has_event_triggers(&self) -> bool {
        self.has_event_triggers
    }

    /// The key column of a table, if the table has a column of that name.
    pub fn key_column(&self, table: &FencedTable) -> Option<&KeyColumn> {
        self.key_columns.get(&table.name)
    }

    /// True if any schema has operators or types that may shadow the catalog's in key comparisons.
    pub fn has_shadows(&self) -> bool {
        !self.shadowing.is_empty()
    }

    /// True if key comparisons with this search path, as `current_schemas(true)` shows it, use the catalog's own
    /// operators and types for unqualified names. False if uncertain.
    pub fn path_leads_to_catalog(&self, path: &str) -> bool {
        let schemas = path.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let is_plain = |schemas: &&str| schemas.is_ascii() && !schemas.contains(['"', '\\']);
        let is_clear = |schemas: &str| schemas.split(',').all(|schema| !self.shadowing.contains(schema));
        self.shadowing.len() < names::MOST_SHADOWS && schemas.filter(is_plain).is_some_and(is_clear)
    }

    /// The effects of a write on fenced tables other than the named relation itself, which may also be fenced.
    pub fn reached_by<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = Reached<'a>> {
        self.ways_from(&write.relation).flat_map(move |WayTo { table, way }| {
            let effects = way.effects.iter().filter(|(operation, _)| *operation == write.operation);
            effects.filter_map(move |(_, operation)| {
                let table = &self.relations.get(table)?.name;
                Some(Reached { table, operation: *operation, same_columns: way.same_columns })
            })
        })
    }

    /// Returns true if some write to the relation reaches a fenced table.
    pub fn leads_from(&self, relation: &RelationName) -> bool {
        self.ways_from(relation).next().is_some()
    }

    /// The policies' functions that this operation on a relation calls.
    pub fn called_by<'a>(
        &'a self,
        relation: &'a RelationName,
        operation: Operation,
    ) -> impl Iterator<Item = &'a FunctionName> {
        let uses = move |way: &Way| way.effects.iter().any(|(by, _)| *by == operation);
        self.ways_from(relation).filter(move |it| uses(&it.way)).filter_map(|it| self.functions.get(&it.table))
    }

    /// The policies' functions that this function calls, as far as the catalog shows.
    pub fn called_by_function<'a>(&'a self, function: &'a FunctionName) -> impl Iterator<Item = &'a FunctionName> {
        let callers = self.callers.get(&function.name).into_iter().flatten();
        let is_meant = |it: &&Caller| is_in_schema(function.schema.as_deref(), &it.schema);
        callers.filter(is_meant).filter_map(|it| self.functions.get(&it.calls))
    }

    /// The policies' functions that reading a relation may call.
    pub fn called_by_reading(&self) -> impl Iterator<Item = &FunctionName> {
        let reads = |it: &&WayTo| it.way.effects.iter().any(|(by, _)| *by == Operation::Read);
        self.ways.values().flatten().filter(reads).filter_map(|it| self.functions.get(&it.table))
    }

    /// Returns true if only a reading for the session that created these temporary relations shows where they lead.
    pub fn leaves_to_session(&self, temporary_schema: &str) -> bool {
        self.temporary.contains(temporary_schema)
    }

    /// The schemas in which a relation of that name leads to a fenced table.
    pub fn schemas_that_lead_by<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let ways = self.ways.get(name).into_iter().flatten();
        ways.filter_map(|it| self.relations.get(&it.way.from)?.name.schema.as_deref())
    }

    fn ways_from<'a>(&'a self, relation: &'a RelationName) -> impl Iterator<Item = &'a WayTo> {
        self.ways.get(&relation.name).into_iter().flatten().filter(move |it| {
            let schema = self.relations.get(&it.way.from).and_then(|from| from.name.schema.as_deref());
            schema.is_some_and(|schema| is_in_schema(relation.schema.as_deref(), schema))
        })
    }

    /// Decodes the result of the [`question`], which has at most this many rows ([`most_rows`]).
    ///
    /// # Errors
    /// The result has more rows, or unknown ones.
    pub fn read(answers: &[StatementResult], most_rows: usize) -> Result<Self, CatalogError> {
        let rows: Vec<&SimpleQueryRow> = answers.iter().flat_map(|answer| &answer.rows).collect();
        if rows.len() > most_rows {
            return Err(CatalogError::TooManyWays { most: most_rows, owner: main_owner(&rows) });
        }
        let mut catalog = Catalog::default();
        let mut fenced: Vec<Oid> = Vec::new();
        let mut edges: Vec<Edge> = Vec::new();
        for row in rows {
            match column(row, "part") {
                Some("relation") => fenced.extend(catalog.add_relation(row)),
                Some("temporary") => catalog.temporary.extend(column(row, "schema").map(str::to_owned)),
                Some("function") => catalog.add_function(row),
                Some("caller") => catalog.add_caller(row),
                Some("event trigger") => catalog.has_event_triggers = true,
                Some("shadow") => catalog.shadowing.extend(column(row, "schema").map(str::to_owned)),
                Some(part) => edges.extend(read_edges(part, row).ok_or(CatalogError::UnknownEdge)?),
                // The lock_timeout, and key columns.
                None => {}
            }
        }
        catalog.key_columns = names::read(answers);
        // If a rule and a view lead to the same relation, report the rule.
        edges.sort_by_key(|edge| (!matches!(edge.link, Link::Rule { .. }), edge.from, edge.to));
        catalog.find_ways(fenced, edges);
        Ok(catalog)
    }

    fn find_ways(&mut self, fenced: Vec<Oid>, edges: Vec<Edge>) {
        self.graph = Graph::new(edges);
        let Catalog { graph, paths, functions, .. } = self;
        let mut found: Vec<(Oid, Vec<Way>)> = Vec::new();
        found.extend(fenced.into_iter().map(|table| (table, graph.ways_to(table, paths))));
        found.extend(functions.keys().map(|function| (*function, graph.calls_of(*function, paths))));
        for (table, ways) in found {
            for way in ways {
                let Some(from) = self.relations.get(&way.from) else { continue };
                self.ways.entry(from.name.name.clone()).or_default().push(WayTo { table, way });
            }
        }
    }

    /// Its number, if it is fenced.
    fn add_relation(&mut self, row: &SimpleQueryRow) -> Option<Oid> {
        let oid = oid(row, "from")?;
        let (schema, name) = (column(row, "schema")?.to_owned(), column(row, "name")?.to_owned());
        let kind = column(row, "kind").unwrap_or("table").to_owned();
        let is_fenced = column(row, "detail") == Some("true");
        if is_fenced {
            self.fenced.insert(QualifiedName { schema: schema.clone(), name: name.clone() });
        }
        self.relations.insert(oid, Relation { name: RelationName { schema: Some(schema), name }, kind });
        is_fenced.then_some(oid)
    }

    fn add_function(&mut self, row: &SimpleQueryRow) {
        let name = column(row, "name").unwrap_or_default().to_owned();
        let schema = column(row, "schema").map(str::to_owned);
        if let Some(oid) = oid(row, "from") {
            self.functions.insert(graph::function(oid), FunctionName { schema, name });
        }
    }

    fn add_caller(&mut self, row: &SimpleQueryRow) {
        let text = |name| column(row, name).unwrap_or_default().to_owned();
        if let Some(calls) = oid(row, "to").map(graph::function) {
            self.callers.entry(text("name")).or_default().push(Caller { schema: text("schema"), calls });
        }
    }
}

/// The owner of the relations from which most of the rows start.
fn main_owner(rows: &[&SimpleQueryRow]) -> Option<String> {
    let owners: HashMap<&str, &str> =
        rows.iter().filter_map(|row| Some((column(row, "from")?, column(row, "owner")?))).collect();
    let mut edges: HashMap<&str, usize> = HashMap::new();
    for owner in rows.iter().filter_map(|row| owners.get(column(row, "from")?)) {
        *edges.entry(owner).or_default() += 1;
    }
    edges.into_iter().max_by_key(|(owner, edges)| (*edges, *owner)).map(|(owner, _)| owner.to_owned())
}

/// The edges of a row; None for an unknown value.
fn read_edges(part: &str, row: &SimpleQueryRow) -> Option<Vec<Edge>> {
    let (from, to) = (oid(row, "from")?, oid(row, "to")?);
    let name = || column(row, "name").unwrap_or_default().to_owned();
    let detail = column(row, "detail")?;
    let edge = |link| vec![Edge { from, to, link }];
    Some(match (part, detail) {
        ("child", kind) => {
            let partitioned = kind == "p";
            let child = Edge { from, to, link: Link::Child { of_partitioned: partitioned } };
            vec![child, Edge { from: to, to: from, link: Link::Parent { partitioned } }]
        }
        ("reference", actions) => {
            let mut actions = actions.chars().map(action);
            edge(Link::ForeignKey { name: name(), on_delete: actions.next()??, on_update: actions.next()?? })
        }
        ("view", "trigger") => edge(Link::View(Through::Trigger)),
        ("view", "stored") => edge(Link::View(Through::Refresh)),
        ("view", events) => edge(Link::View(writes(events)?)),
        ("rule", "2") => edge(Link::Rule { name: name(), event: Operation::Update }),
        ("rule", "3") => edge(Link::Rule { name: name(), event: Operation::Insert }),
        ("call", letters) => {
            vec![Edge { from, to: graph::function(to), link: Link::Call(sql::call_operations(letters)?) }]
        }
        ("rule", "4") => edge(Link::Rule { name: name(), event: Operation::Delete }),
        _ => return None,
    })
}

/// Reads the result of `pg_relation_is_updatable`.
fn writes(events: &str) -> Option<Through> {
    let events: u32 = events.parse().ok()?;
    Some(Through::Writes { update: events & 4 != 0, insert: events & 8 != 0, delete: events & 16 != 0 })
}

/// As in `pg_constraint`.
fn action(letter: char) -> Option<Action> {
    match letter {
        'a' | 'r' => Some(Action::Refuse),
        'c' => Some(Action::Cascade),
        'n' => Some(Action::SetNull),
        'd' => Some(Action::SetDefault),
        _ => None,
    }
}

fn oid(row: &SimpleQueryRow, name: &str) -> Option<Oid> {
    column(row, name)?.parse().ok()
}

/// An unqualified name may mean a relation or function of any schema. `pg_temp` is the session's own schema, such as
/// `pg_temp_3`.
fn is_in_schema(named: Option<&str>, schema: &str) -> bool {
    named.is_none_or(|named| named == schema || named == "pg_temp" && schema.starts_with("pg_temp_"))
}

/// Hand-made catalogs, for tests and benchmarks of higher crates.
impl Catalog {
    /// A catalog in which these fenced tables exist and no other relation leads to them.
    pub fn of_tables(tables: impl IntoIterator<Item = QualifiedName>) -> Self {
        Catalog { fenced: tables.into_iter().collect(), ..Catalog::default() }
    }

    /// Like [`Self::of_tables`], with keyed tables (an integer key in the first column) and with views that show a
    /// table unchanged, in the same schema unless another is named.
    pub fn with_views(
        tables: impl IntoIterator<Item = (QualifiedName, bool)>,
        views: impl IntoIterator<Item = (String, QualifiedName)>,
    ) -> Self {
        let mut catalog = Catalog::default();
        let (mut oids, mut edges) = (HashMap::new(), Vec::new());
        let relation = |schema: &str, name: String, kind: &str| Relation {
            name: RelationName { schema: Some(schema.to_owned()), name },
            kind: kind.to_owned(),
        };
        for (table, is_keyed) in tables {
            let oid = catalog.relations.len() as Oid;
            catalog.relations.insert(oid, relation(&table.schema, table.name.clone(), "table"));
            if is_keyed {
                catalog.key_columns.insert(table.clone(), KeyColumn::integer());
            }
            catalog.fenced.insert(table.clone());
            oids.insert(table, oid);
        }
        let fenced = (0..catalog.relations.len() as Oid).collect();
        for (name, table) in views {
            let (from, to) = (catalog.relations.len() as Oid, oids[&table]);
            let (schema, name) = name.split_once('.').unwrap_or((&table.schema, &name));
            catalog.relations.insert(from, relation(schema, name.to_owned(), "view"));
            let writes = Through::Writes { insert: true, update: true, delete: true };
            edges.push(Edge { from, to, link: Link::View(writes) });
        }
        catalog.find_ways(fenced, edges);
        catalog
    }

    /// Adds a schema with objects that may shadow the catalog's in key comparisons.
    pub fn shadowed_by(mut self, schema: &str) -> Self {
        self.shadowing.insert(schema.to_owned());
        self
    }

    /// The guard checks the keys of all keyed tables.
    pub fn guarded(mut self) -> Self {
        self.key_columns.values_mut().for_each(|column| column.is_guarded = true);
        self
    }
}
