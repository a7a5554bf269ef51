//! Human-readable coverage of policies in a database: every relation, by which operations, and why.
//!
//! Owns the wording. Must report what the proxy would do: it reads the same catalog in the same way.

use super::graph::{Action, Edge, Link, Oid, Way};
use super::{Catalog, Dependencies, Relation, WayTo};
use fencegate_policy::{FencedFunction, FencedTable, PolicySet, QualifiedName, Resource, quoted};
use fencegate_postgres::sql::{StatementResult, column, is_true};
use fencegate_statement::{FunctionName, Operation, RelationName};
use std::collections::HashSet;
use tokio_postgres::SimpleQueryRow;

/// The coverage of policies in one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The database's name.
    pub database: String,
    /// Covered relations and functions, in the order of the policies.
    pub covered: Vec<Covered>,
    /// The functions that the table's policy does not name, and whose source mentions it.
    pub unnamed: Vec<Unnamed>,
}

/// A function that may write a fenced table, and that the table's resource does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// The resource's name.
    pub resource: String,
    /// The function.
    pub function: QualifiedName,
    /// The fenced table.
    pub table: QualifiedName,
    /// True if the function's own source mentions the table. Otherwise the source of a function that it calls does.
    pub is_direct: bool,
}

/// One relation or function, and why writing or calling it counts as a write to the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The resource's name.
    pub resource: String,
    /// Name in SQL.
    pub relation: String,
    /// `table`, `partition`, `view` and so on; None if the relation does not exist or the policy's key is invalid.
    pub kind: Option<String>,
    /// The operations that count, with their names in a policy.
    pub operations: String,
    /// The path from the relation to the fenced table, or the reason why the key is invalid.
    pub path: String,
}

/// The coverage of policies, from a catalog and the results of [`super::database_and_functions`] and
/// [`super::functions_that_mention`].
pub fn explanation(
    policies: &PolicySet,
    catalog: &Catalog,
    dependencies: &Dependencies,
    answers: &[StatementResult],
    mentions: &[StatementResult],
) -> Explanation {
    let rows = || answers.iter().flat_map(|answer| &answer.rows);
    let database = rows().find_map(|row| column(row, "database")).unwrap_or_default().to_owned();
    let function =
        |row| Some(QualifiedName { schema: column(row, "schema")?.into(), name: column(row, "name")?.into() });
    let functions: Vec<QualifiedName> = rows().filter_map(function).collect();
    let covered = policies
        .resources
        .iter()
        .flat_map(|resource| catalog.covered(&database, resource, &functions, dependencies))
        .collect();
    let mentions = mentions.iter().flat_map(|answer| &answer.rows);
    let unnamed = mentions.filter_map(|row| unnamed(policies, function(row)?, row)).collect();
    Explanation { database, covered, unnamed }
}

/// Also reports a function that mentions a table of one resource and is named in another: a call needs the tokens of
/// both.
fn unnamed(policies: &PolicySet, function: QualifiedName, row: &SimpleQueryRow) -> Option<Unnamed> {
    let text = |name| column(row, name).map(str::to_owned);
    let table = QualifiedName { schema: text("table_schema")?, name: text("table_name")? };
    let resource = policies.resources.iter().find(|resource| resource.tables.iter().any(|it| it.name == table))?;
    let called = FunctionName { schema: Some(function.schema.clone()), name: function.name.clone() };
    let is_named = resource.functions.iter().any(|it| it.is_meant_by(&called));
    let is_direct = is_true(row, "direct");
    (!is_named).then(|| Unnamed { resource: resource.name.clone(), function, table, is_direct })
}

impl Catalog {
    fn covered(
        &self,
        database: &str,
        resource: &Resource,
        functions: &[QualifiedName],
        dependencies: &Dependencies,
    ) -> Vec<Covered> {
        let is_told = |table: &&FencedTable| self.has(&table.name) || table.is_expected_in(database);
        let tables = resource.tables.iter().filter(is_told).flat_map(|table| self.covered_with(table, dependencies));
        let functions = resource.functions.iter().flat_map(|function| self.covered_by(function, functions));
        let row = |(relation, kind, operations, path)| Covered {
            resource: resource.name.clone(),
            relation,
            kind,
            operations,
            path,
        };
        tables.chain(functions).map(row).collect()
    }

    /// The functions of a policy that exist, each with its callers; the policy's entry if none exists.
    fn covered_by(&self, fenced: &FencedFunction, functions: &[QualifiedName]) -> Vec<Row> {
        let is_meant = |it: &&QualifiedName| {
            fenced.is_meant_by(&FunctionName { schema: Some(it.schema.clone()), name: it.name.clone() })
        };
        let path = if fenced.is_prefix { format!("{NAMED} as {fenced}") } else { NAMED.to_owned() };
        let mut found = functions.iter().filter(is_meant).peekable();
        if found.peek().is_none() {
            return vec![(fenced.to_string(), None, "call".to_owned(), NAMED.to_owned())];
        }
        let rows = found.flat_map(|function| {
            let kind = Some("function".to_owned());
            let named = (function.to_string(), kind, "call".to_owned(), path.clone());
            [named].into_iter().chain(self.callers_of(function))
        });
        rows.collect()
    }

