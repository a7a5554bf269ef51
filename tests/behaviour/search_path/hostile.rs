//! The search path changes without the proxy seeing it. A stale leader that has just written to a table of the same
//! name in another schema never writes to the fenced table.

use super::extended;
use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, copy_done, execute, flush, function_call, parse, query, sync, unnamed};
use crate::support::wire::rows_in;
use crate::support::{Options, ProxyOptions, Release, Wire};

const SCHEMA: &str = "
    CREATE TABLE jobs (n int); CREATE SCHEMA other; CREATE TABLE other.jobs (n int); CREATE SCHEMA keeper; CREATE TABLE keeper.jobs (n int);
    CREATE ROLE keeper; GRANT ALL ON SCHEMA public, other, keeper TO keeper; GRANT ALL ON ALL TABLES IN SCHEMA public, other, keeper TO keeper;
    CREATE FUNCTION other.leave() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN SET search_path = public; RETURN true; END $$;
    CREATE FUNCTION other.leave_at_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM other.leave(); RETURN NULL; END $$;
    CREATE FUNCTION other.leave_for(int, int) RETURNS bool LANGUAGE sql AS 'SELECT other.leave()';
    CREATE FUNCTION other.tidy() RETURNS bool LANGUAGE plpgsql SET search_path = other AS $$ BEGIN SET search_path = public; RETURN true; END $$;
    CREATE PROCEDURE other.move() LANGUAGE plpgsql AS $$ BEGIN SET search_path = public; COMMIT; END $$;
    CREATE OPERATOR other.@@@ (LEFTARG = int, RIGHTARG = int, FUNCTION = other.leave_for);
    CREATE VIEW other.moving AS SELECT set_config('search_path', 'public', false);
    CREATE AGGREGATE other.setting (text, bool) (SFUNC = set_config, STYPE = text, INITCOND = 'search_path');
    CREATE DOMAIN other.checked AS int CHECK (other.leave());
    CREATE TABLE other.watched (n int); CREATE TRIGGER t AFTER INSERT ON other.watched EXECUTE FUNCTION other.leave_at_once();
    CREATE TABLE other.put_off (n int);
    CREATE CONSTRAINT TRIGGER t AFTER INSERT ON other.put_off DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION other.leave_at_once();
    CREATE TABLE other.by_default (b bool DEFAULT other.leave());
    CREATE TABLE other.ruled (n int); CREATE RULE r AS ON INSERT TO other.ruled DO ALSO SELECT other.leave()";
const POLICY: &str =
    "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs, keeper.jobs]}\nopaque: allow\n";

/// Ways to change a session's path to `public`. Each statement has its own message.
const ROUTES: [&[&str]; 29] = [
    &["SET search_path = public"],
    &["SET search_path TO other, public"],
    &["SET SCHEMA 'public'"],
    &["SELECT set_config('search_path', 'public', false)"],
    &["SELECT set_config('search_' || 'path', 'public', false)"],
    &["SELECT set_config(name, 'public', false) FROM pg_settings WHERE name LIKE 'search%'"],
    &["SELECT other.leave()"],
    &["SELECT other.tidy()"],
    &["CALL other.move()"],
    &["DO $$ BEGIN SET search_path = public; END $$"],
    &["DO $$ BEGIN SET search_path = public; COMMIT; RAISE 'no'; END $$"],
    &["TABLE other.moving"],
    &["COPY (TABLE other.moving) TO STDOUT"],
    &["EXPLAIN ANALYZE TABLE other.moving"],
    &["CREATE TEMP TABLE made AS TABLE other.moving"],
    &["SELECT 1 OPERATOR(other.@@@) 2"],
    &["SELECT other.setting('public', false)"],
    &["SELECT 1::other.checked"],
    &["INSERT INTO other.watched VALUES (1)"],
    &["INSERT INTO other.put_off VALUES (1)"],
    &["BEGIN", "INSERT INTO other.put_off VALUES (1)", "INSERT INTO jobs VALUES (1)", "COMMIT"],
    &["INSERT INTO other.by_default DEFAULT VALUES"],
    &["INSERT INTO other.ruled VALUES (1)"],
    &["PREPARE p AS TABLE other.moving", "EXECUTE p"],
    &["BEGIN", "DECLARE c CURSOR FOR TABLE other.moving", "INSERT INTO jobs VALUES (1)", "FETCH c", "COMMIT"],
    &["BEGIN", "SET LOCAL search_path = public", "SET search_path FROM CURRENT", "COMMIT"],
    &["UPDATE pg_settings SET setting = 'public' WHERE name = 'search_path'"],
    &[
        "BEGIN; SET search_path = public; SAVEPOINT s; SET search_path = other",
        "INSERT INTO jobs VALUES (1)",
        "ROLLBACK TO s",
        "COMMIT",
    ],
    &["SET search_path = '$user', other", "SET ROLE keeper"],
];

/// A world in which a newer leader has written.
fn start(release: Release) -> Fenced {
    let options = Options::default().release(release);
    let world = Fenced::start_with(options, SCHEMA, &ProxyOptions::default().policies(POLICY));
    ok(&mut world.holder(100), "DELETE FROM public.jobs");
    world
}

