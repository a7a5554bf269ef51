//! How a policy classifies a session's statements, and its effect on them.

use crate::support::fenced::{Fenced, code, code_in, init, ok};
use crate::support::guardian::Folder;
use crate::support::message::{
    bind_text, copy_data, copy_done, describe_statement, execute, function_call, parse, query, sync,
};
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, ProxyOptions, Wire, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); CREATE TABLE log (n int); \
    CREATE SCHEMA other; CREATE TABLE other.jobs (n int); CREATE TABLE \"Odd Näme\" (n int); CREATE SCHEMA \"Other\"; \
    CREATE TABLE \"Other\".\"Jobs\" (n int); CREATE ROLE migrator LOGIN; GRANT ALL ON jobs TO migrator; \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'; \
    CREATE FUNCTION harmless() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
    CREATE PROCEDURE work() LANGUAGE sql AS 'INSERT INTO jobs VALUES (1)'";
const POLICIES: &str = r#"version: 1
resources:
  - name: scheduler
    tables: [public.jobs, 'public."Odd Näme"', '"Other"."Jobs"']
    functions: [public.run_tick]
"#;

/// Runs each statement alone in a session without a token and asserts its SQLSTATE.
#[track_caller]
fn meets(wire: &mut Wire, expected: &str, statements: &[&str]) {
    for statement in statements {
        wire.query("BEGIN");
        wire.send(&query(statement));
        let mut frames = Vec::new();
        while let Some(frame) = wire.frame() {
            if frame.tag == b'G' {
                wire.send(&copy_done());
            }
            let ready = frame.tag == b'Z';
            frames.push(frame);
            if ready {
                break;
            }
        }
        assert_eq!(code_in(&frames), expected, "{statement}");
        wire.query("ROLLBACK");
        let frames = wire.exchange(&[parse("", statement, &[]), sync()].concat());
        if code_in(&frames).is_empty() && !statement.starts_with("COPY") {
            wire.query("BEGIN");
            let frames =
                wire.exchange(&[parse("", statement, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat());
            assert_eq!(code_in(&frames), expected, "{statement}, extended");
            wire.query("ROLLBACK");
        }
    }
}

#[test]
fn statements_that_count_as_writes() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut wire = world.login();
    let writes = [
        "INSERT INTO jobs VALUES (1)",
        "INSERT INTO jobs VALUES (1) ON CONFLICT DO NOTHING",
        "INSERT INTO jobs DEFAULT VALUES RETURNING n",
        "UPDATE jobs SET n = 1",
        "UPDATE ONLY jobs SET n = 1",
        "UPDATE jobs AS free SET n = 1 FROM free AS jobs",
        "DELETE FROM jobs",
        "DELETE FROM ONLY (jobs) USING free",
        "TRUNCATE free, jobs",
        "MERGE INTO jobs USING free ON jobs.n = free.n WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1)",
        "MERGE INTO ONLY jobs USING free ON true WHEN MATCHED THEN UPDATE SET n = 2",
        "COPY jobs FROM STDIN",
        "COPY jobs (n) FROM STDIN WITH (FORMAT csv)",
        "COPY (DELETE FROM jobs RETURNING n) TO STDOUT",
        "WITH gone AS (DELETE FROM jobs RETURNING n) SELECT * FROM gone",
        "WITH jobs AS (DELETE FROM jobs RETURNING n) INSERT INTO free SELECT n FROM jobs",
        "SELECT * FROM (SELECT 1) a WHERE EXISTS (SELECT run_tick())",
        "EXPLAIN ANALYZE INSERT INTO jobs VALUES (1)",
        "EXPLAIN (ANALYZE, BUFFERS) DELETE FROM jobs",
        "SELECT run_tick()",
        "SELECT public.run_tick() FROM free",
        "SELECT * FROM run_tick() AS t(n)",
        "INSERT INTO free SELECT run_tick()",
        "CREATE TEMP TABLE t AS SELECT run_tick()",
        "PREPARE p AS SELECT run_tick(); EXECUTE p",
        "DECLARE c CURSOR FOR SELECT run_tick()",
        "ALTER TABLE jobs ADD COLUMN m int",
        "ALTER TABLE IF EXISTS ONLY jobs RENAME TO gone",
        "ALTER TABLE jobs SET SCHEMA other",
        "DROP TABLE IF EXISTS nothing, jobs",
        "CREATE TRIGGER t BEFORE INSERT ON jobs EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE RULE r AS ON INSERT TO jobs DO INSTEAD NOTHING",
        "CREATE TABLE part PARTITION OF jobs DEFAULT",
        // Names.
        "INSERT INTO public.jobs VALUES (1)",
        "INSERT INTO postgres.public.jobs VALUES (1)",
        "INSERT INTO \"jobs\" VALUES (1)",
        "INSERT INTO JOBS VALUES (1)",
        "INSERT INTO Public.\"jobs\" VALUES (1)",
        "INSERT INTO U&\"jo\\0062s\" VALUES (1)",
        "INSERT INTO U&\"jo!0062s\" UESCAPE '!' VALUES (1)",
        "INSERT INTO \"Odd Näme\" VALUES (1)",
        "INSERT INTO public.U&\"Odd N\\00e4me\" VALUES (1)",
        "INSERT INTO \"Other\".\"Jobs\" VALUES (1)",
        "INSERT/**/INTO/* jobs */jobs/**/VALUES(1)",
        "TABLE free; INSERT INTO jobs VALUES (1)",
    ];
    meets(&mut wire, "LF002", &writes);
    let reads = [
        "SELECT * FROM jobs",
        "TABLE jobs",
        "COPY jobs TO STDOUT",
        "SELECT * FROM jobs FOR UPDATE",
        "LOCK TABLE jobs",
        "EXPLAIN INSERT INTO jobs VALUES (1)",
        "PREPARE r AS INSERT INTO jobs VALUES (1); DEALLOCATE r",
        "INSERT INTO free SELECT n FROM jobs",
        "INSERT INTO other.jobs VALUES (1)",
        "CREATE TEMP TABLE u AS TABLE jobs",
        "SELECT n INTO TEMP v FROM jobs",
        "SELECT 'INSERT INTO jobs VALUES (1)' -- INSERT INTO jobs",
        "SELECT harmless()",
        "CREATE INDEX ON jobs (n)",
        "ANALYZE jobs",
        "COMMENT ON TABLE jobs IS 'fenced'",
        "GRANT SELECT ON jobs TO migrator",
        "CREATE VIEW seen AS TABLE jobs",
    ];
    meets(&mut wire, "", &reads);
    let opaque = [
        "DO $$ BEGIN END $$",
        "CALL work()",
        "EXPLAIN ANALYZE EXECUTE unknown",
        "EXECUTE unknown",
        "CREATE TABLE t AS EXECUTE unknown",
        "INSERT INTO free VALUES (1) nonsense",
    ];
    meets(&mut wire, "LF004", &opaque[..5]);
    // Neither the proxy nor the server can parse this text, so the client receives the server's error.
    meets(&mut wire, "42601", &opaque[5..]);
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");

    // With another search path, the name means another table.
    ok(&mut wire, "SET search_path = other");
    meets(&mut wire, "", &["INSERT INTO jobs VALUES (1)", "INSERT INTO other.jobs VALUES (1)"]);
    ok(&mut wire, "SET search_path = other, public");
    meets(&mut wire, "LF002", &["INSERT INTO jobs VALUES (1)"]);
}

#[test]
fn locks_of_a_stale_holder() {
    let world = Fenced::start(SCHEMA, POLICIES);
    ok(&mut world.holder(100), "DELETE FROM jobs");
    let mut stale = world.holder(47);
    meets(
        &mut stale,
        "LF001",
        &[
            "SELECT * FROM jobs FOR UPDATE",
            "SELECT * FROM jobs, free FOR SHARE OF jobs",
            "LOCK TABLE jobs",
            "LOCK TABLE jobs IN ROW SHARE MODE",
        ],
    );
    meets(
        &mut stale,
        "",
        &[
            "SELECT * FROM jobs",
            "SELECT * FROM free FOR UPDATE",
            "SELECT * FROM jobs, free FOR SHARE OF free",
            "BEGIN; LOCK TABLE jobs, fencegate_state.epoch IN ACCESS SHARE MODE; COMMIT",
        ],
    );
    ok(&mut world.holder(101), "BEGIN; SELECT * FROM jobs FOR UPDATE; COMMIT");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "101");
}

