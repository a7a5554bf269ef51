//! Statements of one string: what those before do to the ones behind them.

use super::facts::{needs, why, with};
use super::*;
use crate::wire::client_error::ClientError;

const SETS: &str = "SELECT set_config(n, '1', false) FROM t";

#[test]
fn what_once_stood_before_a_statement_counts_on() {
    let presumed = "scheduler=47 raises role presumed by DELETE";
    let twice = "scheduler=47 raises role presumed by INSERT, scheduler=47 raises role presumed by DELETE";
    for (more, text, expected) in [
        ("opaque: allow\n", format!("{SETS}; {SETS}; DELETE FROM jobs"), presumed),
        ("", "SET ROLE a; SET ROLE b; DELETE FROM jobs".to_owned(), "scheduler=47 raises role by DELETE"),
        // What sets the token, or brings an older one back, has it checked again.
        ("opaque: allow\n", format!("{SETS}; {WRITE}; SET lease.fence = 47; DELETE FROM jobs"), twice),
        ("opaque: allow\n", format!("{SETS}; {WRITE}; SAVEPOINT s; DELETE FROM jobs"), twice),
    ] {
        assert_eq!(needs(&with(more), "", &text), expected, "{text}");
    }
    let commits = "BEGIN; DELETE FROM jobs; COMMIT; BEGIN; COMMIT; SET lease.fence = 48; DELETE FROM jobs";
    let why = why(&policies(), "", commits, "47");
    assert!(why.starts_with("LF003") && why.contains("under token 47 and then 48"), "{why}");
}

/// What the statements before may have set or made is not asked for, as they have not run.
#[test]
fn keys_behind_what_may_lead_elsewhere_are_unknown() {
    let (policies, table) = keyed();
    let update = "UPDATE shards SET v = 1 WHERE k = 3";
    for (is_shadowed, before, expected) in [
        (true, "", "forward shard/3=47"),
        (true, "SHOW work_mem; ", "forward shard/3=47"),
        (true, "SELECT 1; ", "reject 1 LF004"),
        (true, "SELECT 1; SHOW work_mem; ", "reject 2 LF004"),
        (true, "SELECT 1; SELECT 2; ", "reject 2 LF004"),
        (false, "SELECT 1; ", "forward shard/3=47"),
        (false, "CREATE DOMAIN d AS int; CREATE TYPE e AS ENUM (); ", "forward shard/3=47"),
        (false, "CREATE DOMAIN int8 AS int; ", "reject 1 LF004"),
        (false, "CREATE DOMAIN d AS int; CREATE TYPE text AS ENUM (); ", "reject 2 LF004"),
    ] {
        let mut world = World::new("rows sees");
        let catalogue = Catalogue::with_views([(table.clone(), true)], []);
        world.seen.catalogue = Arc::new(if is_shadowed { catalogue.shadowed_by("app") } else { catalogue });
        assert_eq!(world.judge_under(&policies, &format!("{before}{update}"), "47"), expected, "{before}");
    }
}

#[test]
fn a_fence_that_observes_is_told_of_what_it_could_not_check() {
    let allows = with("opaque: allow\n");
    let writes = format!("{SETS}; INSERT INTO trials VALUES (1)");
    assert_eq!(World::new("").judge_under(&allows, &writes, "47"), "forward past unverifiable");
    // Who is exempt passes it by what does not show what it writes, too.
    let observed = "version: 1\nresources:\n  - {name: trial, tables: [public.trials], mode: observe}\n";
    let observed = join([("a.yaml".into(), Ok(observed.into()))]).unwrap();
    assert_eq!(World::new("exempt").judge_under(&observed, "DO 'BEGIN END'", ""), "forward past exempt");
    assert_eq!(World::new("exempt").judge_under(&observed, "SELECT f()", ""), "forward");
}

#[test]
fn a_key_that_does_not_show_is_asked_for_where_it_has_to_stand() {
    let (policies, table) = keyed();
    for (text, hint) in [
        ("INSERT INTO shards (v) VALUES (1)", "INSERT INTO t (key, ...) VALUES (3, ...)"),
        ("UPDATE shards SET v = 1", "an upsert needs it in its list of columns"),
        ("DELETE FROM shards", "WHERE key = 3 AND ..., or key IN (3, 4)"),
        ("TRUNCATE shards", "leave it to one of `exempt_roles`"),
    ] {
        let mut world = World::new("rows");
        let view = ("others".to_owned(), table.clone());
        world.seen.catalogue = Arc::new(Catalogue::with_views([(table.clone(), true)], [view]));
        let told = |text: &str| match world.decide(&policies, text, "47") {
            Decision::Reject(_, rejection, _) => rejection.text().hint.to_string(),
            other => show(other),
        };
        let bare = told(text);
        assert!(bare.contains(hint) && bare.contains("names no schema, and may mean public.shards"), "{text}: {bare}");
        // Who names the schema, or another relation that leads there, is not told so.
        let is_for_views = !text.starts_with("TRUNCATE");
        for other in ["public.shards"].into_iter().chain(is_for_views.then_some("others")) {
            let text = text.replace("shards", other);
            let named = told(&text);
            assert!(named.contains("key") && !named.contains("names no schema"), "{text}: {named}");
        }
    }
}
