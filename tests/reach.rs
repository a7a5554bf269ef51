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