#[test]
fn fenced_operations() {
    let policies = "version: 1\nresources:\n  - name: scheduler\n    tables:\n      - {name: public.jobs, operations: [update, delete]}\n";
    let world = Fenced::start(SCHEMA, policies);
    world.postgres.sql("CREATE UNIQUE INDEX ON jobs (n)");
    let mut wire = world.login();
    meets(
        &mut wire,
        "",
        &["INSERT INTO jobs VALUES (1)", "TRUNCATE jobs", "COPY jobs FROM STDIN", "ALTER TABLE jobs ADD m int"],
    );
    let fenced = [
        "UPDATE jobs SET n = 1",
        "DELETE FROM jobs",
        "INSERT INTO jobs AS j VALUES (1) ON CONFLICT (n) DO UPDATE SET n = 2",
        "MERGE INTO jobs USING free ON true WHEN MATCHED THEN DELETE",
    ];
    meets(&mut wire, "LF002", &fenced);
    meets(&mut wire, "", &["MERGE INTO jobs USING free ON false WHEN NOT MATCHED THEN INSERT VALUES (1)"]);
}

#[test]
fn sessions_without_a_token_may_be_allowed() {
    let world = Fenced::start(SCHEMA, &(POLICIES.to_owned() + "    on_missing: allow\n"));
    let mut wire = world.login();
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    ok(&mut world.holder(100), "INSERT INTO jobs VALUES (2)");
    ok(&mut wire, "INSERT INTO jobs VALUES (3)");
    // A session with a token is held to it.
    assert_eq!(code(&mut world.holder(47), "INSERT INTO jobs VALUES (4)"), "LF001");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "3");
}

