//! Relations that call a function in a policy: each needs the resource's token, a stale one is refused, and the
//! function is really called.

use crate::support::Wire;
use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::wait_until;
use crate::support::{DEADLINE, message};

const SCHEMA: &str = "
    CREATE SEQUENCE calls; CREATE TABLE ticks (id int);
    CREATE FUNCTION run(n int DEFAULT 1) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('calls'); RETURN n; END $$;
    CREATE FUNCTION claimed(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('calls'); RETURN n; END $$;
    CREATE FUNCTION add(a int, b int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('calls'); RETURN a + b; END $$;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('calls'); RETURN NULL; END $$;
    CREATE VIEW runs AS SELECT run(g) AS n FROM generate_series(1, 2) g;
    CREATE VIEW over_runs AS SELECT n + 1 AS n FROM runs;
    CREATE MATERIALIZED VIEW kept AS SELECT run() AS n WITH NO DATA;
    CREATE MATERIALIZED VIEW kept_view AS SELECT n FROM over_runs WITH NO DATA;
    CREATE TABLE plain (id int); CREATE TABLE other (id int);
    CREATE TABLE defaulted (id int, n int DEFAULT run()); INSERT INTO defaulted VALUES (1, 1);
    CREATE VIEW defaulted_view AS SELECT * FROM defaulted;
    CREATE VIEW readable AS SELECT id FROM plain WHERE id < run(1000);
    CREATE TABLE checked (id int CHECK (run(id) > 0));
    CREATE TABLE parts (id int, CHECK (run(id) > 0)) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parts DEFAULT;
    CREATE TABLE owner (id int PRIMARY KEY); INSERT INTO owner VALUES (1);
    CREATE TABLE owned (owner int REFERENCES owner ON UPDATE CASCADE);
    INSERT INTO owned VALUES (1); ALTER TABLE owned ADD CHECK (run(owner) > 0);
    CREATE DOMAIN ran AS int CHECK (run(VALUE) > 0); CREATE TABLE typed (id ran);
    CREATE TABLE many_typed (id ran[]); CREATE TYPE pair AS (a ran, b int); CREATE TABLE paired (p pair);
    CREATE DOMAIN given AS int DEFAULT run(); CREATE TABLE gives (id given, n int);
    CREATE TABLE made (id int, n int GENERATED ALWAYS AS (claimed(id)) STORED);
    CREATE TABLE indexed (id int); CREATE INDEX ON indexed (claimed(id));
    CREATE TABLE partly (id int); CREATE INDEX ON partly (id) WHERE claimed(id) > 0;
    CREATE TABLE ruled (id int); CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT run(NEW.id);
    CREATE TABLE watched (id int); INSERT INTO watched VALUES (1);
    CREATE TRIGGER t AFTER INSERT OR TRUNCATE ON watched FOR EACH STATEMENT EXECUTE FUNCTION note();
    CREATE FUNCTION outer_one() RETURNS int BEGIN ATOMIC SELECT run(); END;
    CREATE FUNCTION outer_two(n int DEFAULT outer_one()) RETURNS int LANGUAGE sql AS 'SELECT n';
    CREATE FUNCTION reader() RETURNS int BEGIN ATOMIC SELECT max(n) FROM over_runs; END; CREATE VIEW read AS SELECT reader() AS n;
    CREATE AGGREGATE total (int) (SFUNC = add, STYPE = int, INITCOND = 0);
    CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = add);
    CREATE VIEW summed AS SELECT total(g) FROM generate_series(1, 2) g;
    CREATE VIEW operated AS SELECT g <+> 1 AS n FROM generate_series(1, 2) g;
    CREATE TYPE wrapped AS (n int); CREATE FUNCTION wrap(n int) RETURNS wrapped LANGUAGE plpgsql AS
      $$ BEGIN PERFORM nextval('calls'); RETURN ROW(n); END $$;
    CREATE CAST (int AS wrapped) WITH FUNCTION wrap(int); CREATE VIEW cast_one AS SELECT g::wrapped FROM generate_series(1, 2) g;
    CREATE TABLE secured (id int); INSERT INTO secured VALUES (1); ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON secured USING (run(id) > 0);
    CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app;
    GRANT ALL ON SCHEMA public TO app";
const POLICY: &str = "version: 1
resources:
  - name: runner
    tables: [public.ticks]
    functions: [public.run, public.claimed, public.add, public.note, public.wrap]
";

/// None of these statements names a function of the policy.
const CALLS: &[&str] = &[
    "SELECT * FROM runs",
    "TABLE public.runs",
    "SELECT count(n) FROM over_runs",
    "SELECT 1 FROM plain RIGHT JOIN runs ON true",
    "SELECT (SELECT max(n) FROM runs)",
    "WITH w AS MATERIALIZED (SELECT * FROM runs) SELECT * FROM w",
    "INSERT INTO other SELECT n FROM runs",
    "UPDATE defaulted SET id = runs.n FROM runs",
    "DELETE FROM watched USING runs WHERE id = n",
    "MERGE INTO other USING runs ON id = n WHEN NOT MATCHED THEN INSERT VALUES (n)",
    "COPY (SELECT * FROM runs) TO STDOUT",
    "CREATE TABLE copied AS TABLE over_runs",
    "EXPLAIN ANALYZE SELECT * FROM runs",
    "PREPARE q AS SELECT * FROM runs; EXECUTE q",
    "DECLARE c CURSOR FOR SELECT * FROM runs; FETCH ALL FROM c",
    "REFRESH MATERIALIZED VIEW kept",
    "REFRESH MATERIALIZED VIEW kept_view",
    "INSERT INTO defaulted (id) VALUES (1)",
    "INSERT INTO defaulted_view (id) VALUES (1)",
    "UPDATE defaulted SET n = DEFAULT",
    "INSERT INTO checked VALUES (1)",
    "INSERT INTO parts VALUES (1)",
    "INSERT INTO part VALUES (1)",
    "UPDATE owner SET id = 2",
    "INSERT INTO typed VALUES (1)",
    "INSERT INTO many_typed VALUES ('{1}')",
    "INSERT INTO paired VALUES (ROW(1, 1))",
    "INSERT INTO gives (n) VALUES (1)",
    "INSERT INTO made VALUES (1)",
    "INSERT INTO indexed VALUES (1)",
    "INSERT INTO partly VALUES (1)",
    "INSERT INTO ruled VALUES (1)",
    "INSERT INTO watched VALUES (1)",
    "TRUNCATE watched",
    "SELECT outer_one()",
    "SELECT outer_two()",
    "SELECT reader()",
    "SELECT * FROM read",
    "SELECT total(g) FROM generate_series(1, 2) g",
    "SELECT * FROM summed",
    "SELECT * FROM operated",
    "SELECT * FROM cast_one",
    "SELECT * FROM secured",
    "UPDATE secured SET id = 2",
    "COPY secured TO STDOUT",
];

fn holder(fenced: &Fenced, token: i64) -> Wire {
    let mut wire = fenced.login_as("app");
    ok(&mut wire, &format!("SET lease.fence = {token}"));
    wire
}

fn calls(fenced: &Fenced) -> String {
    fenced.postgres.value("SELECT last_value::text || is_called::text FROM calls")
}

#[test]
fn every_call_needs_the_token_and_reaches_the_function() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for view in ["kept", "kept_view"] {
        fenced.postgres.sql(&format!("ALTER MATERIALIZED VIEW {view} OWNER TO app"));
    }
    let mut leader = holder(&fenced, 2);
    ok(&mut leader, "INSERT INTO ticks VALUES (1)");
    for sql in CALLS {
        let before = calls(&fenced);
        assert_eq!(code(&mut fenced.login_as("app"), sql), "LF002", "{sql}");
        assert_eq!(code(&mut holder(&fenced, 1), sql), "LF001", "{sql}");
        assert_eq!(calls(&fenced), before, "{sql}");
        for statement in ["BEGIN"].into_iter().chain(sql.split("; ")) {
            assert_eq!(code(&mut leader, statement), "", "{sql}");
        }
        assert_ne!(calls(&fenced), before, "{sql}");
        ok(&mut leader, "ROLLBACK; DEALLOCATE ALL");
    }
}

