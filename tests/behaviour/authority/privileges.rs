//! A role without the privilege for a statement raises no fence and shuts no session out.

use crate::support::fenced::{Fenced, code, code_in, ok, value};
use crate::support::wire::error_in;
use crate::support::{Wire, message};

const SCHEMA: &str = "
CREATE ROLE owner; CREATE ROLE worker LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE reader LOGIN;
CREATE ROLE outer_role LOGIN NOINHERIT; GRANT worker TO outer_role;
CREATE TABLE jobs (id int PRIMARY KEY, note text); ALTER TABLE jobs OWNER TO owner;
CREATE TABLE hidden (id int); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; GRANT ALL ON hidden TO PUBLIC;
CREATE POLICY theirs ON hidden FOR INSERT TO worker WITH CHECK (true);
CREATE TABLE parts (id int, note text) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1000); GRANT INSERT ON parts TO worker;
CREATE SCHEMA closed; CREATE TABLE closed.jobs (id int); GRANT ALL ON closed.jobs TO PUBLIC;
CREATE TABLE keyed (shard int, note text);
GRANT UPDATE (note), SELECT, INSERT ON jobs TO worker; GRANT SELECT ON jobs TO reader;
CREATE VIEW shown AS SELECT * FROM jobs; ALTER VIEW shown OWNER TO owner;
GRANT INSERT, UPDATE, DELETE, SELECT ON shown TO worker;
CREATE VIEW invoking WITH (security_invoker) AS SELECT * FROM jobs; ALTER VIEW invoking OWNER TO owner;
GRANT ALL ON invoking TO PUBLIC;
CREATE FUNCTION run() RETURNS void LANGUAGE sql AS 'INSERT INTO public.jobs VALUES (1)';
CREATE FUNCTION closed_run() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.jobs VALUES (2)';
ALTER FUNCTION closed_run() OWNER TO owner; REVOKE EXECUTE ON FUNCTION closed_run() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION closed_run() TO worker;
CREATE SCHEMA mine AUTHORIZATION stranger;
SET ROLE stranger;
CREATE VIEW mine.view AS SELECT * FROM public.jobs;
CREATE VIEW mine.of_view AS SELECT * FROM public.shown;
CREATE TABLE mine.ruled (id int);
CREATE RULE also AS ON INSERT TO mine.ruled DO ALSO INSERT INTO public.jobs VALUES (NEW.id);
CREATE VIEW mine.instead AS SELECT * FROM public.jobs;
CREATE FUNCTION mine.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER instead INSTEAD OF INSERT ON mine.instead FOR EACH ROW EXECUTE FUNCTION mine.nothing();
CREATE TABLE mine.jobs (id int);
RESET ROLE;
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN NULL; END';
ALTER FUNCTION audit() OWNER TO owner;
SET ROLE stranger;
CREATE VIEW mine.audited AS SELECT * FROM public.jobs;
CREATE TRIGGER instead INSTEAD OF INSERT ON mine.audited FOR EACH ROW EXECUTE FUNCTION public.audit();
RESET ROLE;
CREATE VIEW audited AS SELECT * FROM jobs; ALTER VIEW audited OWNER TO owner; GRANT INSERT ON audited TO worker;
CREATE TRIGGER instead INSTEAD OF INSERT ON audited FOR EACH ROW EXECUTE FUNCTION audit();
CREATE ROLE by_view LOGIN; GRANT SELECT, INSERT ON shown TO by_view;
CREATE FUNCTION run_by_view() RETURNS void LANGUAGE sql AS 'INSERT INTO public.shown VALUES (3)';
CREATE ROLE by_definer LOGIN;
CREATE FUNCTION inner_run() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.jobs VALUES (4)';
ALTER FUNCTION inner_run() OWNER TO owner; REVOKE EXECUTE ON FUNCTION inner_run() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION inner_run() TO by_definer;
CREATE FUNCTION outer_run() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM public.inner_run(); END';
CREATE TABLE referred (id int PRIMARY KEY, other int UNIQUE);
CREATE ROLE referrer LOGIN; CREATE SCHEMA refs AUTHORIZATION referrer; GRANT REFERENCES (id) ON referred TO referrer;
CREATE ROLE maker LOGIN; GRANT CREATE ON DATABASE postgres TO maker;
";

