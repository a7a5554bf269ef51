//! What the database's catalogue says about the fenced tables: whether one exists, and which writes to other relations
//! are writes to one.
//!
//! Owns that question and its answer. Must never leave a relation out for being complicated: where a write may be one to
//! a fenced table, it is.

mod explain;
mod graph;
mod key_column;
mod sql;

pub use explain::{Covered, ExplainError, Explanation, explain};
pub use key_column::KeyColumn;

use super::control::{Answer, ControlError, answers, column, text, unreachable};
use super::database::Database;
use super::memory::CATALOGUE_CHANGED;
use super::refusal::Hindrance;
use crate::policy::{FencedTable, QualifiedName, Resource};
use crate::statement::{Operation, RelationName, Write};
use graph::{Action, Edge, Graph, Link, Oid, Paths, Through, Way};
use sql::Views;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_postgres::SimpleQueryRow;

/// The catalogue at one moment.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// The fenced tables that exist, or whatever has their names.
    fenced: HashSet<QualifiedName>,
    relations: HashMap<Oid, Relation>,
    /// By the own name of the relation that is written.
    ways: HashMap<String, Vec<WayTo>>,
    graph: Graph,
    paths: Paths,
    depended_on: HashMap<String, Vec<DependedOn>>,
    key_columns: HashMap<QualifiedName, KeyColumn>,
    /// The schemas that have an operator `=`, or a type, which may stand before the catalogue's own in what tells a key.
    shadowing: HashSet<String>,
    has_event_triggers: bool,
}

#[derive(Debug)]
struct Relation {
    name: RelationName,
    /// As people say it: `partition`, `view`.
    kind: String,
}

/// A way to a fenced table.
#[derive(Debug)]
struct WayTo {
    table: Oid,
    way: Way,
}

/// A relation on which something of a fenced table depends: a foreign key, a column's type, a parent.
#[derive(Debug)]
struct DependedOn {
    schema: String,
    by: RelationName,
}

/// What a write to another relation does to a fenced table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached<'a> {
    /// The fenced table.
    pub table: &'a RelationName,
    /// What is done to it.
    pub operation: Operation,
    /// What is written has the table's columns under the same names, with the values that come to stand there.
    pub same_columns: bool,
}

impl Catalogue {
    /// A fenced table exists.
    pub fn has_fenced_tables(&self) -> bool {
        !self.fenced.is_empty()
    }

    /// The fenced table exists.
    pub fn has(&self, table: &QualifiedName) -> bool {
        self.fenced.contains(table)
    }

    /// The resource has something here that could be written: one of its tables exists, or it has functions only.
    pub fn may_have(&self, resource: &Resource) -> bool {
        resource.tables.is_empty() || resource.tables.iter().any(|table| self.has(&table.name))
    }

    /// Any statement that changes the catalogue may run code that changes more of it.
    pub fn has_event_triggers(&self) -> bool {
        self.has_event_triggers
    }

    /// The column by which a table is keyed, if there is one of that name.
    pub fn key_column(&self, table: &FencedTable) -> Option<&KeyColumn> {
        self.key_columns.get(&table.name)
    }

    /// Some schema has what may stand before the catalogue's own operators and types in what tells a key.
    pub fn has_shadows(&self) -> bool {
        !self.shadowing.is_empty()
    }

    /// With this search path, as `current_schemas(true)` shows it, operators and types without a schema are the
    /// catalogue's own wherever they tell a key. What is not plainly so is not.
    pub fn path_leads_to_catalogue(&self, path: &str) -> bool {
        let schemas = path.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let is_plain = |schemas: &&str| schemas.is_ascii() && !schemas.contains(['"', '\\']);
        let is_clear = |schemas: &str| schemas.split(',').all(|schema| !self.shadowing.contains(schema));
        self.shadowing.len() < key_column::MOST_SHADOWS && schemas.filter(is_plain).is_some_and(is_clear)
    }

