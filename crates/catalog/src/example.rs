//! Catalogs built by hand, for tests and benchmarks of the crates above.

use super::graph::{Edge, Link, Through};
use super::{Catalog, KeyColumn, Oid, Relation};
use fencegate_policy::QualifiedName;
use fencegate_statement::RelationName;
use std::collections::HashMap;

impl Catalog {
    /// A catalog in which these fenced tables exist and no other relation leads to them.
    pub fn of_tables(tables: impl IntoIterator<Item = QualifiedName>) -> Self {
        Catalog { fenced: tables.into_iter().collect(), ..Catalog::default() }
    }

    /// Like [`Self::of_tables`], with keyed tables (an integer key in the first column) and with views that show a
    /// table unchanged, in the same schema unless another one is named.
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

    /// Adds a schema with objects that may precede the catalog's own where keys are compared.
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
