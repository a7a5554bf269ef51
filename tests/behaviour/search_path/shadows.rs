//! Another relation replaces the one that the path led to, or code runs unexpectedly. A stale leader, who may create
//! and rename unfenced relations, never writes to the fenced table this way.

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, parse, sync};
use crate::support::{DEADLINE, Options, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "
    CREATE TABLE jobs (n int);
    CREATE SCHEMA other; CREATE TABLE other.jobs (n int);
    CREATE FUNCTION other.leave(text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN SET search_path = public; RETURN true; END $$;
    CREATE FUNCTION other.number() RETURNS int LANGUAGE plpgsql AS $$ BEGIN SET search_path = public; RETURN 1; END $$;
    CREATE DOMAIN other.checked AS text CHECK (other.leave(value)); CREATE TYPE other.pair AS (c other.checked)";
/// Separate objects for each attempt, with its schema in place of `?`.
const APART: &str = "
    CREATE SCHEMA ?; CREATE TABLE ?.jobs (n int); CREATE SCHEMA hidden_?;
    CREATE VIEW hidden_?.way AS TABLE public.jobs;
    CREATE TABLE hidden_?.ruled (n int); CREATE RULE r AS ON INSERT TO hidden_?.ruled DO INSTEAD INSERT INTO public.jobs VALUES (new.n)";
const POLICY: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

/// Definitions that put a path to the fenced table under the name `jobs` into the search path, for their own session or
/// for all.
const FOR_ITSELF: [&[&str]; 3] = [
    &["CREATE TEMP VIEW jobs AS TABLE public.jobs"],
    &["CREATE VIEW pg_temp.jobs AS TABLE public.jobs"],
    &["CREATE TEMP VIEW unknown AS TABLE public.jobs", "ALTER VIEW unknown RENAME TO jobs"],
];
const FOR_ALL: [&[&str]; 8] = [
    &["ALTER TABLE ?.jobs RENAME TO old", "CREATE VIEW ?.jobs AS TABLE public.jobs"],
    &["ALTER TABLE ?.jobs RENAME TO old", "CREATE VIEW jobs AS TABLE hidden_?.way"],
    &[
        "ALTER TABLE ?.jobs RENAME TO old",
        "ALTER VIEW hidden_?.way RENAME TO jobs",
        "ALTER VIEW hidden_?.jobs SET SCHEMA ?",
    ],
    &["ALTER TABLE ?.jobs RENAME TO old", "ALTER VIEW hidden_?.way SET SCHEMA ?", "ALTER VIEW ?.way RENAME TO jobs"],
    &[
        "ALTER TABLE ?.jobs RENAME TO old",
        "ALTER TABLE hidden_?.ruled SET SCHEMA ?",
        "ALTER TABLE ?.ruled RENAME TO jobs",
    ],
    &["DROP TABLE ?.jobs", "CREATE VIEW jobs AS TABLE public.jobs"],
    &["CREATE RULE r AS ON INSERT TO ?.jobs DO INSTEAD INSERT INTO public.jobs VALUES (new.n)"],
    &["CREATE RULE r AS ON INSERT TO ?.jobs DO ALSO INSERT INTO hidden_?.way VALUES (new.n)"],
];

const WRITE: &str = "INSERT INTO jobs VALUES (1)";
const WITHIN: &str = "WITH w AS (INSERT INTO jobs VALUES (1) RETURNING n) TABLE w";

/// A world in which a newer leader has written.
fn start() -> Fenced {
    let world = Fenced::start_with(Options::default(), SCHEMA, &ProxyOptions::default().policies(POLICY));
    ok(&mut world.holder(100), "DELETE FROM public.jobs");
    world
}

/// A stale leader that has written in another schema.
fn elsewhere(world: &Fenced, schema: &str) -> Wire {
    let mut wire = world.holder(47);
    ok(&mut wire, &format!("SET search_path = {schema}"));
    ok(&mut wire, WRITE);
    wire
}

/// The same in schemas that no session has used before.
fn apart(world: &Fenced, number: usize) -> (Wire, String) {
    let schema = format!("s{number}");
    ok(&mut world.holder(100), &APART.replace('?', &schema));
    (elsewhere(world, &schema), schema)
}

fn define(wire: &mut Wire, definition: &[&str], schema: &str) {
    definition.iter().for_each(|step| drop(ok(wire, &step.replace('?', schema))));
}

#[track_caller]
fn is_refused(world: &Fenced, wire: &mut Wire, write: &str, what: &[&str]) {
    let refused = code(wire, write);
    assert!(["LF001", "LF004"].contains(&refused.as_str()), "{what:?}, {write}: {refused:?}");
    is_safe(world, what);
}

#[track_caller]
fn is_safe(world: &Fenced, what: &[&str]) {
    assert_eq!(world.postgres.value("SELECT count(*) FROM public.jobs"), "0", "{what:?}");
}

/// The stale leader itself makes the definition, in the same transaction or committed immediately before.
#[test]
fn by_the_session_itself() {
    let world = start();
    let each = FOR_ITSELF.iter().chain(&FOR_ALL).flat_map(|definition| {
        [(false, WRITE), (true, WRITE), (false, WITHIN), (true, WITHIN)]
            .map(|(commits, write)| (definition, commits, write))
    });
    for (number, (definition, commits, write)) in each.enumerate() {
        let (mut wire, schema) = apart(&world, number);
        ok(&mut wire, "BEGIN");
        define(&mut wire, definition, &schema);
        if commits {
            ok(&mut wire, "COMMIT");
        }
        is_refused(&world, &mut wire, write, definition);
        // An open definition may cause others to be refused.
        code(&mut wire, "ROLLBACK");
    }
    let (mut wire, schema) = apart(&world, 1_000);
    for schemas in [[&schema, "old"], [&format!("hidden_{schema}"), &schema]] {
        assert_eq!(code(&mut wire, &format!("ALTER SCHEMA {} RENAME TO {}", schemas[0], schemas[1])), "LF004");
    }
}

/// Another session makes the definition. Its transaction ends while the stale leader waits for it, or has just written.
#[test]
fn by_another_session_meanwhile() {
    let world = start();
    for (number, definition) in FOR_ALL.iter().enumerate() {
        let (mut wire, schema) = apart(&world, number);
        let mut other = world.login();
        ok(&mut other, &format!("SET search_path = {schema}"));
        ok(&mut other, "BEGIN");
        define(&mut other, definition, &schema);
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'";
        std::thread::scope(|scope| {
            let written = scope.spawn(|| code(&mut wire, WRITE));
            let is_due = || written.is_finished() || world.postgres.value(waiting) != "0";
            wait_until("it waits for the lock, or is answered", DEADLINE, is_due);
            ok(&mut other, "COMMIT");
        });
        is_safe(&world, definition);
        is_refused(&world, &mut wire, WRITE, definition);
    }
}

/// A value bound to a statement that runs nothing, a literal that is only parsed, and arguments that are computed
/// before later names are looked up.
#[test]
fn by_code_that_runs_early() {
    let world = start();
    let oid = world.postgres.value("SELECT 'other.checked'::regtype::oid").parse().unwrap();
    for text in ["SHOW work_mem", "BEGIN", "LISTEN a"] {
        let mut wire = elsewhere(&world, "other");
        let bind = [parse("s", text, &[oid]), bind_text("", "s", &[Some(b"x")]), sync()].concat();
        assert_eq!(code_in(&wire.exchange(&bind)), "", "{text}");
        is_refused(&world, &mut wire, WRITE, &[text]);
    }
    for literal in ["'{x}'::other.checked[]", "'(x)'::other.pair"] {
        let mut wire = elsewhere(&world, "other");
        assert_eq!(code_in(&wire.exchange(&[parse("s", &format!("SELECT {literal}"), &[]), sync()].concat())), "");
        is_refused(&world, &mut wire, WRITE, &[literal]);
    }
    let mut wire = elsewhere(&world, "other");
    ok(&mut wire, "PREPARE q (int) AS INSERT INTO jobs VALUES ($1)");
    is_refused(&world, &mut wire, "EXECUTE q (other.number())", &["EXECUTE"]);
}
