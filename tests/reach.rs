//! Relations that are not fenced but may reach a fenced table when they are written to: the proxy
//! does not know what such a write does, and refuses it.

mod support;

use support::fenced::{Fenced, code, ok};

const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.jobs, public.items]\n";

const SCHEMA: &str = "
    CREATE TABLE owner (id int PRIMARY KEY);
    CREATE TABLE plain (id int);
    CREATE TABLE jobs (id int, owner int REFERENCES owner ON DELETE CASCADE) PARTITION BY RANGE (id);
    CREATE TABLE jobs_low PARTITION OF jobs FOR VALUES FROM (0) TO (100);
    CREATE TABLE items (id int);
    CREATE VIEW open_items AS SELECT * FROM items;
    CREATE VIEW nested AS SELECT * FROM open_items;
    CREATE TABLE inbox (id int);
    CREATE RULE deliver AS ON INSERT TO inbox DO ALSO INSERT INTO items VALUES (NEW.id);
    CREATE MATERIALIZED VIEW counts AS SELECT count(*) FROM items;
    INSERT INTO owner VALUES (1);
    INSERT INTO jobs VALUES (1, 1);";

#[test]
fn writes_that_may_reach_a_fenced_table_are_refused() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut leader = fenced.holder(1);
    for refused in [
        "INSERT INTO jobs_low VALUES (2, 1)",
        "TRUNCATE public.jobs_low",
        "DROP TABLE jobs_low",
        "DELETE FROM owner",
        "INSERT INTO open_items VALUES (1)",
        "UPDATE nested SET id = 2",
        "COPY inbox FROM STDIN",
        "INSERT INTO inbox VALUES (1)",
    ] {
        assert_eq!(code(&mut leader, refused), "LF004", "{refused}");
    }
    for passes in [
        "SELECT * FROM jobs_low, nested",
        "SELECT * FROM owner FOR UPDATE",
        "INSERT INTO plain VALUES (1)",
        "INSERT INTO jobs VALUES (3, 1)",
        "INSERT INTO items VALUES (1)",
        "REFRESH MATERIALIZED VIEW counts",
        "DROP VIEW nested",
    ] {
        ok(&mut leader, passes);
    }
}

#[test]
fn what_is_created_through_the_proxy_counts_from_then_on() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut leader = fenced.holder(1);
    ok(&mut leader, "CREATE VIEW later AS SELECT * FROM items");
    assert_eq!(code(&mut leader, "INSERT INTO later VALUES (1)"), "LF004");
    assert_eq!(code(&mut fenced.holder(1), "INSERT INTO later VALUES (1)"), "LF004");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

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
    ] {
        assert_eq!(code(&mut stranger, refused), "LF002", "{refused}");
    }
    for opaque in ["TRUNCATE plain CASCADE", "DROP SCHEMA public CASCADE", "DROP TYPE kind CASCADE"] {
        assert_eq!(code(&mut stranger, opaque), "LF004", "{opaque}");
    }
    for passes in ["ALTER TABLE plain DROP COLUMN name CASCADE", "ALTER TABLE logs DROP COLUMN note CASCADE"] {
        ok(&mut stranger, passes);
    }
    for passes in ["DROP TABLE plain CASCADE", "DROP TABLE logs CASCADE"] {
        ok(&mut stranger, passes);
    }
    let mut leader = fenced.holder(2);
    ok(&mut leader, "DROP TABLE owner CASCADE");
    ok(&mut fenced.holder(3), "INSERT INTO jobs VALUES (1)");
    assert_eq!(code(&mut leader, "DROP TABLE kind CASCADE"), "LF001");
    // What depends on it since a moment ago counts.
    ok(&mut stranger, "CREATE TABLE late (id int PRIMARY KEY)");
    ok(&mut fenced.holder(3), "ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES late");
    assert_eq!(code(&mut stranger, "DROP TABLE late CASCADE"), "LF002");
}
