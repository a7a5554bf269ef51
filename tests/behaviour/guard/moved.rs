//! An UPDATE that moves a row to another partition fires no AFTER UPDATE trigger. It is stopped even if only updates
//! are fenced.

use super::world::{LEVELS, World, attempt, without_token};
use crate::support::fenced::ok;

const POLICIES: &str = "
version: 1
resources:
  - {name: scheduler, tables: [public.ticks, {name: public.leaf, operations: [update]}, {name: public.joined, operations: [update, delete]}]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard, operations: [update, insert]}]}
opaque: allow
";

const TABLES: &str = "
CREATE TABLE tree (id int) PARTITION BY LIST (id);
CREATE TABLE leaf PARTITION OF tree FOR VALUES IN (1);
CREATE TABLE other_leaf PARTITION OF tree FOR VALUES IN (2);
CREATE TABLE joined (id int);
CREATE TABLE shards (shard int, place int) PARTITION BY LIST (place);
CREATE TABLE shards_1 PARTITION OF shards FOR VALUES IN (1);
CREATE TABLE shards_2 PARTITION OF shards FOR VALUES IN (2);
INSERT INTO tree VALUES (1), (1);
INSERT INTO joined VALUES (1);
INSERT INTO shards VALUES (1, 1), (1, 1);
";

#[test]
fn to_another_partition() {
    let world = World::start_with("to_another_partition", POLICIES, Default::default());
    world.postgres.sql(TABLES);
    world.guard("install");
    world.guard("status");
    world.postgres.sql(
        "CREATE TABLE whole (id int) PARTITION BY LIST (id);
         CREATE TABLE rest PARTITION OF whole FOR VALUES IN (2);
         ALTER TABLE whole ATTACH PARTITION joined FOR VALUES IN (1);
         INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES ('shard/1', 5, true), ('shard/2', 7, true)",
    );
    let mut session = without_token(&world.postgres.socket());
    for level in LEVELS {
        for (tokens, sql, expected) in [
            ("", "UPDATE tree SET id = 2 WHERE id = 1", "LF002"),
            ("4", "UPDATE tree SET id = 2 WHERE id = 1", "LF001"),
            ("5", "UPDATE tree SET id = 2 WHERE id = 1", ""),
            ("", "UPDATE tree SET id = 2 WHERE id = 2", ""),
            ("", "UPDATE whole SET id = 2", "LF002"),
            ("5", "UPDATE whole SET id = 2", ""),
            ("", "UPDATE shards SET place = 2 WHERE place = 1", "LF002"),
            ("shard/1=4", "UPDATE shards SET place = 2 WHERE place = 1", "LF001"),
            ("shard/1=5", "UPDATE shards SET place = 2 WHERE place = 1", ""),
            ("shard/1=5", "UPDATE shards SET shard = 2, place = 1 WHERE place = 2", "LF002"),
            ("shard/1=5, shard/2=7", "UPDATE shards SET shard = 2, place = 1 WHERE place = 2", ""),
        ] {
            ok(&mut session, &format!("SET lease.fence = '{tokens}'"));
            assert_eq!(attempt(&mut session, level, &[sql]), expected, "{level}: {tokens}: {sql}");
        }
        let moved_back = "UPDATE shards SET shard = 1; UPDATE tree SET id = 1; UPDATE whole SET id = 1";
        world.postgres.sql(&format!("SET lease.fence = 'scheduler=5, shard/1=5, shard/2=7'; {moved_back}"));
    }
}
