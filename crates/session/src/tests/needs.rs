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
fn changes_include_others_if_both_counters_do() {
    let has = |(all, doubts), other: (u64, u64)| Changes { all, doubts }.has(Changes { all: other.0, doubts: other.1 });
    assert!(has((2, 1), (2, 1)) && has((3, 1), (2, 1)) && has((2, 2), (2, 1)));
    assert!(!has((2, 1), (3, 1)) && !has((2, 1), (2, 2)) && !has((3, 1), (2, 2)));
}

/// A view may call a function of the policies.
#[test]
fn a_read_waits_for_pending_definitions_if_functions_are_fenced() {
    let mut session = session_under(FUNCTIONS, "", PUBLIC());
    let passes = [query("CREATE TABLE other (id int)"), query("SELECT 1")].concat();
    sends(&mut session, &[&passes[..], &query("SELECT * FROM v")].concat());
    assert_eq!(session.server.output.split(), passes);
    assert!(session.is_held_back());
    replies(&mut session, &[completes("CREATE TABLE"), ready(), completes("SELECT 1"), ready()].concat());
    assert_eq!(session.server.output, query("SELECT * FROM v"));
}

#[test]
fn a_function_call_is_judged_by_the_current_catalog() {
    for (sql, is_wanted) in [("SELECT 1", false), ("SELECT g()", true)] {
        let mut session = session_under(FUNCTIONS, "", PUBLIC());
        sends(&mut session, &query(sql));
        assert_eq!(session.server.output, query(sql));
        assert_eq!(session.host.wanted.load(Relaxed), is_wanted, "{sql}");
    }
}

#[test]
fn only_missing_admissions_are_requested() {
    for (admitted, expected) in [(47, "billing=47"), (46, "scheduler=47, billing=47")] {
        let mut session = session_under(TWO, "47", PUBLIC());
        admit(&session, "scheduler", admitted);
        let task = sends(&mut session, &query("DELETE FROM jobs; DELETE FROM bills"));
        assert_eq!(admissions(task), expected);
    }
}

#[test]
fn a_token_waits_for_statements_under_another_token() {
    for (admitted, waits) in [(46, true), (47, false)] {
        let mut session = session("47");
        admit(&session, "scheduler", admitted);
        sends(&mut session, &query("SELECT 1"));
        assert!(sends(&mut session, &query("DELETE FROM jobs")).is_none());
        assert_eq!(session.is_held_back(), waits, "admitted under {admitted}");
        let task = replies(&mut session, &ready());
        assert_eq!(admissions(task), if waits { "scheduler=47" } else { "none" });
    }
}

/// The session releases other admissions first, which requires an idle process.
#[test]
fn a_session_with_many_admissions_requests_more_after_pending_replies() {
    let mut session = session("47");
    (0..FULL).for_each(|number| admit(&session, &format!("r{number}"), 1));
    sends(&mut session, &query("SELECT 1"));
    assert!(sends(&mut session, &query("DELETE FROM jobs")).is_none());
    assert!(session.is_held_back());
    let task = replies(&mut session, &ready());
    assert_eq!(admissions(task), "scheduler=47");
}

#[test]
fn an_admitted_session_cannot_prepare_a_transaction() {
    for is_admitted in [false, true] {
        let (mut session, prepare) = (session("47"), query("PREPARE TRANSACTION 'a'"));
        if is_admitted {
            admit(&session, "scheduler", 47);
        }
        sends(&mut session, &prepare);
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
fn a_write_to_a_view_writes_its_table_but_a_lock_does_not() {
    let (_, seen) = with_views();
    for (sql, passes) in [("INSERT INTO v VALUES (1)", false), ("SELECT 1 FROM v FOR UPDATE", true)] {
        let mut session = session("");
        session.host.catalog = seen.catalog.clone();
        sends(&mut session, &query(sql));
        assert_eq!(session.server.output == query(sql), passes, "{sql}");
        assert_eq!(text(&session.client.output).contains("LF002"), !passes, "{sql}");
    }
}

#[test]
fn indirect_target_finds_the_table_or_function_behind_a_name() {
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
        let found = match reached_object(&statement, &policies, &seen, resource) {
            Some(ReachedObject::Table(table)) => format!("table {}", table.name),
            Some(ReachedObject::Function(function)) => format!("function {}", function.name),
            None => "nothing".to_owned(),
        };
        assert_eq!(found, expected, "{sql} of {resource}");
    }
}