#[test]
fn a_fence_that_observes() {
    let world = Fenced::start(SCHEMA, &(POLICIES.to_owned() + "    mode: observe\n"));
    ok(&mut world.login(), "INSERT INTO jobs VALUES (1)");
    world.proxy.wait_for_log("write_would_be_rejected", DEADLINE);
    ok(&mut world.holder(100), "INSERT INTO jobs VALUES (2)");
    wait_until("the token is recorded", DEADLINE, || {
        world.postgres.value("SELECT token FROM fencegate_state.epoch") == "100"
    });
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (3)");
    world.proxy.wait_for_log("stale_write_observed", DEADLINE);
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "3");
}

#[test]
fn exempt_roles_pass_without_a_token() {
    let world = Fenced::start(SCHEMA, &(POLICIES.to_owned() + "exempt_roles: [migrator]\n"));
    let mut wire = world.login_as("migrator");
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    world.proxy.wait_for_log("exempt_write", DEADLINE);
    ok(&mut wire, "DO $$ BEGIN INSERT INTO jobs VALUES (2); END $$");
    // The login role counts, not the current role.
    let mut wire = world.login();
    ok(&mut wire, "SET ROLE migrator");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (3)"), "LF002");
    ok(&mut wire, "SET SESSION AUTHORIZATION migrator");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (3)"), "LF002");
}

#[test]
fn opaque_statements_may_be_allowed() {
    let world = Fenced::start(SCHEMA, &(POLICIES.to_owned() + "opaque: allow\n"));
    let mut wire = world.login();
    ok(&mut wire, "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$; CALL work()");
    let run_tick = world.postgres.value("SELECT 'run_tick'::regproc::oid").parse().unwrap();
    assert_eq!(code_in(&wire.exchange(&function_call(run_tick, &[]))), "");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "3");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
}

#[test]
fn opaque_statements_matter_where_something_is_fenced() {
    let world = Fenced::start("SELECT 1", POLICIES);
    let mut wire = world.login();
    ok(&mut wire, "DO $$ BEGIN END $$");
    // Opaque statements count as soon as a fenced table exists, even within the transaction that creates it.
    ok(&mut wire, "BEGIN; CREATE TABLE jobs (n int)");
    assert_eq!(code(&mut wire, "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$"), "LF004");
    ok(&mut wire, "ROLLBACK");
    ok(&mut wire, "CREATE TABLE jobs (n int)");
    assert_eq!(code(&mut wire, "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$"), "LF004");
    assert_eq!(code(&mut world.login(), "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$"), "LF004");
    ok(&mut world.holder(47), "DROP TABLE jobs");
    wait_until("it is known to be gone", DEADLINE, || code(&mut wire, "DO $$ BEGIN END $$").is_empty());
}

#[test]
fn named_databases() {
    let world = Fenced::start("CREATE DATABASE app", &(POLICIES.to_owned() + "databases: [app]\n"));
    init(&world.postgres, "app");
    for database in ["app", "postgres"] {
        world.postgres.sql_in(database, "CREATE TABLE jobs (n int)");
    }
    ok(&mut world.login(), "INSERT INTO jobs VALUES (1); DO $$ BEGIN END $$");
    let mut app = Wire::login(&world.proxy.address(), "postgres", "app");
    assert_eq!(code(&mut app, "INSERT INTO jobs VALUES (1)"), "LF002");
    ok(&mut app, "SET lease.fence = 47; INSERT INTO jobs VALUES (1)");
}

