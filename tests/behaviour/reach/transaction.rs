//! Paths created by the open transaction or the same string: no other session sees them, and a write through one is as
//! opaque as a DO.

use crate::support::fenced::{Fenced, code, code_in, ok};
use crate::support::wire::message::{bind_text, execute, parse, sync};

const SCHEMA: &str = "
    CREATE TABLE items (id int PRIMARY KEY);
    CREATE TABLE plain (id int PRIMARY KEY);
    CREATE TABLE parent (id int);
    CREATE TABLE parts (id int) PARTITION BY RANGE (id);
    CREATE VIEW listed AS SELECT * FROM items;
    CREATE SCHEMA archive";
const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.items]\n";

/// Definitions that create a path, and a write through it.
const MADE: &[(&str, &str)] = &[
    ("CREATE VIEW v AS SELECT * FROM items", "INSERT INTO v VALUES (1)"),
    ("CREATE OR REPLACE VIEW public.v AS SELECT * FROM items", "INSERT INTO v VALUES (1)"),
    ("CREATE TEMP VIEW v AS SELECT * FROM items", "INSERT INTO pg_temp.v VALUES (1)"),
    (
        "CREATE RULE r AS ON INSERT TO plain DO INSTEAD INSERT INTO items VALUES (NEW.id)",
        "INSERT INTO plain VALUES (1)",
    ),
    ("ALTER VIEW listed RENAME TO renamed", "INSERT INTO renamed VALUES (1)"),
    ("ALTER TABLE listed RENAME TO renamed", "INSERT INTO public.renamed VALUES (1)"),
    ("ALTER VIEW listed SET SCHEMA archive", "INSERT INTO archive.listed VALUES (1)"),
    ("CREATE SCHEMA s CREATE VIEW v AS SELECT * FROM public.items", "INSERT INTO s.v VALUES (1)"),
    (
        "CREATE VIEW a AS SELECT * FROM items; ALTER VIEW a RENAME TO b; ALTER VIEW b SET SCHEMA archive",
        "INSERT INTO archive.b VALUES (1)",
    ),
];

#[test]
fn a_path_created_in_the_transaction_is_opaque() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    for (make, write) in MADE {
        let mut stranger = fenced.login();
        ok(&mut stranger, "BEGIN");
        ok(&mut stranger, make);
        let error = stranger.rows(write).expect_err(write);
        assert_eq!(
            (error.code(), error.hint()),
            ("LF004", "Commit the definitions before you write to the relations that they change."),
            "{write}"
        );
        ok(&mut stranger, "ROLLBACK");
        assert_eq!(code(&mut stranger, &format!("{make}; {write}")), "LF004", "{make}; {write}");
        assert_eq!(
            code(&mut stranger, &format!("BEGIN; SAVEPOINT s; {make}; ROLLBACK TO s; {write}")),
            "LF004",
            "{make}"
        );
        ok(&mut stranger, "ROLLBACK");
    }
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

#[test]
fn a_committed_path_is_known() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    ok(&mut stranger, "BEGIN");
    ok(&mut stranger, "CREATE VIEW v AS SELECT * FROM items; CREATE VIEW harmless AS SELECT * FROM plain");
    ok(&mut stranger, "COMMIT");
    assert_eq!(code(&mut stranger, "INSERT INTO v VALUES (1)"), "LF002");
    ok(&mut stranger, "INSERT INTO harmless VALUES (1)");
    ok(&mut fenced.holder(1), "INSERT INTO v VALUES (1)");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "1");
}

#[test]
fn pipelines_and_prepared_statements_do_not_evade_the_fence() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    let run = |sql| [parse("", sql, &[]), bind_text("", "", &[]), execute("", 0)].concat();
    let frames = stranger
        .exchange(&[run("CREATE VIEW v AS SELECT * FROM items"), run("INSERT INTO v VALUES (1)"), sync()].concat());
    assert_eq!(code_in(&frames), "LF004");
    ok(&mut stranger, "PREPARE w AS INSERT INTO plain VALUES (1)");
    ok(&mut stranger, "BEGIN");
    ok(&mut stranger, "CREATE RULE r AS ON INSERT TO plain DO INSTEAD INSERT INTO items VALUES (NEW.id)");
    assert_eq!(code(&mut stranger, "EXECUTE w"), "LF004");
    ok(&mut stranger, "ROLLBACK");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

#[test]
fn such_a_write_follows_the_rule_for_opaque_statements() {
    let fenced = Fenced::start(SCHEMA, &format!("{POLICY}opaque: require_token\n"));
    let string = "CREATE VIEW v AS SELECT * FROM items; INSERT INTO v VALUES (1)";
    assert_eq!(code(&mut fenced.login(), string), "LF002");
    let mut leader = fenced.holder(2);
    assert_eq!(code(&mut leader, string), "LF004");
    ok(&mut leader, "DELETE FROM items");
    ok(&mut leader, string);
    assert_eq!(
        code(&mut fenced.holder(1), "DROP VIEW v; CREATE VIEW v AS SELECT * FROM items; INSERT INTO v VALUES (1)"),
        "LF001"
    );
    let fenced = Fenced::start(SCHEMA, &format!("{POLICY}opaque: allow\n"));
    ok(&mut fenced.login(), string);
}

/// Frameworks create and fill tables and views in one transaction, in sessions without a token.
#[test]
fn migrations_continue() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    ok(&mut stranger, "BEGIN");
    for sql in [
        "CREATE TABLE migrations (name text)",
        "CREATE TABLE people (id int PRIMARY KEY, boss int REFERENCES people ON DELETE CASCADE)",
        "CREATE TABLE pets (owner int REFERENCES people ON DELETE CASCADE)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE VIEW people_list AS SELECT * FROM people",
        "CREATE RULE noted AS ON INSERT TO pets DO ALSO INSERT INTO migrations VALUES (NEW.owner::text)",
        "ALTER VIEW people_list OWNER TO postgres",
        "ALTER TABLE plain RENAME TO plainer",
        "ALTER TABLE people RENAME COLUMN boss TO chief",
        "INSERT INTO plainer VALUES (1)",
        "INSERT INTO people VALUES (1, 1)",
        "DELETE FROM people",
        "INSERT INTO child VALUES (1)",
        "UPDATE parent SET id = 2",
        "INSERT INTO part VALUES (1)",
        "INSERT INTO parts VALUES (2)",
        "INSERT INTO migrations VALUES ('1')",
        "INSERT INTO people_list VALUES (2, 2)",
        "INSERT INTO pets VALUES (2)",
        "DROP VIEW people_list",
        "CREATE VIEW item_list AS SELECT * FROM items",
        "COMMIT",
    ] {
        ok(&mut stranger, sql);
    }
}

/// The leader may still write to the fenced table itself. Its new path is opaque until it commits.
#[test]
fn a_leader_that_adds_a_child_goes_on() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut leader = fenced.holder(1);
    for sql in ["BEGIN", "CREATE TABLE child () INHERITS (items)", "INSERT INTO items VALUES (1)"] {
        ok(&mut leader, sql);
    }
    assert_eq!(code(&mut leader, "INSERT INTO child VALUES (2)"), "LF004");
    ok(&mut leader, "ROLLBACK");
    for sql in ["BEGIN", "ALTER TABLE items ADD COLUMN owner int REFERENCES plain ON DELETE CASCADE"] {
        ok(&mut leader, sql);
    }
    assert_eq!(code(&mut leader, "DELETE FROM plain"), "LF004");
}
