//! Statements after others in one string. Earlier statements may change the token, the role, the path or the types.

use super::facts::{needed, needs, policies_with, rejection};
use super::*;
use fencegate_catalog::Catalog;
use fencegate_wire::client_error::ClientError;

const SETS: &str = "SELECT set_config(n, '1', false) FROM t";

#[test]
fn an_earlier_statement_affects_the_rest_of_the_string() {
    let delete = || needed("scheduler", "DELETE").under_any_role();
    let twice = || vec![needed("scheduler", "INSERT").under_any_role().checked(), delete().checked()];
    for (more, text, expected) in [
        ("opaque: allow\n", format!("{SETS}; {SETS}; DELETE FROM jobs"), vec![delete().checked()]),
        ("", "SET ROLE a; SET ROLE b; DELETE FROM jobs".to_owned(), vec![delete()]),
        // A statement that sets the token, or may restore an older one, requires another check.
        ("opaque: allow\n", format!("{SETS}; {WRITE}; SET lease.fence = 47; DELETE FROM jobs"), twice()),
        ("opaque: allow\n", format!("{SETS}; {WRITE}; SAVEPOINT s; DELETE FROM jobs"), twice()),
    ] {
        assert_eq!(needs(&policies_with(more), &world(), &text), expected, "{text}");
    }
    let commits = "BEGIN; DELETE FROM jobs; COMMIT; BEGIN; COMMIT; SET lease.fence = 48; DELETE FROM jobs";
    let found = rejection(&policies(), &world(), commits, token(47)).unwrap();
    assert!(found.starts_with("LF003") && found.contains("under token 47 and then 48"), "{found}");
}

/// The proxy cannot query settings and types that earlier statements of the string may change, before these have run.
#[test]
fn keys_after_a_statement_that_may_change_their_meaning_are_unknown() {
    let (policies, table) = keyed();
    let third = || forward().needs("shard/3", 47);
    for (is_shadowed, before, expected) in [
        (true, "", third()),
        (true, "SHOW work_mem; ", third()),
        (true, "SELECT 1; ", reject(1, "LF004")),
        (true, "SELECT 1; SHOW work_mem; ", reject(2, "LF004")),
        (true, "SELECT 1; SELECT 2; ", reject(2, "LF004")),
        (false, "SELECT 1; ", third()),
        (false, "CREATE DOMAIN d AS int; CREATE TYPE e AS ENUM (); ", third()),
        (false, "CREATE DOMAIN int8 AS int; ", reject(1, "LF004")),
        (false, "CREATE DOMAIN d AS int; CREATE TYPE text AS ENUM (); ", reject(2, "LF004")),
    ] {
        let catalog = Catalog::with_views([(table.clone(), true)], []);
        let catalog = if is_shadowed { catalog.shadowed_by("app") } else { catalog };
        let world = world().reads_rows().knows_path().with_catalog(catalog);
        let text = format!("{before}UPDATE shards SET v = 1 WHERE k = 3");
        assert_eq!(world.judge(&policies, &text, token(47)), expected, "{before}");
    }
}

#[test]
fn an_observing_fence_reports_writes_that_it_cannot_check() {
    let writes = format!("{SETS}; INSERT INTO trials VALUES (1)");
    let unverifiable = forward().passes(Passes::Observed(ErrorKind::Unverifiable));
    assert_eq!(world().judge(&policies_with("opaque: allow\n"), &writes, token(47)), unverifiable);
    // Exempt roles may also run opaque statements.
    let observed = read_policies(OBSERVED);
    assert_eq!(world().exempt().judge(&observed, OPAQUE, no_token()), forward().passes(Passes::Exempt));
    assert_eq!(world().exempt().judge(&observed, "SELECT f()", no_token()), forward());
}

#[test]
fn the_hint_shows_where_to_write_a_key() {
    let (policies, table) = keyed();
    for (text, hint) in [
        ("INSERT INTO shards (v) VALUES (1)", "INSERT INTO t (key, ...) VALUES (3, ...)"),
        ("UPDATE shards SET v = 1", "An upsert needs the key in its column list"),
        ("DELETE FROM shards", "WHERE key = 3 AND ..., key IN (3, 4), or key = ANY ($1)"),
        ("TRUNCATE shards", "one of the policy's `exempt_roles`"),
    ] {
        let view = ("others".to_owned(), table.clone());
        let world = world().reads_rows().with_catalog(Catalog::with_views([(table.clone(), true)], [view]));
        let hint_of = |text: &str| match world.decide(&policies, text, token(47)) {
            Decision::Reject(_, rejection, _) => rejection.text().hint,
            other => panic!("{text}: {other:?}"),
        };
        let bare = hint_of(text);
        assert!(bare.contains(hint) && bare.contains("The unqualified name may mean public.shards"), "{text}: {bare}");
        // The hint is missing if the statement names the schema, or another relation that leads to the table.
        let has_view = !text.starts_with("TRUNCATE");
        for other in ["public.shards"].into_iter().chain(has_view.then_some("others")) {
            let text = text.replace("shards", other);
            let named = hint_of(&text);
            assert!(named.contains("key") && !named.contains("unqualified name"), "{text}: {named}");
        }
    }
}