    /// What a write does to fenced tables beside doing it to the relation that it names. That may be a fenced table too.
    pub fn reached_by<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = Reached<'a>> {
        self.ways_from(&write.relation).flat_map(move |WayTo { table, way }| {
            let effects = way.effects.iter().filter(|(operation, _)| *operation == write.operation);
            effects.filter_map(move |(_, operation)| {
                let table = &self.relations.get(table)?.name;
                Some(Reached { table, operation: *operation, same_columns: way.same_columns })
            })
        })
    }

    /// Some write to the relation is a write to a fenced table.
    pub fn leads_from(&self, relation: &RelationName) -> bool {
        self.ways_from(relation).next().is_some()
    }

    /// The fenced tables that such a write to a relation changes as well, because it drops what depends on the relation.
    pub fn cascades_to<'a>(&'a self, write: &'a Write) -> impl Iterator<Item = &'a RelationName> {
        let relation = &write.relation;
        let found = self.depended_on.get(&relation.name).filter(|_| write.operation == Operation::Cascade);
        found.into_iter().flatten().filter(move |it| is_in_schema(relation, &it.schema)).map(|it| &it.by)
    }

    fn ways_from<'a>(&'a self, relation: &'a RelationName) -> impl Iterator<Item = &'a WayTo> {
        self.ways.get(&relation.name).into_iter().flatten().filter(move |it| {
            let schema = self.relations.get(&it.way.from).and_then(|from| from.name.schema.as_deref());
            schema.is_some_and(|schema| is_in_schema(relation, schema))
        })
    }

    fn read(answers: &[Answer]) -> Result<Self, String> {
        let rows: Vec<&SimpleQueryRow> = answers.iter().flat_map(|answer| &answer.rows).collect();
        if rows.len() > sql::MOST_ROWS {
            return Err(format!("more than {} relations have to do with the fenced tables", sql::MOST_ROWS));
        }
        let mut catalogue = Catalogue::default();
        let mut fenced: Vec<Oid> = Vec::new();
        let mut edges: Vec<Edge> = Vec::new();
        for row in rows {
            match column(row, "part") {
                Some("relation") => fenced.extend(catalogue.add_relation(row)),
                Some("dependency") => catalogue.add_dependency(row),
                Some("event trigger") => catalogue.has_event_triggers = true,
                Some("shadow") => catalogue.shadowing.extend(column(row, "schema").map(str::to_owned)),
                Some(part) => edges.extend(read_edges(part, row).ok_or("the catalogue has an edge that is not known")?),
                // The lock_timeout, and key columns.
                None => {}
            }
        }
        catalogue.key_columns = key_column::read(answers);
        catalogue.graph = Graph::new(edges);
        for table in fenced {
            for way in catalogue.graph.ways_to(table, &mut catalogue.paths) {
                let Some(from) = catalogue.relations.get(&way.from) else { continue };
                catalogue.ways.entry(from.name.name.clone()).or_default().push(WayTo { table, way });
            }
        }
        Ok(catalogue)
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

    fn add_dependency(&mut self, row: &SimpleQueryRow) {
        let text = |name| column(row, name).unwrap_or_default().to_owned();
        let by = RelationName { schema: Some(text("by_schema")), name: text("by_name") };
        self.depended_on.entry(text("name")).or_default().push(DependedOn { schema: text("schema"), by });
    }
}

/// All that is asked of the catalogue.
fn question(tables: &[(&Resource, &FencedTable)], views: Views) -> String {
    let keys = key_column::query(tables.iter().copied());
    format!("{}; {keys}", sql::question(tables.iter().map(|(_, table)| &table.name), views))
}

/// The edges that a row stands for; None where it says what is not known.
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
        ("view", events) => edge(Link::View(writes(events)?)),
        ("rule", "2") => edge(Link::Rule { name: name(), event: Operation::Update }),
        ("rule", "3") => edge(Link::Rule { name: name(), event: Operation::Insert }),
        ("rule", "4") => edge(Link::Rule { name: name(), event: Operation::Delete }),
        _ => return None,
    })
}

/// Of what `pg_relation_is_updatable` says.
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

/// A statement that leaves the schema out may mean any. `pg_temp` is the session's own, `pg_temp_3` or the like.
fn is_in_schema(relation: &RelationName, schema: &str) -> bool {
    relation
        .schema
        .as_deref()
        .is_none_or(|named| named == schema || named == "pg_temp" && schema.starts_with("pg_temp_"))
}

impl Database {
    /// Reads the catalogue for these tables. Cancel safe.
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn catalogue(self: &Arc<Self>, tables: &[(&Resource, &FencedTable)]) -> Result<Catalogue, Hindrance> {
        let question = |views| question(tables, views);
        let answers = match self.look(&question(Views::Asked)).await {
            Ok(answers) => answers,
            // Somebody alters a view: nothing is left out then.
            Err(ControlError::Refused(_) | ControlError::Denied(_)) => self.look(&question(Views::AllWritable)).await?,
            // Where nothing is fenced, nobody has to have run `fencegate init`; and what failed a moment ago, when the
            // database was being made, need not fail now.
            Err(_) => self.ask_once(&question(Views::AllWritable)).await?,
        };
        let catalogue = Catalogue::read(&answers)?;
        self.has_fenced_tables.store(catalogue.has_fenced_tables(), Ordering::Relaxed);
        Ok(catalogue)
    }

    /// Somebody else says that the catalogue has changed; several who do so at once are one. Cancel safe.
    pub async fn catalogue_announced(&self) {
        self.memory.catalogue.notified().await;
    }

    /// Tells the other proxies that the catalogue has changed. Cancel safe: they may not be told.
    pub async fn announce_catalogue(self: &Arc<Self>) {
        // On the connection that listens, so that it is not taken for news of somebody else.
        if let Err(error) = self.look(&format!("SELECT pg_notify('fencegate', '{CATALOGUE_CHANGED}')")).await {
            tracing::debug!(database = self.name(), %error, "catalogue_change_not_announced");
        }
    }

    /// The number of the connection that listens to announcements; 0 where none does.
    pub fn listener(&self) -> u64 {
        self.memory.listener()
    }

    async fn ask_once(&self, query: &str) -> Result<Vec<Answer>, ControlError> {
        let (client, connection) = self.control.connect().await.map_err(unreachable)?;
        // Ends when the client is dropped.
        tokio::spawn(connection);
        let refused = |error| ControlError::Refused(text(&error));
        let settings = "SET application_name = 'fencegate control'; SET search_path = pg_catalog";
        client.simple_query(settings).await.map_err(refused)?;
        client.simple_query(query).await.map(answers).map_err(refused)
    }
}
