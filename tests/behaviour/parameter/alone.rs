//! Statements that the server runs only outside a transaction block and first in their pipeline
//! (`PreventInTransactionBlock`) pass, although the proxy must query the session's token first.

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::message::{bind_text, describe_statement, execute, parse, sync, unnamed};
use crate::support::{Options, ProxyOptions, Release, Wire};

const SCHEMA: &str = "CREATE TABLE ticks (n int PRIMARY KEY) PARTITION BY LIST (n); \
    CREATE TABLE ticks_1 PARTITION OF ticks FOR VALUES IN (1); CREATE TABLE ticks_2 PARTITION OF ticks FOR VALUES IN (2); \
    CREATE TABLE ticks_3 PARTITION OF ticks FOR VALUES IN (3); CREATE TABLE ticks_4 PARTITION OF ticks FOR VALUES IN (4); \
    CREATE TABLE free (n int); CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'; \
    CREATE FUNCTION sets() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('lease.fence', '47', false); END$$; \
    CREATE FUNCTION tick(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n'; \
    CREATE SUBSCRIPTION alone CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false)";
const POLICIES: &str = "version: 1\nopaque: require_token\nresources:\n  \
    - {name: scheduler, tables: [public.ticks], functions: [public.tick]}\n";

/// SQLSTATE in a transaction block or a pipeline.
const NOT_ALONE: &str = "25001";
/// The same for code that commits.
const NOT_ATOMIC: &str = "2D000";

/// Commands, each with its SQLSTATE when it runs alone. None if it fails only because it cannot connect to another
/// server.
const COMMANDS: &[(&str, Option<&str>)] = &[
    ("ALTER TABLE ticks DETACH PARTITION ticks_1 CONCURRENTLY", Some("")),
    ("ALTER TABLE ticks DETACH PARTITION ticks_2 CONCURRENTLY", Some("")),
    ("ALTER TABLE ticks DETACH PARTITION ticks_3 CONCURRENTLY", Some("")),
    ("CREATE DATABASE alone", Some("")),
    ("ALTER DATABASE alone SET TABLESPACE pg_default", Some("")),
    ("DROP DATABASE alone", Some("")),
    ("CREATE TABLESPACE alone LOCATION '/nowhere'", Some("58P01")),
    ("DROP TABLESPACE IF EXISTS alone", Some("")),
    ("ALTER SYSTEM SET work_mem = '4MB'", Some("")),
    ("ALTER SYSTEM RESET work_mem", Some("")),
    ("VACUUM", Some("")),
    ("VACUUM (FULL, ANALYZE) ticks", Some("")),
    ("CLUSTER", Some("")),
    ("CREATE INDEX CONCURRENTLY by_n ON free (n)", Some("")),
    ("CREATE INDEX CONCURRENTLY by_tick ON free (tick(n))", Some("")),
    ("REINDEX INDEX CONCURRENTLY by_n", Some("")),
    ("REINDEX TABLE CONCURRENTLY free", Some("")),
    ("REINDEX TABLE ticks", Some("")),
    ("REINDEX SCHEMA public", Some("")),
    ("REINDEX DATABASE postgres", Some("")),
    ("REINDEX SYSTEM postgres", Some("")),
    ("DROP INDEX CONCURRENTLY by_n", Some("")),
    ("DISCARD ALL", Some("")),
    ("COMMIT PREPARED 'none'", Some("42704")),
    ("ROLLBACK PREPARED 'none'", Some("42704")),
    ("CREATE SUBSCRIPTION another CONNECTION 'host=/nowhere' PUBLICATION p", None),
    ("CALL commits()", Some("")),
    ("DO 'BEGIN COMMIT; END'", Some("")),
];

/// The subscription is disabled and has a slot, so these commands connect to the publisher.
const SINCE_18: &[(&str, Option<&str>)] = &[
    ("ALTER SUBSCRIPTION alone SET (failover = true)", None),
    ("ALTER SUBSCRIPTION alone SET (two_phase = false)", None),
];

const OF_ENABLED: &[(&str, Option<&str>)] = &[
    ("ALTER SUBSCRIPTION alone REFRESH PUBLICATION", None),
    ("ALTER SUBSCRIPTION alone SET PUBLICATION q", None),
    ("ALTER SUBSCRIPTION alone ADD PUBLICATION r", None),
    ("DROP SUBSCRIPTION alone", None),
];

#[test]
fn a_statement_that_must_be_alone_passes_behind_a_function_that_may_set_the_token() {
    let world = World::start(Options::default());
    world.pass(COMMANDS);
    world.enable();
    world.pass(OF_ENABLED);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_statement_that_must_be_alone_passes_on_18() {
    let world = World::start(Options::default().release(Release::Eighteen));
    world.pass(COMMANDS);
    world.pass(SINCE_18);
    world.enable();
    world.pass(OF_ENABLED);
}

struct World(Fenced);

impl World {
    fn start(options: Options) -> Self {
        let proxy = ProxyOptions::default().policies(POLICIES);
        let world = Fenced::start_with(options.unused(), SCHEMA, &proxy);
        ok(&mut world.holder(47), "DELETE FROM ticks");
        World(world)
    }

    /// The subscription's worker cannot connect.
    fn enable(&self) {
        self.0.postgres.sql("ALTER SUBSCRIPTION alone ENABLE");
    }

    fn pass(&self, commands: &[(&str, Option<&str>)]) {
        for (index, (sql, expected)) in commands.iter().enumerate() {
            let mut direct = Wire::login(&self.0.postgres.address(), "postgres", "postgres");
            ok(&mut direct, "BEGIN");
            let found = code(&mut direct, sql);
            assert!([NOT_ALONE, NOT_ATOMIC].contains(&found.as_str()), "{sql}: {found}");
            let found = self.run(sql, index);
            match expected {
                Some(expected) => assert_eq!(found, *expected, "{sql}"),
                None => {
                    assert!(!["", NOT_ALONE].contains(&found.as_str()) && !found.starts_with("LF"), "{sql}: {found}")
                }
            }
        }
    }

    /// Runs the statement after a function, in one of the ways that drivers use.
    fn run(&self, sql: &str, index: usize) -> String {
        let mut wire = self.0.login();
        let first = [unnamed("SELECT sets()", &[]), sync()].concat();
        let run = [bind_text("", "s", &[]), execute("", 0), sync()].concat();
        let prepare = parse("s", sql, &[]);
        match index % 3 {
            0 => {
                wire.exchange(&first);
                code_in(&wire.exchange(&[prepare, run].concat()))
            }
            1 => {
                wire.exchange(&first);
                assert_eq!(code_in(&wire.exchange(&[prepare, describe_statement("s"), sync()].concat())), "", "{sql}");
                code_in(&wire.exchange(&run))
            }
            _ => {
                wire.send(&[first, prepare, run].concat());
                wire.read_until_ready();
                code_in(&wire.read_until_ready())
            }
        }
    }
}