const POLICIES: &str = "
version: 1
resources:
  - name: jobs
    tables: [public.jobs, public.parts, public.hidden, closed.jobs, public.missing, public.referred,
             fresh.jobs2]
    functions: [public.run, public.closed_run, public.run_by_view, public.outer_run]
  - name: shard/{shard}
    tables: [{name: public.keyed, key: shard}]
";

/// Statements that the stranger may not run.
const FORBIDDEN: [&str; 31] = [
    "UPDATE jobs SET note = 'x'",
    "INSERT INTO public.jobs VALUES (1)",
    "DELETE FROM jobs",
    "TRUNCATE jobs",
    "TRUNCATE jobs CASCADE",
    "MERGE INTO jobs USING (VALUES (1)) v(i) ON id = i WHEN MATCHED THEN DELETE",
    "WITH gone AS (DELETE FROM jobs RETURNING 1) SELECT 1",
    "COPY jobs FROM STDIN",
    "LOCK TABLE jobs IN EXCLUSIVE MODE",
    "SELECT FROM jobs FOR UPDATE",
    "SELECT FROM jobs FOR KEY SHARE",
    "ALTER TABLE jobs ADD COLUMN x int",
    "DROP TABLE jobs CASCADE",
    "CREATE RULE r AS ON INSERT TO jobs DO INSTEAD NOTHING",
    "INSERT INTO parts VALUES (1)",
    "INSERT INTO part VALUES (1)",
    "INSERT INTO hidden VALUES (1)",
    "INSERT INTO closed.jobs VALUES (1)",
    "INSERT INTO keyed VALUES (1)",
    "UPDATE shown SET note = 'x'",
    "UPDATE invoking SET note = 'x'",
    "UPDATE mine.view SET note = 'x'",
    "UPDATE mine.of_view SET note = 'x'",
    "INSERT INTO mine.ruled VALUES (1)",
    "SELECT run()",
    "SELECT closed_run()",
    // Another role's trigger function, which runs as a role that may write the table.
    "INSERT INTO mine.audited VALUES (1)",
    "SELECT run_by_view()",
    "SELECT outer_run()",
    "CREATE TABLE mine.child (x int REFERENCES referred)",
    "DROP TABLE IF EXISTS fresh.jobs2",
];

fn epochs(world: &Fenced) -> String {
    world.postgres.value("SELECT count(*) FROM fencegate_state.epoch")
}

fn of(world: &Fenced, user: &str, token: i64) -> Wire {
    let mut wire = world.login_as(user);
    ok(&mut wire, &format!("SET lease.fence = {token}"));
    wire
}

#[test]
fn a_write_that_the_server_would_refuse_raises_no_fence() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut stranger = of(&world, "stranger", i64::MAX);
    for sql in FORBIDDEN {
        assert_eq!(code(&mut stranger, sql), "42501", "{sql}");
        assert_eq!(epochs(&world), "0", "{sql}");
        // In a string, with the extended protocol, and in a transaction, which fails.
        let in_string = format!("SET lease.fence = {}; {sql}", i64::MAX);
        assert_eq!(code(&mut stranger, &in_string), "42501", "{in_string}");
        let frames = stranger.exchange(&[message::unnamed(sql, &[]), message::sync()].concat());
        assert_eq!(error_in(&frames).map(|error| error.code().to_owned()), Some("42501".into()), "extended: {sql}");
        ok(&mut stranger, "BEGIN");
        assert_eq!(code(&mut stranger, sql), "42501", "in a transaction: {sql}");
        assert_eq!(code(&mut stranger, "SELECT 1"), "25P02", "{sql}");
        ok(&mut stranger, "ROLLBACK");
        assert_eq!(epochs(&world), "0", "{sql}");
    }
    // The fence is not raised: the leader, with a low token, may write.
    assert_eq!(code(&mut of(&world, "worker", 5), "INSERT INTO jobs VALUES (5)"), "");
    assert_eq!(code(&mut stranger, FORBIDDEN[0]), "42501");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "5");
}

