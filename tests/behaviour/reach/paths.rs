//! Each kind of path and operation: it needs the resource's token, a stale one is refused, and the fenced table really
//! changes.

use super::{POLICY, SCHEMA};
use crate::support::Wire;
use crate::support::fenced::{Fenced, code, ok, value};

/// Content of the fenced tables as one text.
const STATE: &str = "SELECT concat((SELECT array_agg(j ORDER BY j) FROM jobs j), (SELECT array_agg(t ORDER BY t) FROM low_ticks t), \
    (SELECT array_agg(i ORDER BY i) FROM items i))";

/// Indirect writes. Each changes rows of a table of the resource.
const WAYS: &[(&str, &str)] = &[
    // Partitions and their partitions.
    ("jobs", "INSERT INTO jobs_low VALUES (2, 1, 1)"),
    ("jobs", "INSERT INTO jobs_lowest VALUES (3, 1, 1)"),
    ("jobs", "UPDATE jobs_low SET id = 4 WHERE id = 1"),
    ("jobs", "DELETE FROM public.jobs_lowest"),
    ("jobs", "TRUNCATE jobs_low"),
    ("jobs", "DROP TABLE jobs_low CASCADE"),
    ("jobs", "MERGE INTO jobs_low j USING (VALUES (9)) v(id) ON false WHEN NOT MATCHED THEN INSERT VALUES (9, 1, 1)"),
    ("jobs", "INSERT INTO jobs_low VALUES (5, 1, 1) RETURNING id"),
    ("jobs", "WITH moved AS (DELETE FROM jobs_low RETURNING id) INSERT INTO plain SELECT id FROM moved"),
    ("jobs", "COPY (SELECT 1) TO STDOUT; UPDATE jobs_lowest SET owner = 2"),
    // The parent of a fenced partition.
    ("low", "INSERT INTO ticks VALUES (2)"),
    ("low", "UPDATE ticks SET id = id + 1"),
    ("low", "UPDATE ticks SET id = 3 WHERE id = 101"),
    ("low", "DELETE FROM ticks"),
    ("low", "TRUNCATE ticks"),
    // Inheritance in both directions.
    ("items", "UPDATE things SET note = 'changed'"),
    ("items", "DELETE FROM things"),
    ("items", "TRUNCATE things"),
    ("items", "ALTER TABLE things DROP COLUMN note"),
    ("items", "INSERT INTO special_items VALUES (7)"),
    // Views, including nested views and views of a partition.
    ("jobs", "INSERT INTO open_jobs VALUES (6, 1)"),
    ("jobs", "UPDATE my_jobs SET id = 8 WHERE id = 1"),
    ("jobs", "DELETE FROM my_jobs"),
    ("jobs", "INSERT INTO lowest VALUES (11)"),
    // Rules, including a view on a relation with a rule.
    ("items", "INSERT INTO inbox VALUES (12)"),
    ("items", "INSERT INTO outbox VALUES (13)"),
    // Foreign keys.
    ("jobs", "DELETE FROM owner WHERE id = 1"),
    ("jobs", "DELETE FROM region WHERE id = 2"),
    ("jobs", "UPDATE region SET id = 3 WHERE id = 2"),
    ("jobs", "TRUNCATE owner CASCADE"),
];

#[test]
fn every_path_needs_the_token_and_reaches_the_table() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for (resource, sql) in WAYS {
        let mut stranger = fenced.login();
        assert_eq!(code(&mut stranger, sql), "LF002", "{sql}");
        assert_eq!(code(&mut holder(&fenced, "other=1"), sql), "LF002", "{sql}");
        let mut leader = holder(&fenced, &format!("{resource}=2"));
        let before = value(&mut leader, STATE);
        for statement in ["BEGIN", sql] {
            ok(&mut leader, statement);
        }
        if sql.starts_with("ALTER") {
            ok(&mut leader, "ALTER TABLE things ADD COLUMN note text");
        }
        assert_ne!(value(&mut leader, STATE), before, "{sql}");
        ok(&mut leader, "ROLLBACK");
        assert_eq!(code(&mut holder(&fenced, &format!("{resource}=1")), sql), "LF001", "{sql}");
    }
}

#[test]
fn copy_is_an_insert() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for table in ["jobs_low", "ticks", "open_jobs (id)", "inbox"] {
        // COPY into a table with a rule is allowed and does not run the rule. It counts nevertheless.
        assert_eq!(code(&mut fenced.login(), &format!("COPY {table} FROM STDIN")), "LF002", "{table}");
    }
}