/// The table is not reported missing in other databases: not in the log, the console or by the guard. It is fenced
/// wherever it exists.
#[test]
fn a_table_may_name_its_database() {
    let policies =
        "version: 1\nresources:\n  - {name: r, tables: [public.jobs, {name: public.orders, database: shop}]}\n";
    let world = Fenced::start("CREATE DATABASE shop", policies);
    world.postgres.sql("CREATE TABLE free (n int)");
    init(&world.postgres, "shop");
    world.postgres.sql_in("shop", "CREATE TABLE orders (n int)");
    let mut shop = Wire::login(&world.proxy.address(), "postgres", "shop");
    assert_eq!(code(&mut shop, "INSERT INTO orders VALUES (1)"), "LF002");
    ok(&mut world.login(), "INSERT INTO free VALUES (1)");
    let is_missing = |table: &str| {
        world.proxy.log().lines().any(|line| line.contains("fenced_table_missing") && line.contains(table))
    };
    wait_until("the table that both expect is reported missing", DEADLINE, || is_missing("public.jobs"));
    assert!(!is_missing("public.orders"), "{}", world.proxy.log());
    let mut console = Wire::login(&world.proxy.address(), "postgres", "fencegate");
    let shown: Vec<String> = ok(&mut console, "SHOW POLICIES")
        .into_iter()
        .map(|row| [0, 2, 9].map(|column: usize| row[column].clone().unwrap_or_default()).join(" "))
        .collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown.iter().any(|row| row == "shop public.jobs unresolved"), "{shown:?}");
    assert!(!shown.iter().any(|row| row.starts_with("postgres public.orders")), "{shown:?}");
    let file = Folder::new("policies");
    std::fs::write(file.join("policy.yaml"), policies).unwrap();
    let guard = |database: &str| {
        let control = world.postgres.control_url() + database;
        let output = fencegate()
            .args(["guard", "install", "--control", &control, "--policies"])
            .arg(file.path())
            .output()
            .unwrap();
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat()
    };
    let (here, there) = (guard("postgres"), guard("shop"));
    assert!(!here.contains("orders of resource"), "{here}");
    assert!(there.contains("public.jobs of resource"), "{there}");
    // The table appears in an unexpected database.
    world.postgres.sql("CREATE TABLE orders (n int)");
    assert_eq!(code(&mut world.login(), "INSERT INTO orders VALUES (1)"), "LF002");
}

#[test]
fn a_reload_applies_whole() {
    let mut world = Fenced::start(SCHEMA, POLICIES);
    let (mut running, mut prepared) = (world.login(), world.login());
    ok(&mut prepared, "PREPARE q AS INSERT INTO free VALUES (1)");
    prepared.exchange(&[parse("s", "INSERT INTO free VALUES (1)", &[]), describe_statement("s"), sync()].concat());
    let run = [bind_text("", "s", &[]), execute("", 0), sync()].concat();
    assert_eq!(code_in(&prepared.exchange(&run)), "");

    // Faulty policies change nothing.
    world.proxy.write_policies(&POLICIES.replace("public.jobs", "jobs"));
    world.proxy.sighup();
    world.proxy.wait_for_log("reload_failed", DEADLINE);
    assert_eq!(code(&mut running, "INSERT INTO jobs VALUES (1)"), "LF002");
    ok(&mut running, "INSERT INTO free VALUES (1)");

    // Another fence applies to running sessions and to their prepared statements.
    world.proxy.write_policies(&POLICIES.replace("public.jobs", "public.free"));
    world.proxy.sighup();
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    wait_until("the new fence is enforced", DEADLINE, || code(&mut running, "INSERT INTO free VALUES (1)") == "LF002");
    ok(&mut running, "INSERT INTO jobs VALUES (1)");
    wait_until("it is enforced in every session", DEADLINE, || code(&mut prepared, "EXECUTE q") == "LF002");
    assert_eq!(code_in(&prepared.exchange(&run)), "LF002");
    ok(&mut prepared, "SET lease.fence = 47; EXECUTE q");
    assert_eq!(code_in(&prepared.exchange(&run)), "");
}

#[test]
fn a_fence_for_sessions_without_earlier_policies() {
    let mut world = Fenced::start(SCHEMA, "version: 1\nresources: []\n");
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 47; PREPARE q AS INSERT INTO jobs VALUES (1)");
    wire.exchange(&[parse("s", "SELECT 1", &[]), sync()].concat());
    world.proxy.write_policies(POLICIES);
    world.proxy.sighup();
    wait_until("it is enforced", DEADLINE, || code(&mut world.login(), "INSERT INTO jobs VALUES (1)") == "LF002");
    // The proxy reads the token, but cannot know earlier prepared statements.
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "47");
    assert_eq!(code(&mut wire, "EXECUTE q"), "LF004");
    assert_eq!(code_in(&wire.exchange(&[bind_text("", "s", &[]), execute("", 0), sync()].concat())), "LF004");
    ok(&mut wire, "DEALLOCATE ALL; PREPARE q AS INSERT INTO jobs VALUES (1)");
    ok(&mut wire, "EXECUTE q");
}