/// A view with the stranger's own trigger, another table of the same name, temporary or not, and a missing table.
#[test]
fn a_table_with_a_similar_name_raises_no_fence() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut stranger = of(&world, "stranger", i64::MAX);
    for sql in [
        "INSERT INTO mine.instead VALUES (1)",
        "SET search_path = mine; INSERT INTO jobs VALUES (1)",
        "CREATE TEMP TABLE jobs (id int); INSERT INTO jobs VALUES (1)",
        "CREATE TEMP TABLE jobs (id int)",
        "TRUNCATE jobs CASCADE",
        "DROP TABLE jobs CASCADE",
        "INSERT INTO public.missing VALUES (1)",
        "INSERT INTO fresh.jobs2 VALUES (1)",
        "CREATE TEMP VIEW of_jobs AS SELECT * FROM public.jobs",
        "INSERT INTO of_jobs VALUES (1)",
    ] {
        code(&mut stranger, sql);
        assert_eq!(epochs(&world), "0", "{sql}");
    }
}

#[test]
fn the_current_role_counts() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let write = "INSERT INTO jobs VALUES (1)";
    for become_it in
        ["SET ROLE stranger", "SET SESSION AUTHORIZATION stranger", "SELECT set_config('role', 'stranger', false)"]
    {
        let mut session = of(&world, "postgres", 9);
        ok(&mut session, become_it);
        assert_eq!(code(&mut session, write), "42501", "{become_it}");
    }
    let mut local = of(&world, "postgres", 9);
    ok(&mut local, "BEGIN; SET LOCAL ROLE stranger");
    assert_eq!(code(&mut local, write), "42501");
    assert_eq!(epochs(&world), "0");
    // The role must first become another role.
    let mut session = of(&world, "outer_role", 5);
    assert_eq!(code(&mut session, write), "42501");
    assert_eq!(epochs(&world), "0");
    ok(&mut session, "SET ROLE worker");
    ok(&mut session, write);
    assert_eq!(code(&mut of(&world, "outer_role", 6), "SET ROLE worker; INSERT INTO jobs VALUES (2)"), "");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "6");
}

/// A positive result is valid for the first tokens of other keys, and for all sessions of the login, but not for other
/// logins.
#[test]
fn a_granted_privilege_counts_only_for_its_login() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let insert = |key: i32| format!("INSERT INTO keyed VALUES ({key})");
    ok(&mut of(&world, "postgres", 1), &insert(1));
    ok(&mut of(&world, "postgres", 1), &insert(2));
    assert_eq!(code(&mut of(&world, "stranger", 1), &insert(3)), "42501");
    assert_eq!(epochs(&world), "2", "another login has raised nothing");
    // The server refuses the write of a lesser role, which the session may leave again, whether the fence is raised or
    // not.
    let mut lesser = of(&world, "postgres", 1);
    ok(&mut lesser, "SET ROLE stranger");
    assert_eq!(code(&mut lesser, &insert(4)), "42501");
    ok(&mut lesser, "RESET ROLE");
    ok(&mut lesser, &insert(4));
    assert_eq!(world.postgres.value("SELECT string_agg(shard::text, ' ' ORDER BY shard) FROM keyed"), "1 2 4");
}

