//! Multi-statement strings in which an allowed opaque statement may change the token.

use super::{ONE, SCHEMA};
use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::wire::error_in;
use crate::support::{Frame, Options, Postgres, Wire};

/// A library's migration, sent as one string.
const MIGRATION: &str = "DO $$ BEGIN CREATE TYPE mood AS ENUM ('a'); END $$; ALTER TYPE mood RENAME TO state; \
    ALTER TABLE jobs ADD COLUMN m int; CREATE FUNCTION add_job() RETURNS void LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'; \
    DO $$ BEGIN NULL; END $$; -- a comment\nINSERT INTO jobs VALUES (2, 2); INSERT INTO jobs VALUES (3, 3) RETURNING n;";

/// The client receives the same answers as from the server.
#[test]
fn a_string_with_an_allowed_statement_runs_under_the_earlier_token() {
    let world = Fenced::start(SCHEMA, &(ONE.to_owned() + "opaque: allow\n"));
    let direct = Postgres::start(Options::default());
    direct.sql(SCHEMA);
    let mut server = Wire::login(&direct.address(), "postgres", "postgres");
    // RowDescription contains the table's OID.
    let shown = |frames: Vec<Frame>| {
        frames.into_iter().map(|it| (it.tag, it.body)).filter(|(tag, _)| *tag != b'T').collect::<Vec<_>>()
    };
    let mut leader = world.holder(47);
    assert_eq!(shown(leader.query(MIGRATION)), shown(server.query(MIGRATION)));
    assert_eq!(value(&mut leader, "SELECT string_agg(n::text, ',' ORDER BY n) FROM jobs").as_deref(), Some("2,3"));
    // The proxy still tracks prepared statements and the transaction.
    ok(&mut leader, "BEGIN; DO $$ BEGIN NULL; END $$; PREPARE p AS INSERT INTO jobs VALUES (4); EXECUTE p");
    ok(&mut leader, "DO $$ BEGIN NULL; END $$; SAVEPOINT s; EXECUTE p; ROLLBACK TO s; EXECUTE p; COMMIT");
    assert_eq!(value(&mut leader, "SELECT count(*) FROM jobs WHERE n = 4").as_deref(), Some("2"));
    // The process is admitted: a newer leader drains it, and then it is stale.
    ok(&mut leader, "BEGIN; DO $$ BEGIN NULL; END $$; INSERT INTO jobs VALUES (5)");
    ok(&mut world.holder(48), "INSERT INTO jobs VALUES (6)");
    assert_eq!(code(&mut leader, "COMMIT"), "LF001");
    // The string may have changed the refused token by then. The proxy cannot know.
    assert_eq!(code(&mut world.holder(47), "DO $$ BEGIN NULL; END $$; INSERT INTO jobs VALUES (7)"), "LF004");
    assert_eq!(code(&mut world.login(), "DO $$ BEGIN NULL; END $$; INSERT INTO jobs VALUES (7)"), "LF004");
    assert_eq!(value(&mut world.login(), "SELECT max(n) FROM jobs").as_deref(), Some("6"));
}

