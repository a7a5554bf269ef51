//! Relations through which rows of a keyed table are written.

use super::{epochs, holder, refused};
use crate::support::fenced::{Fenced, code, ok};
use crate::support::guardian::Folder;
use crate::support::message::{copy_done, query};
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, programs, wait_until};

const POLICIES: &str =
    "version: 1\nresources:\n  - {name: 'shard/{shard}', tables: [{name: public.ticks, key: shard}]}\n";

#[test]
fn a_partition_and_a_parent_have_the_same_key() {
    let world = Fenced::start(
        "CREATE TABLE ticks (shard int, id int) PARTITION BY LIST (shard); \
         CREATE TABLE ticks_3 PARTITION OF ticks FOR VALUES IN (3); \
         CREATE TABLE ticks_4 (id int, shard int); ALTER TABLE ticks ATTACH PARTITION ticks_4 FOR VALUES IN (4)",
        POLICIES,
    );
    let mut wire = holder(&world, "shard/3=1");
    ok(&mut wire, "INSERT INTO ticks VALUES (3, 1); INSERT INTO ticks_3 (shard, id) VALUES (3, 2)");
    ok(&mut wire, "DELETE FROM ticks_3 WHERE shard = 3 AND id = 2");
    assert_eq!(refused(&mut wire, "INSERT INTO ticks_4 (id, shard) VALUES (1, 4)").detail(), "resource=shard/4");
    // The partition has another order of columns.
    assert_eq!(code(&mut wire, "INSERT INTO ticks_4 VALUES (3, 4)"), "LF004");
    assert_eq!(epochs(&world), "shard/3=1");
}

#[test]
fn a_view_and_a_cascade_tell_no_key() {
    let world = Fenced::start(
        "CREATE TABLE owner (id int PRIMARY KEY); INSERT INTO owner VALUES (1); \
         CREATE TABLE ticks (shard int, other int, owner int REFERENCES owner ON DELETE CASCADE); \
         CREATE VIEW seen AS SELECT other AS shard, shard AS other FROM ticks",
        POLICIES,
    );
    let mut wire = holder(&world, "1");
    ok(&mut wire, "INSERT INTO ticks VALUES (3, 4, 1)");
    for statement in ["DELETE FROM seen WHERE shard = 3", "DELETE FROM owner WHERE id = 1"] {
        let error = refused(&mut wire, statement);
        assert_eq!((error.code(), error.detail()), ("LF004", "resource=shard/{shard}"), "{statement}");
    }
    assert_eq!(code(&mut world.login(), "DELETE FROM owner WHERE id = 1"), "LF002");
}

#[test]
fn copy_shows_no_key() {
    let world = Fenced::start("CREATE TABLE ticks (shard int, id int)", POLICIES);
    assert_eq!(code(&mut holder(&world, "1"), "COPY ticks FROM STDIN"), "LF004");
}

/// If a plain parent lacks the key, the name may refer to another relation's column.
#[test]
fn a_plain_parent_may_lack_the_key() {
    let world = Fenced::start(
        "CREATE TABLE general (id int); CREATE TABLE ticks (shard int) INHERITS (general); \
         CREATE TABLE other (id int, shard int); INSERT INTO other VALUES (1, 3)",
        POLICIES,
    );
    let mut wire = holder(&world, "shard/3=1, shard/4=1");
    ok(&mut wire, "INSERT INTO ticks (id, shard) VALUES (1, 3), (1, 4)");
    let delete = "DELETE FROM general USING other WHERE other.id = general.id AND shard = 3";
    assert_eq!(refused(&mut holder(&world, "shard/3=1"), delete).code(), "LF004");
    assert_eq!(world.postgres.value("SELECT count(*) FROM ticks"), "2");
}