#[test]
fn a_role_with_the_privilege_raises_the_fence() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let by_worker = [
        "UPDATE jobs SET note = 'x'",
        "INSERT INTO jobs VALUES (7)",
        "SELECT FROM jobs FOR UPDATE",
        "INSERT INTO parts VALUES (1)",
        "INSERT INTO hidden VALUES (1)",
        "DELETE FROM shown",
        "UPDATE invoking SET note = 'x'",
        "SELECT run()",
        "SELECT closed_run()",
    ];
    for (token, sql) in (1..).zip(by_worker) {
        assert_eq!(code(&mut of(&world, "worker", token), sql), "", "{sql}");
        assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), token.to_string(), "{sql}");
    }
    // A grant counts once it is committed.
    let mut session = of(&world, "postgres", 100);
    ok(&mut session, "BEGIN; GRANT DELETE ON jobs TO stranger; SET LOCAL ROLE stranger");
    assert_eq!(code(&mut session, "DELETE FROM jobs"), "42501");
    ok(&mut session, "ROLLBACK; GRANT DELETE ON jobs TO stranger");
    let mut session = of(&world, "stranger", 101);
    assert_eq!(code(&mut session, "DELETE FROM jobs"), "");
    // A table that is created and filled in one transaction.
    let mut session = of(&world, "postgres", 102);
    ok(&mut session, "BEGIN; CREATE TABLE missing (id int)");
    assert_eq!(code(&mut session, "INSERT INTO missing VALUES (1)"), "");
    ok(&mut session, "COMMIT");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "102");
}

