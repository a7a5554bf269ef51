//! A resource for each value of a column: each row needs the token of its own key.

use super::support::fenced::{code, ok};
use super::world::{LEVELS, World, attempt};

#[test]
fn each_row_has_its_resource() {
    let world = World::start("each_row_has_its_resource");
    world.postgres.sql(
        "CREATE TABLE shards (shard text, note text);
         CREATE TRIGGER fencegate_guard_rows AFTER INSERT OR UPDATE OR DELETE ON shards
            FOR EACH ROW EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'shard/', 'shard', '/leader');
         CREATE TRIGGER fencegate_guard_truncate BEFORE TRUNCATE ON shards
            FOR EACH STATEMENT EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'shard/', 'shard', '/leader');
         ALTER TABLE shards ENABLE ALWAYS TRIGGER fencegate_guard_rows;
         INSERT INTO fencegate.epoch (resource, token, drained) VALUES ('shard/1/leader', 5, true),
            ('shard/2/leader', 7, true), ('shard/caf%C3%A9%20%22/leader', 3, true)",
    );
    let mut session = world.around(5);
    for level in LEVELS {
        for (tokens, sql, expected) in [
            ("shard/1/leader=5", "INSERT INTO shards VALUES ('1', 'row')", ""),
            ("shard/1/leader=4", "INSERT INTO shards VALUES ('1')", "LF001"),
            ("shard/1/leader=5", "INSERT INTO shards VALUES ('1'), ('2')", "LF002"),
            ("shard/1/leader=5, shard/2/leader=6", "UPDATE shards SET shard = '2' WHERE shard = '1'", "LF001"),
            ("shard/1/leader=4, shard/2/leader=7", "UPDATE shards SET shard = '2' WHERE shard = '1'", "LF001"),
            ("shard/1/leader=5, shard/2/leader=7", "UPDATE shards SET shard = '2' WHERE shard = '1'", ""),
            ("shard/2/leader=7", "INSERT INTO shards VALUES (NULL)", "LF004"),
            ("shard/caf%C3%A9%20%22/leader=3", "INSERT INTO shards VALUES ('café \"')", ""),
            ("shard/caf%C3%A9%20%22/leader=2", "DELETE FROM shards WHERE shard LIKE 'caf%'", "LF001"),
            ("shard/2/leader=7", "COPY shards FROM PROGRAM 'printf \"2\\\\tx\\n1\\\\tx\\n\"'", "LF002"),
            ("shard/2/leader=7", "TRUNCATE shards", "LF004"),
            ("shard/2/leader=7, shard/caf%C3%A9%20%22/leader=3", "DELETE FROM shards", ""),
        ] {
            ok(&mut session, &format!("SET lease.fence = '{tokens}'"));
            assert_eq!(attempt(&mut session, level, &[sql]), expected, "{level}: {tokens}: {sql}");
        }
    }
}

/// Whatever the order of names: the key that counts is the one that is stored.
#[test]
fn a_trigger_that_changes_the_key() {
    let world = World::start("a_trigger_that_changes_the_key");
    world.postgres.sql(
        "CREATE TABLE shards (shard int);
         CREATE TRIGGER fencegate_guard_rows AFTER INSERT OR UPDATE OR DELETE ON shards
            FOR EACH ROW EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'shard/', 'shard', '');
         CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.shard := 2; RETURN NEW; END';
         CREATE TRIGGER zz_last BEFORE INSERT ON shards FOR EACH ROW EXECUTE FUNCTION change();
         INSERT INTO fencegate.epoch (resource, token, drained) VALUES ('shard/1', 5, true), ('shard/2', 7, true)",
    );
    let mut session = world.around(5);
    ok(&mut session, "SET lease.fence = 'shard/1=5'");
    assert_eq!(code(&mut session, "INSERT INTO shards VALUES (1)"), "LF002");
    ok(&mut session, "SET lease.fence = 'shard/2=7'");
    assert_eq!(code(&mut session, "INSERT INTO shards VALUES (1)"), "");
}
