//! Relations by which the rows of a keyed table are written.

use super::support::fenced::{Fenced, code, ok};
use super::{epochs, holder, refused};

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
    // Columns stand in another order there.
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