/// Each case uses a higher token than the last, with the roles that the server permits.
#[test]
fn a_role_with_an_indirect_privilege_raises_the_fence() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let cases: [(&str, &[&str]); 15] = [
        ("worker", &["INSERT INTO audited VALUES (1)"]),
        ("by_view", &["SELECT run_by_view()"]),
        ("by_definer", &["SELECT outer_run()"]),
        ("worker", &["CREATE TEMP VIEW v AS SELECT * FROM jobs", "INSERT INTO v VALUES (11)"]),
        ("worker", &["CREATE TEMP VIEW v AS SELECT * FROM shown", "INSERT INTO v VALUES (12)"]),
        (
            "worker",
            &[
                "CREATE TEMP TABLE t (id int)",
                "CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO jobs VALUES (NEW.id)",
                "INSERT INTO t VALUES (13)",
            ],
        ),
        ("referrer", &["CREATE TABLE refs.child (x int REFERENCES referred)"]),
        (
            "referrer",
            &["CREATE TABLE refs.other (x int)", "ALTER TABLE refs.other ADD FOREIGN KEY (x) REFERENCES referred"],
        ),
        ("postgres", &["DROP TABLE IF EXISTS fresh.jobs2"]),
        (
            "postgres",
            &[
                "BEGIN; CREATE SCHEMA fresh; CREATE TABLE fresh.jobs2 (id int); INSERT INTO fresh.jobs2 VALUES (1); ROLLBACK",
            ],
        ),
        (
            "maker",
            &[
                "BEGIN",
                "CREATE SCHEMA fresh",
                "CREATE TABLE fresh.jobs2 (id int)",
                "INSERT INTO fresh.jobs2 VALUES (2)",
                "ROLLBACK",
            ],
        ),
        (
            "postgres",
            &["BEGIN; SAVEPOINT s; SET LOCAL ROLE stranger", "ROLLBACK TO s; INSERT INTO jobs VALUES (14); COMMIT"],
        ),
        ("postgres", &["BEGIN; SET LOCAL ROLE stranger", "ROLLBACK; INSERT INTO jobs VALUES (15)"]),
        (
            "postgres",
            &["BEGIN; SAVEPOINT s; SET LOCAL ROLE stranger", "ROLLBACK TO s", "INSERT INTO jobs VALUES (16)", "COMMIT"],
        ),
        (
            "postgres",
            &["BEGIN; SAVEPOINT s; SET LOCAL ROLE stranger", "RELEASE s; ROLLBACK; INSERT INTO jobs VALUES (17)"],
        ),
    ];
    let mut failed = Vec::new();
    for (token, (user, statements)) in (1..).zip(cases) {
        let mut session = of(&world, user, token);
        let errors: Vec<_> = statements.iter().filter_map(|sql| error_in(&session.query(sql))).collect();
        let epoch = world.postgres.value("SELECT max(token) FROM fencegate_state.epoch");
        if !errors.is_empty() || epoch != token.to_string() {
            failed.push(format!("{user}: {statements:?}: {errors:?}, epoch {epoch}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}\n{}", world.proxy.log());
    // In a pipeline.
    let mut session = of(&world, "postgres", 50);
    ok(&mut session, "BEGIN; SAVEPOINT s; SET LOCAL ROLE stranger");
    let [back, insert] = ["ROLLBACK TO s", "INSERT INTO jobs VALUES (50)"].map(|sql| message::unnamed(sql, &[]));
    assert_eq!(code_in(&session.exchange(&[back, insert, message::sync()].concat())), "");
    // A session that rolls back to a role without the privilege.
    let mut session = of(&world, "stranger", 60);
    ok(&mut session, "BEGIN; SAVEPOINT s");
    assert_eq!(code(&mut session, "ROLLBACK TO s; INSERT INTO jobs VALUES (18)"), "42501");
    assert_eq!(world.postgres.value("SELECT max(token) FROM fencegate_state.epoch"), "50");
}

/// The server shows a role nothing about processes of other roles, not even their start.
#[test]
fn a_login_that_starts_as_another_role() {
    let world = Fenced::start(SCHEMA, POLICIES);
    world.postgres.sql("ALTER ROLE outer_role SET role = 'worker'");
    let mut by_setting = of(&world, "outer_role", 5);
    assert_eq!(value(&mut by_setting, "SELECT current_user").as_deref(), Some("worker"));
    assert_eq!(code(&mut by_setting, "INSERT INTO jobs VALUES (5)"), "");
    assert_eq!(value(&mut by_setting, "SHOW role").as_deref(), Some("worker"));
    world.postgres.sql("ALTER ROLE outer_role RESET role");
    let by_options = |user, options| {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        let frames = wire.start(&[("user", user), ("database", "postgres"), ("options", options)], "");
        assert_eq!(error_in(&frames), None, "{options}");
        wire
    };
    let mut by_option = by_options("outer_role", "-c role=worker -c lease.fence=6");
    assert_eq!(code(&mut by_option, "INSERT INTO jobs VALUES (6)"), "");
    assert_eq!(value(&mut by_option, "SHOW role").as_deref(), Some("worker"));
    // A session has only the privileges of the role that it starts as.
    let mut session = by_options("postgres", "-c role=stranger -c lease.fence=7");
    assert_eq!(code(&mut session, "INSERT INTO jobs VALUES (7)"), "42501");
    assert_eq!(world.postgres.value("SELECT token FROM fencegate_state.epoch"), "6");
}

/// The log is limited, whatever the keys are.
#[test]
fn refused_writes_to_many_keys_do_not_flood_the_log() {
    let world = Fenced::start(SCHEMA, POLICIES);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mut leader = of(&world, "postgres", 3);
            scope.spawn(move || {
                for key in 0..40 {
                    ok(&mut leader, &format!("INSERT INTO keyed VALUES ({})", thread * 40 + key));
                }
            });
        }
    });
    assert_eq!(epochs(&world), "320");
    // A window of a second may overlap two seconds of the log's limit.
    let log = world.proxy.log();
    for event in ["fence_advanced", "session_admitted"] {
        let times: Vec<f64> = log.lines().filter(|line| line.contains(event)).map(seconds).collect();
        let within = |start: &f64| times.iter().filter(|time| (0.0..0.99).contains(&(*time - start))).count();
        let most = times.iter().map(within).max().unwrap();
        assert!((1..=20).contains(&most), "{most} lines of {event} in a second");
    }
}

/// When a line of the log was written, in seconds within the hour.
fn seconds(line: &str) -> f64 {
    let time = line.split_once('T').unwrap().1;
    let mut parts = time.split([':', 'Z']).skip(1).map(|part| part.parse::<f64>().unwrap());
    parts.next().unwrap() * 60.0 + parts.next().unwrap()
}
