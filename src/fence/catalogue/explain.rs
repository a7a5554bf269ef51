//! What policies cover in a database, for people: every relation, by which operations, and why.
//!
//! Owns the words. Must say what the proxy would do: it reads the same catalogue in the same way.

use super::graph::{Action, Edge, Link, Way};
use super::sql::{self, Views};
use super::{Catalogue, WayTo};
use crate::fence::control::{Answer, answers, column, text};
use crate::policy::{FencedTable, PolicySet, QualifiedName, Resource, quoted};
use crate::statement::{Operation, RelationName};
use crate::tls::ControlConfig;
use std::collections::HashSet;
use tokio_postgres::Client;

/// What policies cover in one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The database's name.
    pub database: String,
    /// In the order of the policies.
    pub covered: Vec<Covered>,
}

/// One relation or function, and why writing or calling it is writing to the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The resource's name.
    pub resource: String,
    /// As in SQL.
    pub relation: String,
    /// `table`, `partition`, `view` and so on; None where the policy names what does not exist, or a key that is none.
    pub kind: Option<String>,
    /// Those that count, as in a policy.
    pub operations: String,
    /// From the relation to the fenced table; or why its key is none.
    pub path: String,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No connection.
    #[error("cannot connect: {}", text(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The server refused.
    #[error("cannot read the catalogue: {}", text(.0))]
    Refused(#[source] tokio_postgres::Error),
    /// The catalogue cannot be understood.
    #[error("cannot read the catalogue: {0}")]
    Catalogue(String),
}

/// Reads what the policies cover in the database of `config`, as any role that can connect. Cancel safe.
///
/// # Errors
/// When the database cannot be asked.
pub async fn explain(config: &ControlConfig, policies: &PolicySet) -> Result<Explanation, ExplainError> {
    let (client, connection) = config.connect().await.map_err(ExplainError::Connect)?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    ask(&client, "SET standard_conforming_strings = on; SET search_path = pg_catalog").await?;
    let tables: Vec<_> =
        policies.resources.iter().flat_map(|resource| resource.tables.iter().map(|it| (&**resource, it))).collect();
    let question = |views| super::question(&tables, views);
    let answers = match ask(&client, &question(Views::Asked)).await {
        Ok(answers) => answers,
        // Somebody alters a view.
        Err(_) => ask(&client, &question(Views::AllWritable)).await?,
    };
    let catalogue = Catalogue::read(&answers).map_err(ExplainError::Catalogue)?;
    let answers = ask(&client, &sql::database_and_functions(policies)).await?;
    let rows = || answers.iter().flat_map(|answer| &answer.rows);
    let database = rows().find_map(|row| column(row, "database")).unwrap_or_default().to_owned();
    let function =
        |row| Some(QualifiedName { schema: column(row, "schema")?.into(), name: column(row, "name")?.into() });
    let functions: HashSet<QualifiedName> = rows().filter_map(function).collect();
    let covered = policies.resources.iter().flat_map(|resource| catalogue.covered(resource, &functions)).collect();
    Ok(Explanation { database, covered })
}

async fn ask(client: &Client, query: &str) -> Result<Vec<Answer>, ExplainError> {
    client.simple_query(query).await.map(answers).map_err(ExplainError::Refused)
}

impl Catalogue {
    fn covered(&self, resource: &Resource, functions: &HashSet<QualifiedName>) -> Vec<Covered> {
        let tables = resource.tables.iter().flat_map(|table| self.covered_with(table));
        let functions = resource.functions.iter().map(|function| {
            let kind = functions.contains(function).then(|| "function".to_owned());
            (function.to_string(), kind, "call".to_owned(), NAMED.to_owned())
        });
        let row = |(relation, kind, operations, path)| Covered {
            resource: resource.name.clone(),
            relation,
            kind,
            operations,
            path,
        };
        tables.chain(functions).map(row).collect()
    }

    /// A table of a policy, then all by which it is reached, the nearest first.
    fn covered_with(&self, table: &FencedTable) -> Vec<Row> {
        let name = RelationName { schema: Some(table.name.schema.clone()), name: table.name.name.clone() };
        let known = self.relations.iter().find(|(_, relation)| relation.name == name);
        let kind = known.filter(|_| self.fenced.contains(&table.name)).map(|(_, relation)| relation.kind.clone());
        let unkeyed = self.not_keyed(table).filter(|_| kind.is_some());
        let (kind, path) = match unkeyed {
            Some(why) => (None, why),
            None => (kind, NAMED.to_owned()),
        };
        let mut rows = vec![(table.name.to_string(), kind, listed(&table.operations), path)];
        let mut reached: Vec<(usize, Row)> =
            self.ways.values().flatten().filter_map(|it| self.row(it, table, known.map(|(oid, _)| *oid)?)).collect();
        reached.sort();
        rows.extend(reached.into_iter().map(|(_, row)| row));
        if table.operations.contains(&Operation::Ddl) {
            let is_covered = |name: &String| rows.iter().any(|row| row.0 == *name && row.2.ends_with("ddl"));
            let mut dropped: Vec<Row> = self.dropped_with(&name).filter(|row| !is_covered(&row.0)).collect();
            dropped.sort();
            rows.extend(dropped);
        }
        rows
    }