    /// A table of a policy, then all relations through which it is reached, nearest first.
    fn covered_with(&self, table: &FencedTable, dependencies: &Dependencies) -> Vec<Row> {
        let name = RelationName { schema: Some(table.name.schema.clone()), name: table.name.name.clone() };
        let known = self.relations.iter().find(|(_, relation)| relation.name == name);
        let kind = known.filter(|_| self.fenced.contains(&table.name)).map(|(_, relation)| relation.kind.clone());
        let unkeyed = self.not_keyed(table).filter(|_| kind.is_some());
        let (kind, path) = match unkeyed {
            Some(why) => (None, why),
            None => (kind, self.warned(table)),
        };
        let mut rows = vec![(table.name.to_string(), kind, listed(&table.operations), path)];
        let mut reached: Vec<(usize, Row, bool)> =
            self.ways.values().flatten().filter_map(|it| self.row(it, table, known.map(|(oid, _)| *oid)?)).collect();
        reached.sort();
        let mut defined: HashSet<String> = reached.iter().filter(|it| it.2).map(|(_, row, _)| row.0.clone()).collect();
        rows.extend(reached.into_iter().map(|(_, row, _)| row));
        if table.operations.contains(&Operation::Ddl) {
            defined.insert(table.name.to_string());
            let mut dropped: Vec<Row> =
                self.dropped_with(&name, dependencies).filter(|row| !defined.contains(&row.0)).collect();
            dropped.sort();
            rows.extend(dropped);
        }
        rows
    }

    /// Why the key column cannot serve as a key. None if it can, or if the table is not keyed.
    fn not_keyed(&self, table: &FencedTable) -> Option<String> {
        let name = quoted(table.key.as_ref()?);
        match self.key_column(table).map(|column| column.kind) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("key column {name}: {why}")),
            None => Some(format!("key column {name} does not exist")),
        }
    }

    /// The distance, the row, and whether the operations include `ddl`; None if the path does not count.
    fn row(&self, WayTo { table: to, way }: &WayTo, table: &FencedTable, oid: Oid) -> Option<(usize, Row, bool)> {
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
        let (distance, row) = self.row_of(way, relation, &operations);
        Some((distance, row, operations.contains(&Operation::Ddl)))
    }

    fn row_of(&self, way: &Way, relation: &Relation, operations: &[Operation]) -> (usize, Row) {
        let hops = self.hops(way);
        let path: Vec<String> = hops.iter().map(|edge| self.hop_text(edge)).collect();
        let name = sql_name(&relation.name);
        (hops.len(), (name, Some(relation.kind.clone()), listed(operations), path.join(", ")))
    }

    /// The reason `named in the policy`, with a warning if a trigger may change the key.
    fn warned(&self, table: &FencedTable) -> String {
        let column = self.key_column(table).filter(|column| !column.is_guarded);
        match column.and_then(|column| column.changed_by.as_ref()) {
            Some(trigger) => {
                format!("{NAMED}; trigger {} may change the key: install the guard", quoted(trigger))
            }
            None => NAMED.to_owned(),
        }
    }

    /// Callers of a function of a policy: other functions, then relations, nearest first.
    fn callers_of(&self, function: &QualifiedName) -> impl Iterator<Item = Row> {
        let is_meant = |oid: &Oid| {
            let named = self.functions.get(oid);
            named.is_some_and(|it| it.schema.as_ref() == Some(&function.schema) && it.name == function.name)
        };
        let by_name = self.callers.iter().flat_map(|(name, all)| all.iter().map(move |caller| (name, caller)));
        let path = || format!("calls {function}");
        let mut functions: Vec<Row> = by_name
            .filter(|(_, caller)| is_meant(&caller.calls))
            .map(|(name, caller)| QualifiedName { schema: caller.schema.clone(), name: name.clone() }.to_string())
            .map(|name| (name, Some("function".to_owned()), "call".to_owned(), path()))
            .collect();
        functions.sort();
        functions.dedup();
        let ways = self.ways.values().flatten().filter(|it| is_meant(&it.table));
        let row = |it: &WayTo| {
            let operations: Vec<Operation> = it.way.effects.iter().map(|(operation, _)| *operation).collect();
            Some(self.row_of(&it.way, self.relations.get(&it.way.from)?, &operations))
        };
        let mut relations: Vec<(usize, Row)> = ways.filter_map(row).collect();
        relations.sort();
        relations.dedup();
        functions.into_iter().chain(relations.into_iter().map(|(_, row)| row))
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
        let function = || self.functions.get(&edge.to).map(|it| (it.schema.clone(), it.name.clone()));
        let relation = self.relations.get(&edge.to).map(|it| (it.name.schema.clone(), it.name.name.clone()));
        let to = relation.or_else(function).map(|(schema, name)| sql_name(&RelationName { schema, name }));
        let to = to.unwrap_or_default();
        match &edge.link {
            Link::Child { of_partitioned: true } => format!("partition of {to}"),
            Link::Child { of_partitioned: false } => format!("inherits from {to}"),
            Link::Parent { .. } => format!("parent of {to}"),
            Link::View(_) => format!("view on {to}"),
            Link::Call(_) => format!("calls {to}"),
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

    /// The relations whose DROP … CASCADE also drops part of the table.
    fn dropped_with<'a>(
        &'a self,
        table: &'a RelationName,
        dependencies: &'a Dependencies,
    ) -> impl Iterator<Item = Row> + 'a {
        dependencies.0.iter().flat_map(move |(name, all)| {
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
    use Operation::{Ddl, Delete, Insert, Read, Truncate, TruncateCascade, Update};
    let names = [
        (Read, "select"),
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