/// The proxy cannot find relations in a text that is too long for the parsers.
#[test]
fn a_long_text_may_read_any_relation() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let long = format!("SELECT {}1 FROM runs", "1 + ".repeat(20_000));
    assert_eq!(code(&mut fenced.login_as("app"), &long), "LF002");
}

#[test]
fn a_statement_without_calls_needs_no_token() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login_as("app");
    for sql in [
        "SELECT * FROM defaulted",
        "SELECT * FROM defaulted_view",
        "DELETE FROM defaulted",
        "SELECT * FROM checked",
        "SELECT * FROM watched",
        "UPDATE watched SET id = 2",
        "DELETE FROM watched",
        "INSERT INTO plain VALUES (1)",
        "WITH runs AS (SELECT 1) SELECT * FROM runs",
        "SELECT outer_two(1)",
    ] {
        let result = code(&mut stranger, sql);
        // The proxy knows functions only by name, so this may be the call without an argument.
        assert_eq!(result, if sql.contains("outer_two") { "LF002" } else { "" }, "{sql}");
    }
}

/// The proxy knows the definition as soon as the author's statement returns, and in the extended protocol too.
#[test]
fn a_new_view_counts() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut stranger) = (fenced.login(), fenced.login_as("app"));
    ok(&mut stranger, "SELECT 1");
    for (number, define) in [
        "CREATE VIEW {} AS SELECT run()",
        "CREATE VIEW {} AS SELECT * FROM over_runs",
        "CREATE VIEW {} AS SELECT outer_one()",
        "CREATE TABLE {} (id int); ALTER TABLE {} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {} USING (run() > 0)",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("new_{number}");
        ok(&mut author, &format!("{}; GRANT ALL ON {name} TO app", define.replace("{}", &name)));
        assert_eq!(code(&mut stranger, &format!("SELECT * FROM {name}")), "LF002", "{define}");
        let read = format!("SELECT 1 FROM {name}");
        let frames = stranger.exchange(
            &[
                message::parse("", &read, &[]),
                message::bind_text("", "", &[]),
                message::execute("", 0),
                message::sync(),
            ]
            .concat(),
        );
        assert_eq!(crate::support::fenced::code_in(&frames), "LF002", "{define}");
    }
    ok(&mut author, "CREATE TEMP VIEW mine AS SELECT run()");
    assert_eq!(code(&mut author, "SELECT * FROM mine"), "LF002");
    ok(&mut author, "DROP VIEW mine; CREATE TEMP TABLE mine (id int)");
    wait_until("it is not a view", DEADLINE, || code(&mut author, "SELECT * FROM mine").is_empty());
    assert_eq!(value(&mut author, "SELECT count(*) FROM mine").as_deref(), Some("0"));
}

