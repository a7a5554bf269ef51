//! Information and admissions required before a message passes.

use super::*;
use crate::host::{CatalogView, Changes};
use fencegate_fence::session::FULL;
use fencegate_policy::PolicySet;
use fencegate_statement::analyze;

const FUNCTIONS: &str =
    "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.work]}\n";
const TWO: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n  - {name: billing, tables: [public.bills]}\n";
/// A path that leads to no other schema.
const PUBLIC: fn() -> Path = || Path::new(Some("public"), false);

#[test]
fn changes_have_others_if_they_have_all_of_them() {
    let has = |(all, doubts), other: (u64, u64)| Changes { all, doubts }.has(Changes { all: other.0, doubts: other.1 });
    assert!(has((2, 1), (2, 1)) && has((3, 1), (2, 1)) && has((2, 2), (2, 1)));
    assert!(!has((2, 1), (3, 1)) && !has((2, 1), (2, 2)) && !has((3, 1), (2, 2)));
}

/// A view may call a function of the policies.
#[test]
fn what_reads_waits_for_definitions_where_functions_write() {
    let mut session = session_under(FUNCTIONS, "", PUBLIC());
    let passes = [query("CREATE TABLE other (id int)"), query("SELECT 1")].concat();
    says(&mut session, &[&passes[..], &query("SELECT * FROM v")].concat());
    assert_eq!(session.server.output.split(), passes);
    assert!(session.is_held_back());
    answers(&mut session, &[completes("CREATE TABLE"), ready(), completes("SELECT 1"), ready()].concat());
    assert_eq!(session.server.output, query("SELECT * FROM v"));
}

#[test]
fn what_calls_a_function_is_judged_by_the_catalog_as_it_is_now() {
    for (sql, is_wanted) in [("SELECT 1", false), ("SELECT g()", true)] {
        let mut session = session_under(FUNCTIONS, "", PUBLIC());
        says(&mut session, &query(sql));
        assert_eq!(session.server.output, query(sql));
        assert_eq!(session.host.wanted.load(Relaxed), is_wanted, "{sql}");
    }
}

#[test]
fn only_what_is_lacking_is_asked_for() {
    for (admitted, expected) in [(47, "billing=47"), (46, "scheduler=47, billing=47")] {
        let mut session = session_under(TWO, "47", PUBLIC());
        admit(&session, "scheduler", admitted);
        let task = says(&mut session, &query("DELETE FROM jobs; DELETE FROM bills"));
        assert_eq!(admissions(task), expected);
    }
}

#[test]
fn a_token_waits_for_what_runs_under_another_one() {
    for (admitted, waits) in [(46, true), (47, false)] {
        let mut session = session("47");
        admit(&session, "scheduler", admitted);
        says(&mut session, &query("SELECT 1"));
        assert!(says(&mut session, &query("DELETE FROM jobs")).is_none());
        assert_eq!(session.is_held_back(), waits, "admitted under {admitted}");
        let task = answers(&mut session, &ready());
        assert_eq!(admissions(task), if waits { "scheduler=47" } else { "none" });
    }
}

/// It gives up others first, which it can only when the process is idle.
#[test]
fn a_session_with_many_admissions_asks_for_more_once_nothing_is_owed() {
    let mut session = session("47");
    (0..FULL).for_each(|number| admit(&session, &format!("r{number}"), 1));
    says(&mut session, &query("SELECT 1"));
    assert!(says(&mut session, &query("DELETE FROM jobs")).is_none());
    assert!(session.is_held_back());
    let task = answers(&mut session, &ready());
    assert_eq!(admissions(task), "scheduler=47");
}

#[test]
fn a_session_that_is_admitted_prepares_no_transaction() {
    for is_admitted in [false, true] {
        let (mut session, prepare) = (session("47"), query("PREPARE TRANSACTION 'a'"));
        if is_admitted {
            admit(&session, "scheduler", 47);
        }
        says(&mut session, &prepare);
        assert_eq!(session.server.output == prepare, !is_admitted);
        assert_eq!(text(&session.client.output).contains("LF004"), is_admitted);
    }
}

/// Policies for `jobs`, for `shards` by their keys and for a function; and views of both tables.
fn with_views() -> (PolicySet, CatalogView) {
    let shards = "  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";
    let policies = join([("a.yaml".into(), Ok((FUNCTIONS.to_owned() + shards).into()))]).unwrap();
    let [jobs, shards] = [0, 1].map(|index| policies.resources[index].tables[0].name.clone());
    let views = [("v".to_owned(), jobs.clone()), ("w".to_owned(), shards.clone())];
    let catalog = Arc::new(Catalog::with_views([(jobs, false), (shards, true)], views));
    (policies, CatalogView { catalog, is_current: true, ..CatalogView::default() })
}

#[test]
fn what_writes_a_view_writes_its_table_and_what_locks_it_does_not() {
    let (_, seen) = with_views();
    for (sql, passes) in [("INSERT INTO v VALUES (1)", false), ("SELECT 1 FROM v FOR UPDATE", true)] {
        let mut session = session("");
        session.host.catalog = seen.catalog.clone();
        says(&mut session, &query(sql));
        assert_eq!(session.server.output == query(sql), passes, "{sql}");
        assert_eq!(text(&session.client.output).contains("LF002"), !passes, "{sql}");
    }
}

#[test]
fn what_a_statement_comes_to_without_naming_it() {
    let (policies, seen) = with_views();
    for (sql, resource, expected) in [
        ("INSERT INTO v VALUES (1)", "scheduler", "table jobs"),
        ("INSERT INTO v VALUES (1)", "billing", "nothing"),
        ("INSERT INTO v VALUES (1)", "shard/3", "nothing"),
        ("INSERT INTO w VALUES (1)", "shard/3", "table shards"),
        ("INSERT INTO w VALUES (1)", "shard/{k}", "table shards"),
        ("INSERT INTO jobs VALUES (1)", "scheduler", "nothing"),
        ("SELECT work()", "scheduler", "function work"),
        ("SELECT other()", "scheduler", "nothing"),
    ] {
        let statement = analyze(sql.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone();
        let found = match indirect_target(&statement, &policies, &seen, resource) {
            Some(IndirectTarget::Table(table)) => format!("table {}", table.name),
            Some(IndirectTarget::Function(function)) => format!("function {}", function.name),
            None => "nothing".to_owned(),
        };
        assert_eq!(found, expected, "{sql} of {resource}");
    }
}
