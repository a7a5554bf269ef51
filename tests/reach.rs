//! Relations that are not fenced but may reach a fenced table when they are written to: the proxy
//! does not know what such a write does, and refuses it.

mod support;

use support::wire::error_in;
use support::{Options, Postgres, Proxy, Wire};

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

fn code(wire: &mut Wire, sql: &str) -> Option<String> {
    error_in(&wire.query(sql)).map(|error| error.code().to_owned())
}

#[test]
fn writes_that_may_reach_a_fenced_table_are_refused() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    let proxy = proxied(&postgres);
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    assert_eq!(code(&mut wire, "SET lease.fence = 1"), None);
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
        assert_eq!(code(&mut wire, refused).as_deref(), Some("LF004"), "{refused}");
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
        assert_eq!(code(&mut wire, passes), None, "{passes}");
    }
}

#[test]
fn what_is_created_through_the_proxy_counts_from_then_on() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(SCHEMA);
    let proxy = proxied(&postgres);
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    assert_eq!(code(&mut wire, "CREATE VIEW later AS SELECT * FROM items"), None);
    assert_eq!(code(&mut wire, "INSERT INTO later VALUES (1)").as_deref(), Some("LF004"));
    let mut next = Wire::login(&proxy.address(), "postgres", "postgres");
    assert_eq!(code(&mut next, "INSERT INTO later VALUES (1)").as_deref(), Some("LF004"));
    assert_eq!(postgres.value("SELECT count(*) FROM items"), "0");
}

fn proxied(postgres: &Postgres) -> Proxy {
    support::programs::run(std::process::Command::new(support::proxy::BINARY).args([
        "init",
        "--control",
        &format!("{}postgres", postgres.control_url()),
    ]));
    Proxy::start(postgres, POLICY, &[])
}