#[test]
fn a_copy_of_a_holder() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut wire = world.holder(47);
    wire.send(&query("COPY jobs FROM STDIN"));
    wire.read_until(b'G');
    assert_eq!(code_in(&wire.exchange(&[copy_data(b"1\n2\n"), copy_done()].concat())), "");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "2");
}

#[test]
fn a_control_connection_prepared_late_serves_existing_sessions() {
    let policies = |tables: &str| format!("version: 1\nresources:\n  - {{name: jobs, tables: [{tables}]}}\n");
    let mut fenced = Fenced::start("CREATE TABLE jobs (n int); CREATE TABLE more (n int)", &policies("public.jobs"));
    ok(&mut fenced.holder(7), "INSERT INTO jobs VALUES (1)");
    fenced.proxy.terminate();
    fenced.postgres.sql("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 1'");
    let other = ProxyOptions::default().policies(&policies("public.jobs, public.more"));
    fenced.proxy = Proxy::start_with(&fenced.postgres, &other);
    let mut wire = fenced.holder(7);
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (2)"), "LF006");
    fenced.proxy.wait_for_log("policies_not_recorded", DEADLINE);
    let control = fenced.postgres.control_url() + "postgres";
    let prepare = || run(fencegate().args(["init", "--control", &control])).stdout;
    assert!(prepare().starts_with(b"schema fencegate: upgraded from version 1 to 6, owned by postgres"));
    assert!(prepare().starts_with(b"schema fencegate: up to date, owned by postgres"));
    wait_until("its writes are admitted", DEADLINE, || code(&mut wire, "INSERT INTO jobs VALUES (3)").is_empty());
}

#[test]
fn a_rejection_reports_the_token_and_the_resolved_name() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut wire = world.login();
    let mut error = |sql: &str| error_in(&wire.query(sql)).unwrap();
    let missing = error("INSERT INTO jobs VALUES (1)");
    assert!(missing.hint().starts_with("The unqualified name may mean public.jobs"), "{missing:?}");
    let invalid = error("SET lease.fence = 'forty\nseven'");
    assert_eq!((invalid.code(), invalid.detail()), ("LF003", "value=\"forty\\nseven\""));
    let long = error(&format!("SET lease.fence = '{}'", "x".repeat(5000)));
    assert_eq!(long.detail(), format!("value=\"{}\"...", "x".repeat(60)));
    ok(&mut wire, "SET lease.fence = 'other=2, shard/3=4'");
    let named = error_in(&wire.query("INSERT INTO public.jobs VALUES (1)")).unwrap();
    assert!(named.hint().starts_with("lease.fence names only other, shard/3. SET"), "{named:?}");
}

/// One schema for each tenant, none of them fenced.
#[test]
fn a_name_without_a_schema_is_explained_where_it_may_mean_a_fenced_table() {
    let keyed = "version: 1\nresources:\n  - {name: 'shard/{shard}', tables: [{name: public.ticks, key: shard}]}\n";
    let world =
        Fenced::start("CREATE TABLE ticks (shard int); CREATE SCHEMA tenant; CREATE TABLE tenant.ticks (n int)", keyed);
    let mut wire = world.login();
    ok(&mut wire, "SET lease.fence = 'shard/3=1'; SET search_path = tenant, public; CREATE TEMP TABLE ticks (n int)");
    let says_what_is_meant = |sql: &str, wire: &mut Wire| {
        let error = error_in(&wire.query(sql)).unwrap();
        let meant = "The unqualified name may mean public.ticks. For another table, write its schema, or pg_temp";
        error.code() == "LF004" && error.hint().starts_with(meant)
    };
    for sql in ["INSERT INTO ticks SELECT 1", "UPDATE ticks SET n = 1", "TRUNCATE ticks", "DROP TABLE ticks"] {
        assert!(says_what_is_meant(sql, &mut wire), "{sql}");
    }
    let other = error_in(&wire.query("TRUNCATE public.ticks")).unwrap();
    assert!(other.code() == "LF004" && !other.hint().contains("unqualified name"), "{other:?}");
    ok(&mut wire, "INSERT INTO tenant.ticks SELECT 1; INSERT INTO pg_temp.ticks SELECT 1; DROP TABLE pg_temp.ticks");
}
