//! Relations that a definition makes suspect, and the ways in which a statement affects a resource.

use super::*;
use crate::affected::affected_resources;
use crate::host::CatalogView;
use crate::pending_definitions::PendingDefinitions;
use fencegate_fence::RequiredPrivilege;
use fencegate_policy::PolicySet;
use fencegate_statement::{Operation, Statement, analyze};

const KEYED: &str = "version: 1
resources:
  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}
  - {name: 'part/{k}', tables: [{name: public.parts, key: k}]}
";

fn statement(text: &str) -> Arc<Statement> {
    analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone()
}

fn policies(text: &str) -> PolicySet {
    join([("a.yaml".into(), Ok(text.to_owned().into()))]).unwrap()
}

/// A current catalog in which no other relation leads to the fenced tables.
fn seen(policies: &PolicySet) -> CatalogView {
    let tables = policies.resources.iter().map(|resource| resource.tables[0].name.clone());
    CatalogView { catalog: Arc::new(Catalog::of_tables(tables)), is_current: true, ..CatalogView::default() }
}

fn is_written(pending: &PendingDefinitions, text: &str) -> bool {
    pending.written_by(&statement(text), &Catalog::default()).is_some()
}

/// Returns whether the text adds pending definitions, and the definitions.
fn noted(policies: &PolicySet, text: &str) -> (bool, PendingDefinitions) {
    let mut pending = PendingDefinitions::default();
    let are_more = pending.note(&statement(text), policies, &seen(policies), &[]);
    (are_more, pending)
}

/// The key may have become another column.
#[test]
fn a_definition_on_a_keyed_table_makes_it_suspect() {
    let policies = policies(KEYED);
    for (text, shards, parts) in [
        ("ALTER TABLE shards RENAME COLUMN k TO x", true, false),
        ("DROP TABLE shards, parts", true, true),
        ("ALTER TABLE other ADD COLUMN x int", false, false),
        ("INSERT INTO shards VALUES (1)", false, false),
        ("DELETE FROM parts", false, false),
    ] {
        let (are_more, pending) = noted(&policies, text);
        assert_eq!(are_more, shards || parts, "{text}");
        assert_eq!(is_written(&pending, "DELETE FROM shards"), shards, "{text}");
        assert_eq!(is_written(&pending, "DELETE FROM public.parts"), parts, "{text}");
    }
}

/// The relation is unchanged, but its key could become another column.
#[test]
fn an_index_makes_only_a_keyed_table_suspect() {
    for (policies, is_suspect) in [(policies(POLICIES), false), (policies(KEYED), true)] {
        let table = &policies.resources[0].tables[0].name.name;
        let text = format!("CREATE UNIQUE INDEX ON {table} (k)");
        assert!(statement(&text).redirects.iter().any(|redirect| redirect.to.as_ref() == Some(&redirect.relation)));
        let (_, pending) = noted(&policies, &text);
        assert_eq!(is_written(&pending, &format!("DELETE FROM {table}")), is_suspect, "{text}");
    }
}

#[test]
fn up_to_1024_names_are_tracked_separately() {
    let policies = policies(POLICIES);
    for (names, are_all) in [(1024, false), (1025, true)] {
        let mut pending = PendingDefinitions::default();
        for number in 0..names {
            let view = statement(&format!("CREATE VIEW v{number} AS TABLE t"));
            pending.note(&view, &policies, &CatalogView::default(), &[]);
        }
        assert!(is_written(&pending, "DELETE FROM v7"));
        assert_eq!(is_written(&pending, "DELETE FROM another"), are_all, "{names}");
    }
}

/// The proxy checks the privilege for the statement's own operation.
#[test]
fn an_admission_requires_the_privilege_for_its_operation() {
    for (sql, relation, operation) in [
        ("DELETE FROM jobs", "jobs", Operation::Delete),
        ("INSERT INTO way VALUES (1)", "way", Operation::Insert),
        ("WITH w AS (SELECT 1) UPDATE jobs SET a = 1", "jobs", Operation::Update),
    ] {
        let mut session = session("47");
        let table = session.host.policies.resources[0].tables[0].name.clone();
        let views = [("way".to_owned(), table.clone())];
        session.host.catalog = Arc::new(Catalog::with_views([(table, false)], views));
        let Some(Task::Admit(needs)) = sends(&mut session, &query(sql)) else { panic!("{sql}") };
        let [RequiredPrivilege::Write(touched, by)] = &needs[0].1.privileges[..] else {
            panic!("{sql}: {:?}", needs[0].1.privileges)
        };
        assert_eq!((touched.name.as_str(), *by), (relation, operation), "{sql}");
    }
}

#[test]
fn a_resource_that_is_written_and_locked_counts_as_written() {
    let policies = policies("version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs, public.runs]}\n");
    let with = |rest: &str| format!("WITH w AS (DELETE FROM jobs RETURNING 1) {rest}");
    for (text, writes) in [
        (with("SELECT 1"), true),
        (with("DELETE FROM runs"), true),
        (with("SELECT 1 FROM runs FOR UPDATE"), true),
        ("SELECT 1 FROM jobs, runs FOR UPDATE".to_owned(), false),
    ] {
        let touched = affected_resources(&statement(&text), &policies, &seen(&policies));
        let writes_each: Vec<bool> = touched.iter().map(|touch| touch.writes).collect();
        assert_eq!(writes_each, [writes], "{text}");
    }
}
