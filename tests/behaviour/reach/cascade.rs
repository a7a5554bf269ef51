//! CASCADE in DROP TABLE, ALTER TABLE and TRUNCATE counts as changing the fenced tables that depend on the relation.

use crate::support::Wire;
use crate::support::fenced::{Fenced, code, ok};

const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.jobs, public.items]\n";

#[test]
fn cascade_counts_as_changing_the_fenced_tables_that_depend_on_the_relation() {
    let schema = "
        CREATE TABLE owner (id int PRIMARY KEY, name text);
        CREATE TABLE kind (id int);
        CREATE TABLE allowed (id int);
        CREATE TABLE plain (id int PRIMARY KEY, name text, owner int REFERENCES owner);
        CREATE TABLE jobs (id int PRIMARY KEY, owner int REFERENCES owner, kind kind);
        CREATE TABLE items (id int REFERENCES jobs);
        CREATE POLICY visible ON items USING (id IN (SELECT id FROM allowed));
        CREATE TABLE logs (job int REFERENCES jobs, note text)";
    let fenced = Fenced::start(schema, POLICY);
    let mut stranger = fenced.login();
    for refused in [
        "DROP TABLE owner CASCADE",
        "DROP TABLE IF EXISTS plain, public.kind CASCADE",
        "DROP TABLE allowed CASCADE",
        "ALTER TABLE owner DROP CONSTRAINT owner_pkey CASCADE",
        "ALTER TABLE plain DROP COLUMN name CASCADE; DROP TABLE owner CASCADE",
        "DROP TABLE jobs CASCADE",
        "TRUNCATE plain, owner CASCADE",
    ] {
        assert_eq!(code(&mut stranger, refused), "LF002", "{refused}");
    }
    for opaque in ["DROP SCHEMA public CASCADE", "DROP TYPE kind CASCADE"] {
        assert_eq!(code(&mut stranger, opaque), "LF004", "{opaque}");
    }
    for passes in [
        "ALTER TABLE plain DROP COLUMN name CASCADE",
        "ALTER TABLE logs DROP COLUMN note CASCADE",
        "TRUNCATE plain, logs CASCADE",
    ] {
        ok(&mut stranger, passes);
    }
    for passes in ["DROP TABLE plain CASCADE", "DROP TABLE logs CASCADE"] {
        ok(&mut stranger, passes);
    }
    let mut leader = fenced.holder(2);
    ok(&mut leader, "DROP TABLE owner CASCADE");
    ok(&mut fenced.holder(3), "INSERT INTO jobs VALUES (1)");
    assert_eq!(code(&mut leader, "DROP TABLE kind CASCADE"), "LF001");
    // A dependency that was just created counts.
    ok(&mut stranger, "CREATE TABLE late (id int PRIMARY KEY)");
    ok(&mut fenced.holder(3), "ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES late");
    assert_eq!(code(&mut stranger, "DROP TABLE late CASCADE"), "LF002");
}

/// The error is retryable, because the dependents of a valid statement cannot be determined now.
#[test]
fn dependents_that_cannot_be_determined() {
    let fenced = Fenced::start("CREATE TABLE jobs (id int); CREATE TABLE plain (id int)", POLICY);
    let mut stranger = fenced.login();
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    let mut lock = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    ok(&mut lock, "BEGIN; LOCK TABLE pg_depend IN ACCESS EXCLUSIVE MODE");
    assert_eq!(code(&mut stranger, "DROP TABLE plain CASCADE"), "LF006");
    ok(&mut lock, "ROLLBACK");
    ok(&mut stranger, "DROP TABLE plain CASCADE");
}