/// A stale leader whose search path is another schema, in which it has written.
fn elsewhere(world: &Fenced) -> Wire {
    let mut wire = world.holder(47);
    ok(&mut wire, "SET search_path = other");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    assert_eq!(extended(&mut wire, "UPDATE jobs SET n = 1"), "");
    wire
}

#[track_caller]
fn is_safe(world: &Fenced, route: &str) {
    let count = world.postgres.value("SELECT count(*) FROM (TABLE public.jobs UNION ALL TABLE keeper.jobs) j");
    assert_eq!(count, "0", "{route}");
}

fn every_route(release: Release) {
    let world = start(release);
    for route in ROUTES {
        for in_extended in [false, true] {
            let mut wire = elsewhere(&world);
            for step in route {
                wire.query(step);
            }
            let run = if in_extended { extended } else { code };
            assert_eq!(run(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF001", "{route:?}");
            // The route leads to the fenced table. After a change back, the write passes.
            let path = ok(&mut wire, "SHOW search_path").remove(0).remove(0).unwrap();
            assert!(path.contains("public") || path.contains("$user"), "{route:?}: {path}");
            ok(&mut wire, "SET search_path = other");
            assert_eq!(run(&mut wire, "INSERT INTO jobs VALUES (1)"), "", "{route:?}");
        }
        is_safe(&world, &format!("{route:?}"));
    }
}

#[test]
fn a_path_that_changes_unseen() {
    every_route(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_path_that_changes_unseen_on_18() {
    every_route(Release::Eighteen);
}

/// The same without waiting for an answer.
fn under_way(release: Release) {
    let world = start(release);
    let write = "INSERT INTO jobs VALUES (1)";
    let restored = "BEGIN; SET search_path = other";
    for change in ["SET search_path = public", "TABLE other.moving", "INSERT INTO other.put_off VALUES (1)"] {
        // Deferred code runs after the write, at the end of the implicit transaction.
        let expected = if change.contains("put_off") { "" } else { "LF001" };
        let mut wire = elsewhere(&world);
        assert_eq!(code(&mut wire, &format!("{change}; {write}")), "LF001", "{change}");
        for between in [Vec::new(), flush()] {
            let mut wire = elsewhere(&world);
            wire.send(&[unnamed(change, &[]), between, unnamed(write, &[]), sync()].concat());
            assert_eq!(code_in(&wire.read_until_ready()), expected, "{change}");
            // The rejection rolls the change back.
            let afterwards = if expected.is_empty() { "LF001" } else { "" };
            assert_eq!(code(&mut wire, write), afterwards, "{change}");
        }
        let mut wire = elsewhere(&world);
        wire.send(&[unnamed(change, &[]), sync(), unnamed(write, &[]), sync()].concat());
        wire.read_until_ready();
        assert_eq!(code_in(&wire.read_until_ready()), "LF001", "{change}");
        let mut wire = elsewhere(&world);
        wire.send(&[query(change), query(write)].concat());
        wire.read_until_ready();
        assert_eq!(code_in(&wire.read_until_ready()), "LF001", "{change}");
        is_safe(&world, change);
    }
    // A rollback restores the path.
    let mut wire = elsewhere(&world);
    ok(&mut wire, "SET search_path = public");
    ok(&mut wire, restored);
    ok(&mut wire, write);
    wire.send(&[query("ROLLBACK"), query(write)].concat());
    wire.read_until_ready();
    assert_eq!(code_in(&wire.read_until_ready()), "LF001");
    // An error that ends an implicit transaction restores it too.
    ok(&mut wire, "SET search_path = public");
    wire.exchange(&[unnamed("SET search_path = other", &[]), unnamed("SELECT 1/0", &[]), sync()].concat());
    assert_eq!(code(&mut wire, write), "LF001");
    // The same after a write for which the proxy has queried the path, and which passed.
    let taken_back = [unnamed("SET search_path = other", &[]), unnamed(write, &[]), unnamed("SELECT 1/0", &[]), sync()];
    assert_eq!(code_in(&wire.exchange(&taken_back.concat())), "22012");
    assert_eq!(code(&mut wire, write), "LF001");
    let number = world.postgres.value("SELECT 'other.leave()'::regprocedure::oid");
    let mut wire = elsewhere(&world);
    wire.exchange(&function_call(number.parse().unwrap(), &[]));
    assert_eq!(code(&mut wire, write), "LF001");
    is_safe(&world, "the rest");
}

#[test]
fn a_path_that_changes_in_a_running_statement() {
    under_way(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_path_that_changes_in_a_running_statement_on_18() {
    under_way(Release::Eighteen);
}

/// A plan is made again with the path at the time of Bind. A statement without a plan looks up its names when it is
/// executed.
#[test]
fn statements_prepared_or_bound_under_another_path() {
    let world = start(Release::Installed);
    for statement in ["INSERT INTO jobs VALUES (1)", "UPDATE jobs SET n = 3", "TRUNCATE jobs", "COPY jobs FROM STDIN"] {
        let mut wire = elsewhere(&world);
        wire.exchange(&[parse("s", statement, &[]), sync()].concat());
        let end = if statement.starts_with("COPY") { copy_done() } else { Vec::new() };
        let run = [bind_text("", "s", &[]), execute("", 0), end.clone(), sync()].concat();
        assert_eq!(code_in(&wire.exchange(&run)), "", "{statement}");
        ok(&mut wire, "SET search_path = public");
        assert_eq!(code_in(&wire.exchange(&run)), "LF001", "{statement}");
        for (bound, executed) in [("public, keeper", "other"), ("other", "public"), ("public", "other")] {
            let mut wire = elsewhere(&world);
            wire.exchange(&[parse("s", statement, &[]), sync()].concat());
            ok(&mut wire, &format!("BEGIN; SET LOCAL search_path = {bound}"));
            wire.exchange(&[bind_text("p", "s", &[]), sync()].concat());
            ok(&mut wire, &format!("SET LOCAL search_path = {executed}"));
            let frames = wire.exchange(&[execute("p", 0), end.clone(), sync()].concat());
            let writes_fenced =
                if statement.contains("INSERT") || statement.contains("UPDATE") { bound } else { executed };
            if writes_fenced != "other" {
                assert_eq!(code_in(&frames), "LF001", "{statement} {bound} {executed}");
            }
            wire.reset();
        }
    }
    let mut wire = elsewhere(&world);
    wire.exchange(&[parse("s", "INSERT INTO jobs VALUES (1) RETURNING n", &[]), sync()].concat());
    ok(&mut wire, "BEGIN; SET LOCAL search_path = public");
    wire.exchange(&[bind_text("p", "s", &[]), sync()].concat());
    ok(&mut wire, "SET LOCAL search_path = other");
    assert_eq!(code(&mut wire, "FETCH ALL FROM p"), "LF001");
    let mut wire = elsewhere(&world);
    ok(&mut wire, "PREPARE q AS INSERT INTO jobs VALUES (1)");
    ok(&mut wire, "SET search_path = public");
    assert_eq!(code(&mut wire, "EXECUTE q"), "LF001");
    is_safe(&world, "prepared");
}

/// A view in a schema of the path leads to the fenced table, as does a view of this name that another session creates,
/// from then on.
#[test]
fn ways_to_the_fenced_table_in_the_path() {
    let world = start(Release::Installed);
    let mut wire = elsewhere(&world);
    world.postgres.sql("CREATE VIEW other.way AS TABLE public.jobs; CREATE TABLE keeper.way (n int)");
    ok(&mut world.login(), "CREATE VIEW other.renamed AS TABLE public.jobs");
    for write in ["INSERT INTO way VALUES (1)", "INSERT INTO renamed VALUES (1)"] {
        assert_eq!(code(&mut wire, write), "LF001", "{write}");
    }
    ok(&mut wire, "SET search_path = keeper");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF001");
    ok(&mut wire, "INSERT INTO way VALUES (1)");
    ok(&mut wire, "SET search_path = other");
    ok(&mut world.login(), "ALTER TABLE other.jobs RENAME TO old_jobs");
    ok(&mut world.login(), "ALTER VIEW other.way RENAME TO jobs");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF001");
    // Temporary relations come first in every path.
    ok(&mut world.login(), "CREATE VIEW other.way AS TABLE public.jobs");
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 47");
    ok(&mut wire, "SET search_path = keeper");
    ok(&mut wire, "CREATE TEMP VIEW way AS TABLE public.jobs");
    assert_eq!(code(&mut wire, "INSERT INTO way VALUES (1)"), "LF001");
    is_safe(&world, "views");
}

/// An earlier schema may be created, granted or revoked meanwhile. This makes no difference: every schema in the path
/// counts.
#[test]
fn schemas_that_are_created_and_dropped() {
    let world = start(Release::Installed);
    let mut wire = world.holder(47);
    ok(&mut wire, "SET search_path = missing, other, public");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF001");
    ok(&mut wire, "SET search_path = missing, other");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    ok(&mut world.login(), "CREATE SCHEMA missing");
    ok(&mut world.login(), "CREATE VIEW missing.jobs AS TABLE public.jobs");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF001");
    ok(&mut wire, "SET search_path = \"Public\", other");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    assert_eq!(rows_in(&wire.query("SELECT current_schemas(false)")).len(), 1);
    is_safe(&world, "schemas");
}

/// After a function that restores the path, nothing is refused.
#[test]
fn a_function_with_a_path_of_its_own() {
    let world = start(Release::Installed);
    world.postgres.sql("CREATE FUNCTION other.f() RETURNS int LANGUAGE sql SET search_path = public AS 'SELECT 1'");
    let mut wire = elsewhere(&world);
    ok(&mut wire, "SELECT f()");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    ok(&mut wire, "BEGIN");
    wire.query("SELECT 1/0");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "25P02");
    ok(&mut wire, "ROLLBACK");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    is_safe(&world, "f");
}
