//! The server's cost of reading the catalog.

use crate::support::fenced::{Fenced, code, ok};
use crate::support::{Options, ProxyOptions};

const SCHEMA: &str =
    "CREATE TABLE ticks (shard int, n int); CREATE FUNCTION run() RETURNS int LANGUAGE sql AS 'SELECT 1'";
const POLICY: &str =
    "version: 1\nresources:\n  - name: shard/{shard}\n    tables: [{name: public.ticks, key: shard}]\n";

/// Planning the query takes several times as long as running it.
#[test]
fn a_reading_uses_prepared_statements() {
    for (functions, expected) in [("", "EXECUTE ways("), ("    functions: [public.ru*]\n", "EXECUTE ways_and_calls(")] {
        let policy = match functions {
            "" => POLICY.to_owned(),
            _ => format!("{POLICY}  - name: runner\n{functions}"),
        };
        let options = Options::default().setting("log_statement", "all");
        let world = Fenced::start_with(options, SCHEMA, &ProxyOptions::default().policies(&policy));
        let mut wire = world.login();
        ok(&mut wire, "CREATE VIEW way AS TABLE ticks");
        ok(&mut wire, "CREATE VIEW runs AS SELECT run()");
        assert_eq!(code(&mut wire, "INSERT INTO way VALUES (3, 1)"), "LF002");
        assert_eq!(code(&mut wire, "TABLE runs"), if functions.is_empty() { "" } else { "LF002" });
        assert_eq!(code(&mut wire, "DROP TABLE ticks CASCADE"), "LF002");
        let log = world.postgres.log();
        let readings: Vec<&str> =
            log.lines().filter(|line| line.contains("statement: SELECT set_config('lock_timeout', '50ms'")).collect();
        assert!(readings.len() > 1, "{functions}: {readings:?}");
        let is_prepared = |it: &&str| it.contains(expected) && it.contains("; EXECUTE shadows; EXECUTE key_columns(");
        assert!(readings.iter().all(is_prepared), "{functions}: {readings:?}");
        assert!(log.contains("statement: EXECUTE dependencies("), "{functions}");
    }
}
