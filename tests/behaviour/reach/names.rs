//! Names that may mean the fenced table, given search path, temporary tables and renames, count as the fenced table.

use crate::support::fenced::{Fenced, code, ok};

const SCHEMA: &str = "
    CREATE TABLE items (id int);
    CREATE VIEW listed AS SELECT * FROM items;
    CREATE TABLE parts (id int) PARTITION BY RANGE (id);
    CREATE TABLE part PARTITION OF parts DEFAULT;
    CREATE TABLE other (id int);
    CREATE SCHEMA archive;
    CREATE TABLE archive.items (id int);
    CREATE ROLE writer LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public, archive TO writer;
    GRANT ALL ON SCHEMA public, archive TO writer";
const POLICY: &str = "version: 1\nresources:\n  - name: jobs\n    tables: [public.items, public.parts]\n";

#[test]
fn a_temporary_table_of_the_name_counts_unless_qualified() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    ok(&mut stranger, "CREATE TEMP TABLE items (id int)");
    assert_eq!(code(&mut stranger, "INSERT INTO items VALUES (1)"), "LF002");
    ok(&mut stranger, "INSERT INTO pg_temp.items VALUES (1)");
    assert_eq!(code(&mut stranger, "INSERT INTO public.items VALUES (1)"), "LF002");
    assert_eq!(fenced.postgres.value("SELECT count(*) FROM items"), "0");
}

/// A temporary view or child of a fenced table leads to that table, whether its name is qualified or not.
#[test]
fn a_temporary_relation_may_lead_to_a_fenced_table() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    ok(&mut stranger, "CREATE TEMP VIEW mine AS SELECT * FROM items");
    for sql in ["INSERT INTO mine VALUES (1)", "INSERT INTO pg_temp.mine VALUES (1)"] {
        assert_eq!(code(&mut stranger, sql), "LF002", "{sql}");
    }
    let mut leader = fenced.holder(1);
    ok(&mut leader, "CREATE TEMP TABLE child () INHERITS (items)");
    assert_eq!(code(&mut fenced.login(), "DELETE FROM child"), "42P01");
    assert_eq!(code(&mut leader, "SET lease.fence = ''; DELETE FROM child"), "LF002");
    ok(&mut leader, "SET lease.fence = 1; INSERT INTO pg_temp.child VALUES (1)");
}

#[test]
fn a_table_that_comes_first_in_the_path_hides_nothing() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let archive = "search_path = archive, public";
    let elsewhere = "INSERT INTO items VALUES (1)";
    let qualified = "INSERT INTO archive.items VALUES (1)";
    let mut stranger = fenced.login();
    ok(&mut stranger, &format!("SET {archive}"));
    assert_eq!(code(&mut stranger, elsewhere), "LF002");
    ok(&mut stranger, qualified);
    for set in [format!("ALTER ROLE writer SET {archive}"), format!("ALTER DATABASE postgres SET {archive}")] {
        fenced.postgres.sql(&set);
        let mut stranger = fenced.login_as("writer");
        assert_eq!(code(&mut stranger, elsewhere), "LF002", "{set}");
        assert_eq!(code(&mut stranger, "UPDATE public.items SET id = 1"), "LF002", "{set}");
        ok(&mut stranger, qualified);
        fenced.postgres.sql("ALTER ROLE writer RESET ALL");
    }
    // The proxy cannot see what a function writes. A call counts if the policy names the function, regardless of its
    // search path.
    let function =
        "CREATE FUNCTION add() RETURNS void LANGUAGE sql SET search_path = public AS 'INSERT INTO items VALUES (1)'";
    ok(&mut stranger, function);
    fenced.proxy.write_policies(&format!("{POLICY}    functions: [archive.add]\n"));
    let mut fenced = fenced;
    fenced.proxy.sighup();
    fenced.proxy.wait_for_log("policies_loaded", crate::support::DEADLINE);
    crate::support::wait_until("the function is fenced", crate::support::DEADLINE, || {
        code(&mut stranger, "SELECT add()") == "LF002"
    });
}

/// A renamed table is no longer fenced, and a table that receives the fenced name is.
#[test]
fn renames_and_moves() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let mut stranger = fenced.login();
    for ddl in [
        "ALTER TABLE items RENAME TO old_items",
        "ALTER TABLE items SET SCHEMA archive",
        "ALTER TABLE parts RENAME TO p",
    ] {
        assert_eq!(code(&mut stranger, ddl), "LF002", "{ddl}");
    }
    ok(&mut fenced.holder(1), "ALTER TABLE items RENAME TO old_items");
    ok(&mut stranger, "INSERT INTO old_items VALUES (1)");
    ok(&mut stranger, "INSERT INTO listed VALUES (1)");
    ok(&mut stranger, "INSERT INTO other VALUES (1)");
    ok(&mut stranger, "ALTER TABLE other RENAME TO items");
    assert_eq!(code(&mut stranger, "INSERT INTO items VALUES (1)"), "LF002");
    ok(&mut stranger, "CREATE VIEW on_other AS SELECT * FROM public.items");
    assert_eq!(code(&mut stranger, "INSERT INTO on_other VALUES (1)"), "LF002");
    ok(&mut fenced.holder(1), "ALTER TABLE public.items RENAME TO other; ALTER TABLE old_items RENAME TO items");
    ok(&mut stranger, "ALTER VIEW listed RENAME TO relisted");
    assert_eq!(code(&mut stranger, "INSERT INTO relisted VALUES (1)"), "LF002");
    ok(&mut stranger, "ALTER VIEW relisted SET SCHEMA archive");
    assert_eq!(code(&mut stranger, "INSERT INTO archive.relisted VALUES (1)"), "LF002");
    ok(&mut stranger, "INSERT INTO on_other VALUES (1)");
}

#[test]
fn a_partition_that_another_session_detaches_and_attaches() {
    let fenced = Fenced::start(SCHEMA, POLICY);
    let (mut stranger, mut leader) = (fenced.login(), fenced.holder(1));
    assert_eq!(code(&mut stranger, "INSERT INTO part VALUES (1)"), "LF002");
    ok(&mut leader, "ALTER TABLE parts DETACH PARTITION part");
    ok(&mut stranger, "INSERT INTO part VALUES (1)");
    ok(&mut leader, "ALTER TABLE parts ATTACH PARTITION part DEFAULT");
    assert_eq!(code(&mut stranger, "INSERT INTO part VALUES (1)"), "LF002");
}
