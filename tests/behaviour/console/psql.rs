//! psql: commands, \c to the console and back, and psql's own queries.

use super::world::World;
use crate::support::programs::{psql, run};
use crate::support::ticks::WRITE;
use std::io::Write;
use std::process::Stdio;

/// The output of psql for this input, including errors.
fn says(world: &World, database: &str, input: &str) -> String {
    let mut command = psql(&world.proxy.address(), database);
    command.args(["-q", "-A", "-t", "-F ", "-v", "ON_ERROR_STOP=0"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("\\o | cat 1>&2\n{input}").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_is_answered() {
    let world = World::start();
    let _writer = world.writer(47);
    let answer = |command: &str| {
        let output = run(psql(&world.proxy.address(), "fencegate").args(["-A", "-F ", "-c", command]));
        String::from_utf8(output.stdout).unwrap()
    };
    for (command, columns) in [
        ("SHOW FENCES", "database resource mode"),
        ("show sessions", "session database user"),
        ("SHOW ADMISSIONS;", "database resource generation"),
        ("SHOW POLICIES", "database resource table"),
        ("SHOW REJECTIONS", "time session user"),
        ("SHOW STATS", "database resource mode"),
        ("SHOW DATABASES", "name host"),
        ("SHOW CLIENTS", "type user database"),
        ("SHOW SERVERS", "host up role"),
        ("SHOW CONFIG", "key value default"),
        ("SHOW VERSION", "fencegate server started"),
        ("help", "command description"),
        ("RELOAD", "what name change"),
        ("FENCE RESET scheduler IN DATABASE Postgres TO 47", "database resource generation_before"),
    ] {
        assert!(answer(command).starts_with(columns), "{command}: {}", answer(command));
    }
    assert!(answer("SHOW FENCES").contains("\npostgres scheduler enforce  "));
}

#[test]
fn a_user_goes_from_a_database_to_the_console_and_back() {
    let world = World::start();
    let said = says(
        &world,
        "postgres",
        &format!(
            "SET lease.fence = 47;\n{WRITE};\n\\c fencegate\nSHOW FENCES;\n\\c postgres\nSELECT 'back ' || count(*) FROM ticks;\n"
        ),
    );
    assert!(said.contains("postgres scheduler enforce  1 47 t ") && said.contains("back 1"), "{said}");
}

/// Each query gets a helpful error, and the session continues.
#[test]
fn psqls_own_queries_are_harmless() {
    let world = World::start();
    let said = says(&world, "fencegate", "\\d\n\\l\n\\dt public.*\n\\du\n\\conninfo\n\\x\nSHOW VERSION;\n");
    assert_eq!(said.matches("does not run SQL").count(), 4, "{said}");
    assert!(said.contains("fencegate 0."), "{said}");
    // psql's queries to complete `SELECT * FROM t<TAB>`, `SET <TAB>` and `\c <TAB>`.
    let mut wire = world.console();
    for query in [
        "SELECT pg_catalog.quote_ident(c.relname) FROM pg_catalog.pg_class c WHERE c.relkind IN ('r') AND substring(pg_catalog.quote_ident(c.relname),1,1)='t' LIMIT 1000",
        "SELECT name FROM (SELECT pg_catalog.lower(name) AS name FROM pg_catalog.pg_settings) ss WHERE substring(name,1,0)='' LIMIT 1000",
        "SELECT pg_catalog.quote_ident(datname) FROM pg_catalog.pg_database WHERE substring(pg_catalog.quote_ident(datname),1,1)='f' LIMIT 1000",
    ] {
        let error = wire.rows(query).unwrap_err();
        assert_eq!((error.severity(), error.code()), ("ERROR", "42601"));
        assert!(error.hint().contains("connect to a database"));
    }
    assert_eq!(wire.rows("SHOW VERSION").unwrap().len(), 1);
    // The same within a transaction.
    wire.query("begin");
    assert_eq!(wire.rows("SELECT name FROM pg_settings").unwrap_err().code(), "42601");
    assert_eq!(wire.rows("SHOW VERSION").unwrap().len(), 1);
}
