//! A session's temporary relations affect only that session: they lead no other session to a fenced table and do not
//! exhaust shared limits.

use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::{DEADLINE, Wire, wait_until};

const SCHEMA: &str = "
    CREATE TABLE items (id int); CREATE TABLE plain (id int); CREATE VIEW listed AS SELECT * FROM items;
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON SCHEMA public TO app";
const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.items]\n";

#[test]
fn temporary_relations_of_another_session_do_not_count() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut stranger, mut other) = (fenced.login_as("app"), fenced.login_as("app"));
    ok(&mut stranger, "CREATE TEMP VIEW plain AS SELECT * FROM items; CREATE TEMP VIEW again AS SELECT * FROM plain");
    for sql in ["INSERT INTO plain VALUES (1)", "INSERT INTO pg_temp.plain VALUES (1)", "INSERT INTO again VALUES (1)"]
    {
        assert_eq!(code(&mut stranger, sql), "LF002", "{sql}");
    }
    ok(&mut other, "INSERT INTO plain VALUES (1)");
    assert_eq!(code(&mut other, "INSERT INTO again VALUES (1)"), "42P01");
    assert_eq!(code(&mut other, "INSERT INTO pg_temp.plain VALUES (1)"), "42P01");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

/// A rule of a permanent relation may name a temporary one. Superusers may write through those of other sessions.
#[test]
fn a_temporary_relation_of_another_session_that_can_be_reached_counts() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut author, mut other) = (fenced.login_as("app"), fenced.login_as("app"));
    ok(&mut author, "CREATE TEMP VIEW inner_view AS SELECT * FROM items");
    ok(&mut author, "CREATE TEMP VIEW mine AS SELECT * FROM inner_view");
    let schema = value(&mut author, "SELECT pg_my_temp_schema()::regnamespace").unwrap();
    let sql = format!("INSERT INTO {schema}.mine VALUES (1)");
    let mut superuser = fenced.login();
    assert_eq!(code(&mut superuser, &sql), "LF004");
    ok(&mut other, "INSERT INTO plain VALUES (1)");
    ok(&mut author, "CREATE TABLE ruled (id int); CREATE VIEW over_ruled AS SELECT * FROM ruled");
    ok(&mut author, "CREATE RULE r AS ON INSERT TO ruled DO ALSO INSERT INTO pg_temp.mine VALUES (NEW.id)");
    for sql in ["INSERT INTO ruled VALUES (1)", "INSERT INTO over_ruled VALUES (1)"] {
        assert_eq!(code(&mut other, sql), "LF002", "{sql}");
    }
    ok(&mut author, "DROP TABLE ruled CASCADE");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

/// The proxy does not see how such a path is created: by a function, or by redefining a view later.
#[test]
fn a_temporary_relation_that_becomes_a_path_is_known_in_its_session() {
    let schema = "CREATE VIEW shown AS SELECT * FROM plain; GRANT ALL ON shown TO app;
        CREATE FUNCTION make() RETURNS void LANGUAGE sql AS 'CREATE TEMP VIEW made AS SELECT * FROM items'";
    let fenced = Fenced::start(&format!("{SCHEMA}; {schema}"), POLICY);
    let (mut stranger, mut author) = (fenced.login_as("app"), fenced.login());
    ok(&mut stranger, "CREATE TEMP VIEW mine AS SELECT * FROM shown; INSERT INTO mine VALUES (1)");
    ok(&mut author, "CREATE OR REPLACE VIEW shown AS SELECT * FROM items");
    assert_eq!(code(&mut stranger, "INSERT INTO mine VALUES (1)"), "LF002");
    ok(&mut stranger, "SELECT make()");
    ok(&mut author, "NOTIFY fencegate, '{catalogue}'");
    let mut direct = Wire::login(&fenced.postgres.address(), "postgres", "postgres");
    ok(&mut direct, "NOTIFY fencegate, '{catalogue}'");
    wait_until("it is known", DEADLINE, || {
        let code = code(&mut stranger, "BEGIN; INSERT INTO made VALUES (1)");
        ok(&mut stranger, "ROLLBACK");
        code == "LF002"
    });
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

/// Each view refers to many earlier views.
#[test]
fn many_temporary_relations_do_not_exhaust_the_limits_of_others() {
    const VIEWS: usize = 300;
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut stranger, mut other) = (fenced.login_as("app"), fenced.login_as("app"));
    ok(&mut stranger, "CREATE TEMP VIEW v0 AS SELECT * FROM items");
    ok(&mut stranger, "BEGIN");
    for number in 1..VIEWS {
        let all: Vec<String> = (number.saturating_sub(80)..number).map(|before| format!("v{before}")).collect();
        ok(&mut stranger, &format!("CREATE TEMP VIEW v{number} AS SELECT {}.id FROM {}", all[0], all.join(", ")));
    }
    ok(&mut stranger, "COMMIT");
    ok(&mut other, "INSERT INTO plain VALUES (1)");
    assert_eq!(code(&mut other, "INSERT INTO listed VALUES (1)"), "LF002");
    ok(&mut fenced.holder(1), "INSERT INTO listed VALUES (1)");
    // The views count only in their own session.
    let error = stranger.rows("INSERT INTO plain VALUES (1)").expect_err("too many");
    assert_eq!(error.code(), "LF006");
    assert!(error.message().contains("of this session"), "{}", error.message());
    ok(&mut stranger, "DISCARD TEMP");
    ok(&mut stranger, "INSERT INTO plain VALUES (1)");
}

/// After each definition by a session, the proxy reads the catalog again as that session sees it.
#[test]
fn additions_by_the_session_are_known() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login_as("app");
    ok(&mut stranger, "CREATE TEMP VIEW one AS SELECT * FROM items");
    for number in 0..5 {
        ok(&mut stranger, &format!("CREATE TEMP VIEW next_{number} AS SELECT * FROM one"));
        assert_eq!(code(&mut stranger, &format!("DELETE FROM next_{number}")), "LF002");
        ok(&mut stranger, "INSERT INTO plain VALUES (1)");
    }
    ok(&mut stranger, "CREATE TEMP TABLE noted (id int)");
    ok(&mut stranger, "CREATE RULE r AS ON INSERT TO noted DO ALSO DELETE FROM one");
    assert_eq!(code(&mut stranger, "INSERT INTO noted VALUES (1)"), "LF002");
    let mut next = fenced.login_as("app");
    drop(stranger);
    ok(&mut next, "INSERT INTO plain VALUES (1)");
}