#[test]
fn a_write_that_reaches_no_fenced_table_needs_no_token() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    let before = value(&mut stranger, STATE);
    for free in [
        "SELECT * FROM jobs_low, my_jobs, owner LIMIT 1",
        "SELECT * FROM owner FOR UPDATE",
        "SELECT * FROM jobs_low FOR UPDATE",
        "INSERT INTO plain VALUES (1)",
        "INSERT INTO owner VALUES (3, 'c')",
        "UPDATE owner SET name = 'd'",
        "DELETE FROM inbox",
        "UPDATE inbox SET id = 1",
        "INSERT INTO high_ticks VALUES (102)",
        "DELETE FROM high_ticks",
        "INSERT INTO things VALUES (20, 'a thing')",
        "INSERT INTO other_things VALUES (21)",
        "UPDATE other_things SET note = 'n'",
        "INSERT INTO log VALUES (1, 'me')",
        "ALTER TABLE owner ADD COLUMN more int",
        "REFRESH MATERIALIZED VIEW counts",
        "DROP VIEW my_jobs",
        "DROP MATERIALIZED VIEW counts",
        "TRUNCATE plain CASCADE",
    ] {
        ok(&mut stranger, free);
    }
    // The server refuses this itself, because the view is not updatable.
    assert_eq!(code(&mut stranger, "DELETE FROM counted"), "55000");
    assert_eq!(value(&mut stranger, STATE), before);
}

#[test]
fn an_instead_of_trigger_makes_a_view_a_path() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    fenced.postgres.sql(
        "CREATE FUNCTION add() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO jobs VALUES (70, 1, 1); RETURN NULL; END';
         CREATE TRIGGER add INSTEAD OF DELETE ON counted FOR EACH ROW EXECUTE FUNCTION add()",
    );
    assert_eq!(code(&mut fenced.login(), "DELETE FROM counted"), "LF002");
    ok(&mut holder(&fenced, "jobs=1"), "DELETE FROM counted");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM jobs"), "3");
}

/// Operations that a policy does not fence are unfenced on every path, and no others are.
#[test]
fn only_the_fenced_operations_count() {
    let policy = "version: 1\nresources:\n  - name: jobs\n    tables: [{name: public.jobs, operations: [update]}]\n  \
                  - name: low\n    tables: [{name: public.low_ticks, operations: [insert]}]\n";
    let fenced = Fenced::start(SCHEMA, policy);
    let mut stranger = fenced.login();
    for counts in [
        "UPDATE jobs_low SET id = 2",
        "UPDATE my_jobs SET id = 2",
        // SET DEFAULT updates the rows that refer to the deleted row.
        "DELETE FROM region",
        // The update may move a row into the partition.
        "UPDATE ticks SET id = 2",
    ] {
        assert_eq!(code(&mut stranger, counts), "LF002", "{counts}");
    }
    for free in
        ["INSERT INTO jobs_low VALUES (2, 1, 1)", "DELETE FROM my_jobs", "DELETE FROM owner", "DELETE FROM ticks"]
    {
        ok(&mut stranger, free);
    }
}

#[test]
fn a_fenced_table_that_reaches_another_resources_needs_both_tokens() {
    let schema = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (a int REFERENCES a ON DELETE CASCADE);
                  INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)";
    let policy = "version: 1\nresources:\n  - {name: a, tables: [public.a]}\n  - {name: b, tables: [public.b]}\n";
    let fenced = Fenced::start(schema, policy);
    let mut leader = holder(&fenced, "a=1");
    ok(&mut leader, "INSERT INTO a VALUES (2)");
    assert_eq!(code(&mut leader, "DELETE FROM a"), "LF002");
    ok(&mut leader, "SET lease.fence = 'a=1, b=1'");
    ok(&mut leader, "DELETE FROM a");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM b"), "0");
}

/// A deposed leader in the middle of a write through a view is drained like any other.
#[test]
fn writes_by_another_name_are_drained() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for sql in [
        "UPDATE my_jobs SET id = 8 WHERE id = 1",
        "DELETE FROM owner WHERE id = 1",
        "INSERT INTO jobs_low VALUES (5, 1, 1)",
    ] {
        let next = fenced
            .postgres
            .value("SELECT coalesce(max(token), 0) + 1 FROM fencegate_state.epoch WHERE resource = 'jobs'");
        let next: i64 = next.parse().unwrap();
        let mut old = holder(&fenced, &format!("jobs={next}"));
        ok(&mut old, "BEGIN");
        ok(&mut old, sql);
        ok(&mut holder(&fenced, &format!("jobs={}", next + 1)), "INSERT INTO jobs VALUES (90, 2, 1)");
        assert_eq!(code(&mut old, "COMMIT"), "LF001", "{sql}");
    }
}

fn holder(fenced: &Fenced, token: &str) -> Wire {
    let mut wire = fenced.login();
    ok(&mut wire, &format!("SET lease.fence = '{token}'"));
    wire
}