/// The session does not wait for a reading after its definition.
#[test]
fn a_new_function_counts() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut author = fenced.login();
    let calls_before = calls(&fenced);
    let texts = ["SELECT {}()", "VALUES ({}())", "SELECT 1 FROM {}()", "EXPLAIN ANALYZE SELECT {}()", "SELECT {}()"];
    for (number, sql) in texts.into_iter().enumerate() {
        let name = format!("newest_{number}");
        ok(&mut author, &format!("CREATE FUNCTION {name}() RETURNS int BEGIN ATOMIC SELECT run(); END"));
        assert_eq!(code(&mut author, &sql.replace("{}", &name)), "LF002", "{sql}");
    }
    // A name that PostgreSQL's functions have, and a function of the session.
    for (name, sql) in
        [("floor(a text, b text)", "SELECT floor('a', 'b')"), ("pg_temp.mine()", "SELECT pg_temp.mine()")]
    {
        ok(&mut author, &format!("CREATE FUNCTION {name} RETURNS int BEGIN ATOMIC SELECT run(); END"));
        assert_eq!(code(&mut author, sql), "LF002", "{sql}");
    }
    assert_eq!(calls(&fenced), calls_before);
}

/// A pattern includes functions that did not exist when the catalog was last read.
#[test]
fn a_pattern_includes_functions_created_later() {
    let policy =
        "version: 1\nresources:\n  - {name: runner, tables: [public.ticks], functions: [public.ru*, public.late_*]}\n";
    let fenced = Fenced::start(SCHEMA, policy);
    let (mut author, mut stranger) = (fenced.login(), fenced.login_as("app"));
    for sql in ["SELECT run()", "SELECT * FROM runs", "INSERT INTO checked VALUES (1)", "SELECT outer_one()"] {
        assert_eq!(code(&mut stranger, sql), "LF002", "{sql}");
    }
    assert_eq!(code(&mut stranger, "SELECT claimed(1)"), "");
    let body = "RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('calls') $$";
    ok(
        &mut author,
        &format!(
            "BEGIN; CREATE FUNCTION late_one() {body}; CREATE SCHEMA other; CREATE FUNCTION other.late_one() {body}"
        ),
    );
    ok(&mut author, "SAVEPOINT s");
    for sql in ["SELECT late_one()", "SELECT public.late_one()"] {
        assert_eq!(code(&mut author, sql), "LF002", "{sql}");
        ok(&mut author, "ROLLBACK TO s");
    }
    ok(&mut author, "COMMIT; GRANT USAGE ON SCHEMA other TO app");
    ok(
        &mut author,
        &format!(
            "CREATE FUNCTION late_two() {body}; CREATE VIEW late_view AS SELECT late_two(); GRANT ALL ON late_view TO app"
        ),
    );
    for sql in [
        "SELECT late_one()",
        "SELECT \"late_one\"()",
        "SELECT public.late_two()",
        "SELECT * FROM late_view",
        "SELECT late_three()",
    ] {
        let before = calls(&fenced);
        assert_eq!(code(&mut stranger, sql), "LF002", "{sql}");
        assert_eq!(calls(&fenced), before, "{sql}");
    }
    assert_eq!(code(&mut stranger, "SELECT other.late_one()"), "");
    // A role that may not call the function raises no token.
    ok(&mut author, "REVOKE EXECUTE ON FUNCTION late_two FROM PUBLIC");
    assert_eq!(code(&mut holder(&fenced, 7), "SELECT late_two()"), "42501");
    ok(&mut holder(&fenced, 7), "SELECT late_one()");
    assert_eq!(code(&mut holder(&fenced, 6), "SELECT late_one()"), "LF001");
}