/// Each string would write a 9 under a token that the statement does not show.
#[test]
fn a_string_that_changes_its_token_unseen_writes_nothing() {
    let world = Fenced::start(SCHEMA, &(ONE.to_owned() + "opaque: allow\n"));
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (1)");
    let to =
        |token: &str, local: bool| format!("DO $$ BEGIN PERFORM set_config('lease.fence', '{token}', {local}); END $$");
    let (write, not) = ("INSERT INTO jobs VALUES (9)", "DO $$ BEGIN NULL; END $$");
    for (string, expected) in [
        (format!("{}; {write}", to("46", false)), "LF003"),
        (format!("{}; {write}", to("46", true)), "LF003"),
        (format!("{}; {write}", to("48", false)), "LF003"),
        (format!("{}; {write}", to("", false)), "LF003"),
        (format!("{}; {write}", to("billing=47", false)), "LF003"),
        (format!("{}; {write}", to("no token", false)), "LF003"),
        // The token is restored before a check, or a check happens in between.
        (format!("{}; {write}; {}", to("46", false), to("47", false)), "LF003"),
        (format!("{not}; {write}; {}; {write}", to("46", false)), "LF003"),
        (format!("{not}; {write}; SAVEPOINT s; {write}"), "25P01"),
        (format!("BEGIN; {not}; {write}; {}; {write}; COMMIT", to("46", true)), "LF003"),
        (
            format!(
                "BEGIN; {}; SAVEPOINT s; SET lease.fence = 47; SELECT 1; ROLLBACK TO s; {write}; COMMIT",
                to("46", false)
            ),
            "LF003",
        ),
        // A string that is rejected for its text runs without checks: the proxy assumes no token for it.
        (format!("{}; {write}; SET lease.fence = 'nonsense'", to("46", false)), "LF004"),
        (format!("{not}; {write}; SET lease.fence = 46; {write}"), "LF004"),
        (format!("PREPARE q AS {write}; {}; EXECUTE q", to("46", false)), "LF003"),
        (
            format!(
                "CREATE FUNCTION pg_temp.int8eq(bigint, bigint) RETURNS bool LANGUAGE sql AS 'SELECT true'; \
            SET search_path = pg_temp, pg_catalog, public; {}; {write}",
                to("46", false)
            ),
            "LF003",
        ),
        (
            format!("SET backslash_quote = off; SET standard_conforming_strings = off; {}; {write}", to("46", false)),
            "LF003",
        ),
    ] {
        let mut wire = world.holder(47);
        assert_eq!(code(&mut wire, &string), expected, "{string}");
        ok(&mut wire, "ROLLBACK");
        assert_eq!(
            value(&mut world.login(), "SELECT count(*) FROM jobs WHERE n = 9").as_deref(),
            Some("0"),
            "{string}"
        );
    }
    // The same applies if only a function may have changed the token.
    world
        .postgres
        .sql("CREATE FUNCTION turn() RETURNS text LANGUAGE sql AS $$ SELECT set_config('lease.fence', '46', false) $$");
    assert_eq!(code(&mut world.holder(47), &format!("SELECT turn(); {write}")), "LF003");
    // The proxy follows a token that the string sets openly afterwards.
    ok(&mut world.holder(46), &format!("{}; SET lease.fence = 47; INSERT INTO jobs VALUES (8)", to("46", false)));
}

/// Otherwise fences would receive an unchecked token.
#[test]
fn no_token_is_assumed_if_a_check_would_reject_too_much_or_the_policy_forbids_it() {
    let string = "DO $$ BEGIN PERFORM set_config('lease.fence', '46', false); END $$; INSERT INTO jobs VALUES (9)";
    let with =
        |setting: &str| Fenced::start(SCHEMA, &ONE.replace("[public.jobs]}", &format!("[public.jobs]{setting}")));
    let told = |world: &Fenced, session: &str| {
        ok(&mut world.holder(47), "INSERT INTO jobs VALUES (1)");
        let mut wire = world.login();
        ok(&mut wire, session);
        let frames = wire.query(string);
        error_in(&frames).map_or_else(String::new, |error| format!("{} {}", error.code(), error.hint()))
    };
    let observes = with(", mode: observe}\nopaque: allow");
    assert_eq!(told(&observes, "SET lease.fence = 47"), "");
    let allows = with(", on_missing: allow}\nopaque: allow");
    assert!(told(&allows, "SELECT 1").starts_with("LF004"));
    assert!(told(&allows, "SET lease.fence = 47").starts_with("LF003"));
    let requires = with("}\nopaque: require_token");
    let said = told(&requires, "SET lease.fence = 47");
    assert!(said.starts_with("LF004") && said.contains("`exempt_roles`"), "{said}");
}