/// The guard of a parent does not check rows of its children.
#[test]
fn copy_into_a_child_is_not_left_to_the_guard() {
    let world = Fenced::start("CREATE TABLE ticks (shard int); CREATE TABLE child () INHERITS (ticks)", POLICIES);
    let folder = Folder::new("copy_into_a_child");
    std::fs::write(folder.join("policy.yaml"), POLICIES).unwrap();
    let control = world.postgres.control_url() + "postgres";
    let install = ["guard", "install", "--control", &control, "--policies"];
    programs::run(fencegate().args(install).arg(folder.path()));
    world.postgres.sql("DROP TRIGGER IF EXISTS fencegate_guard_rows ON child");
    world.postgres.sql("NOTIFY fencegate, '{catalogue}'");
    let mut wire = holder(&world, "1");
    wait_until("the proxy detects the guard", DEADLINE, || {
        wire.send(&query("COPY ticks FROM STDIN"));
        let waits = wire.read_until_any(b"GE").last().unwrap().tag == b'G';
        if waits {
            wire.exchange(&copy_done());
        } else {
            wire.read_until_ready();
        }
        waits
    });
    assert_eq!(code(&mut wire, "COPY child FROM STDIN"), "LF004");
}

/// The change of the parent does not name the table, and the policy's operations do not include DDL.
#[test]
fn a_key_that_is_renamed_by_way_of_a_parent() {
    let policies = POLICIES.replace("key: shard", "key: shard, operations: [insert, update, delete]");
    let world = Fenced::start(
        "CREATE TABLE general (shard text, other text); CREATE TABLE ticks () INHERITS (general)",
        &policies,
    );
    ok(&mut holder(&world, "1"), "INSERT INTO ticks VALUES ('4', '3')");
    let rename = "ALTER TABLE general RENAME COLUMN shard TO gone; ALTER TABLE general RENAME COLUMN other TO shard";
    for write in ["DELETE FROM ticks WHERE shard = '3'", "DELETE FROM general"] {
        let mut wire = holder(&world, "shard/3=1");
        ok(&mut wire, &format!("BEGIN; {rename}"));
        assert_eq!(code(&mut wire, write), "LF004", "{write}");
    }
    // An index created in the same transaction decides which row an upsert affects.
    let mut wire = holder(&world, "1");
    ok(&mut wire, "BEGIN; CREATE UNIQUE INDEX ON ticks (shard bpchar_ops)");
    let upsert = "INSERT INTO ticks (shard) VALUES ('4 ') ON CONFLICT (shard) DO UPDATE SET other = 'x'";
    assert_eq!(code(&mut wire, upsert), "LF004");
    ok(&mut wire, "ROLLBACK; CREATE UNIQUE INDEX ON ticks (shard bpchar_ops)");
    assert_eq!(code(&mut wire, upsert), "LF004");
    assert_eq!(world.postgres.value("SELECT shard || other FROM ticks"), "43");
}

/// The text contains one key, and the row gets another. `policy explain` reports this, unless the guard checks the
/// rows.
#[test]
fn a_trigger_that_may_change_the_key_is_shown() {
    let world = Fenced::start(
        "CREATE TABLE ticks (shard text) PARTITION BY LIST (shard); CREATE TABLE ticks_3 PARTITION OF ticks DEFAULT;
         CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.shard := '4'; RETURN NEW; END $$",
        POLICIES,
    );
    let folder = Folder::new("key");
    std::fs::write(folder.join("policy.yaml"), POLICIES).unwrap();
    let policies = folder.path().to_str().unwrap();
    let database = world.postgres.control_url() + "postgres";
    let run = |command: &[&str]| {
        let output = fencegate().args(command).args([policies, "--database", &database]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let warning = "named in the policy; trigger \"Change\" may change the key: install the guard";
    assert!(!run(&["policy", "explain"]).1.contains(';'));
    for (table, when) in [("ticks_3", "UPDATE"), ("ticks", "INSERT")] {
        let of = format!("ON {table} FOR EACH ROW EXECUTE FUNCTION change()");
        world.postgres.sql(&format!("CREATE TRIGGER \"Change\" AFTER {when} {of}"));
        assert!(!run(&["policy", "explain"]).1.contains(';'), "an AFTER trigger changes no key");
        world
            .postgres
            .sql(&format!("DROP TRIGGER \"Change\" ON {table}; CREATE TRIGGER \"Change\" BEFORE {when} {of}"));
        let (code, said) = run(&["policy", "explain"]);
        assert!(code == Some(0) && said.contains(warning), "{said}");
        if table == "ticks_3" {
            world.postgres.sql("DROP TRIGGER \"Change\" ON ticks_3");
        }
    }
    let mut command = fencegate();
    command.args(["guard", "install", "--control", &database, "--policies", policies]);
    programs::run(&mut command);
    assert!(!run(&["policy", "explain"]).1.contains(';'));
}