    /// Why its key column tells no rows apart; None where it does, or the table is not keyed.
    fn not_keyed(&self, table: &FencedTable) -> Option<String> {
        let name = quoted(table.key.as_ref()?);
        match self.key_column(table).map(|column| column.kind) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("key column {name}: {why}")),
            None => Some(format!("key column {name} does not exist")),
        }
    }

    /// How far away it is, and what is said about it; None where it does not count.
    fn row(&self, WayTo { table: to, way }: &WayTo, table: &FencedTable, oid: u32) -> Option<(usize, Row)> {
        let relation = self.relations.get(&way.from).filter(|_| *to == oid)?;
        let is_new = |operation: Operation| {
            let same = if operation == Operation::TruncateCascade { Operation::Truncate } else { operation };
            way.from != oid || !table.operations.contains(&same)
        };
        let counts =
            |(operation, effect): &&(Operation, Operation)| table.operations.contains(effect) && is_new(*operation);
        let operations: Vec<Operation> = way.effects.iter().filter(counts).map(|(operation, _)| *operation).collect();
        if operations.is_empty() {
            return None;
        }
        let hops = self.hops(way);
        let path: Vec<String> = hops.iter().map(|edge| self.hop_text(edge)).collect();
        let name = sql_name(&relation.name);
        Some((hops.len(), (name, Some(relation.kind.clone()), listed(&operations), path.join(", "))))
    }

    fn hops(&self, way: &Way) -> Vec<&Edge> {
        let mut hops = Vec::new();
        let mut next = Some(way.hop);
        while let Some(hop) = next.and_then(|index| self.paths.hops.get(index)) {
            hops.extend(self.graph.edges.get(hop.edge));
            next = hop.next;
        }
        hops
    }

    fn hop_text(&self, edge: &Edge) -> String {
        let to = self.relations.get(&edge.to).map(|to| sql_name(&to.name)).unwrap_or_default();
        match &edge.link {
            Link::Child { of_partitioned: true } => format!("partition of {to}"),
            Link::Child { of_partitioned: false } => format!("inherits from {to}"),
            Link::Parent { .. } => format!("parent of {to}"),
            Link::View(_) => format!("view on {to}"),
            Link::Rule { name, .. } => format!("rule {} on {to}", quoted(name)),
            Link::ForeignKey { name, on_delete, on_update } => {
                let action = |event, action| match action {
                    Action::Refuse => String::new(),
                    Action::Cascade => format!(" on {event} cascade"),
                    Action::SetNull => format!(" on {event} set null"),
                    Action::SetDefault => format!(" on {event} set default"),
                };
                format!(
                    "foreign key {} of {to}{}{}",
                    quoted(name),
                    action("delete", *on_delete),
                    action("update", *on_update)
                )
            }
        }
    }

    /// The relations with which CASCADE drops something of the table.
    fn dropped_with<'a>(&'a self, table: &'a RelationName) -> impl Iterator<Item = Row> + 'a {
        self.depended_on.iter().flat_map(move |(name, all)| {
            all.iter().filter(move |it| it.by == *table).map(move |it| {
                let name = RelationName { schema: Some(it.schema.clone()), name: name.clone() };
                let kind = self.relations.values().find(|relation| relation.name == name);
                let kind = kind.map_or("table", |relation| relation.kind.as_str()).to_owned();
                let path = format!("needed by {}", sql_name(table));
                (sql_name(&name), Some(kind), "drop cascade".to_owned(), path)
            })
        })
    }
}

/// Relation, kind, operations, path.
type Row = (String, Option<String>, String, String);

const NAMED: &str = "named in the policy";

/// Each once, in the order of policies.
fn listed(operations: &[Operation]) -> String {
    use Operation::{Ddl, Delete, Insert, Truncate, TruncateCascade, Update};
    let names = [
        (Insert, "insert"),
        (Update, "update"),
        (Delete, "delete"),
        (Truncate, "truncate"),
        (TruncateCascade, "truncate cascade"),
        (Ddl, "ddl"),
    ];
    let names: Vec<&str> = names.iter().filter(|(it, _)| operations.contains(it)).map(|(_, name)| *name).collect();
    names.join(", ")
}

fn sql_name(relation: &RelationName) -> String {
    QualifiedName { schema: relation.schema.clone().unwrap_or_default(), name: relation.name.clone() }.to_string()
}
