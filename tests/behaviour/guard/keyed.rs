//! A resource for each value of a column: each row needs the token of its own key.

use super::world::{LEVELS, World, attempt, without_token};
use crate::support::fenced::{code, code_in, ok};
use crate::support::message::{copy_data, copy_done, query};
use crate::support::ticks::process;
use crate::support::{DEADLINE, Wire, wait_until};

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
         INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES ('shard/1/leader', 5, true),
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

/// Only the stored key counts, whatever the order of trigger names is.
#[test]
fn a_trigger_that_changes_the_key() {
    let world = World::start("a_trigger_that_changes_the_key");
    world.postgres.sql(
        "CREATE TABLE shards (shard int);
         CREATE TRIGGER fencegate_guard_rows AFTER INSERT OR UPDATE OR DELETE ON shards
            FOR EACH ROW EXECUTE FUNCTION fencegate.guard('enforce', 'reject', 'shard/', 'shard', '');
         CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.shard := 2; RETURN NEW; END';
         CREATE TRIGGER zz_last BEFORE INSERT ON shards FOR EACH ROW EXECUTE FUNCTION change();
         INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES ('shard/1', 5, true), ('shard/2', 7, true)",
    );
    let mut session = world.around(5);
    ok(&mut session, "SET lease.fence = 'shard/1=5'");
    assert_eq!(code(&mut session, "INSERT INTO shards VALUES (1)"), "LF002");
    ok(&mut session, "SET lease.fence = 'shard/2=7'");
    assert_eq!(code(&mut session, "INSERT INTO shards VALUES (1)"), "");
}

const KEYED: &str = "
version: 1
resources:
  - {name: scheduler, tables: [public.ticks]}
  - {name: 'part/{id}', tables: [{name: public.parts, key: id}]}
opaque: allow
";

/// A session through the proxy with these tokens, which are then in force.
fn leader(world: &World, tokens: &str) -> Wire {
    let mut session = without_token(&world.proxy.address());
    ok(&mut session, &format!("SET lease.fence = '{tokens}'"));
    ok(&mut session, "UPDATE parts SET note = '' WHERE id IN (1, 2)");
    session
}

#[test]
fn the_policy_selects_the_key_column() {
    let world = World::start_with("the_policy_selects_the_key_column", KEYED, Default::default());
    world.guard("status");
    let mut leader = leader(&world, "part/1=5, part/2=7");
    let mut around = without_token(&world.postgres.socket());
    for level in LEVELS {
        for (tokens, sql, expected) in [
            ("part/1=5", "INSERT INTO part VALUES (1, '')", ""),
            ("part/1=4", "INSERT INTO part VALUES (1, '')", "LF001"),
            ("part/1=5", "INSERT INTO parts SELECT 2", "LF002"),
            ("part/1=5", "UPDATE parts SET id = 2 WHERE id = 1", "LF002"),
            ("part/1=5", "TRUNCATE parts", "LF004"),
            ("", "TRUNCATE parts", "LF002"),
            ("part/1=5", "DELETE FROM parts", ""),
        ] {
            ok(&mut around, &format!("SET lease.fence = '{tokens}'"));
            assert_eq!(attempt(&mut around, level, &[sql]), expected, "{level}: {tokens}: {sql}");
        }
        // The gate lets the statement pass, and the guard checks its rows.
        let insert = |id: i32| format!("DO $$ BEGIN INSERT INTO parts VALUES ({id}, ''); END $$");
        assert_eq!(attempt(&mut leader, level, &[&insert(1), &insert(2)]), "", "{level}");
        assert_eq!(attempt(&mut leader, level, &[&insert(3)]), "LF002", "{level}");
        world.postgres.sql("ALTER TABLE parts DISABLE TRIGGER ALL; DELETE FROM parts");
        assert!(!world.try_guard("status").status.success());
        world.guard("install");
    }
}

#[test]
fn copy_passes_the_gate_where_the_guard_looks_at_each_row() {
    let world = World::start_with("copy_passes_the_gate", KEYED, Default::default());
    let mut session = leader(&world, "part/1=5, part/2=7");
    assert_eq!(copy(&mut session, "1\ta\n2\tb\n1\tc\n"), "");
    assert_eq!(copy(&mut session, "1\ta\n3\tb\n"), "LF002");
    ok(&mut session, "SET lease.fence = 'part/1=4, part/2=7'");
    assert_eq!(copy(&mut session, "2\ta\n1\tb\n"), "LF001");
    assert_eq!(code(&mut without_token(&world.proxy.address()), COPY), "LF002");
    assert_eq!(world.postgres.value("SELECT count(*) FROM parts"), "3");
    // A newer leader of one key.
    leader(&world, "part/1=6, part/2=7");
    ok(&mut session, "SET lease.fence = 'part/1=5, part/2=7'");
    assert_eq!(copy(&mut session, "1\tb\n"), "LF001");
    world.guard("remove");
    wait_until("the proxy detects that the guard was removed", DEADLINE, || {
        let mut session = without_token(&world.proxy.address());
        ok(&mut session, "SET lease.fence = 'part/1=6, part/2=7'");
        session.send(&query(COPY));
        code_in(&session.read_until_any(b"GE")) == "LF004"
    });
}

const COPY: &str = "COPY parts FROM STDIN";

/// Runs a COPY, and returns the SQLSTATE of its error; empty if it succeeds.
fn copy(session: &mut Wire, rows: &str) -> String {
    session.send(&query(COPY));
    let answer = session.read_until_any(b"GE");
    assert_eq!(code_in(&answer), "");
    code_in(&session.exchange(&[copy_data(rows.as_bytes()), copy_done()].concat()))
}

/// The server's lock table has room for only some thousands.
#[test]
fn many_keys_take_one_lock() {
    let world = World::start_with("many_keys_take_one_lock", KEYED, Default::default());
    let mut session = without_token(&world.postgres.socket());
    ok(&mut session, "SET lease.fence = 5");
    ok(
        &mut session,
        "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy)
         SELECT pid, backend_start, 'part/' || key, 1, 5, 'test'
         FROM pg_stat_get_activity(pg_backend_pid()), generate_series(0, 999) key",
    );
    for level in LEVELS {
        ok(&mut session, &format!("BEGIN ISOLATION LEVEL {level}"));
        ok(&mut session, "INSERT INTO parts SELECT generate_series(0, 999)");
        let locks =
            ok(&mut session, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()");
        assert_eq!(locks[0][0].as_deref(), Some("1"), "{level}");
        ok(&mut session, "ROLLBACK");
    }
}

/// The process is terminated when its admission to one key is revoked while the guard has just found its admission to
/// another.
#[test]
fn the_lock_is_that_of_all_keys() {
    let world = World::start_with("the_lock_is_that_of_all_keys", KEYED, Default::default());
    let mut old = leader(&world, "part/1=5, part/2=7");
    let process = process(&mut old);
    ok(&mut old, "BEGIN");
    ok(&mut old, "SELECT pg_advisory_xact_lock_shared(hashtext('part/{}'), pg_backend_pid())");
    leader(&world, "part/1=5, part/2=8");
    assert_eq!(world.postgres.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}")), "0");
}

/// A session's write to one key does not block its new token for another.
#[test]
fn a_higher_token_for_another_key() {
    let world = World::start_with("a_higher_token_for_another_key", KEYED, Default::default());
    leader(&world, "part/1=5, part/2=7");
    let mut next = without_token(&world.proxy.address());
    for (level, token) in LEVELS.into_iter().zip(8..) {
        ok(&mut next, &format!("SET lease.fence = 'part/1=5, part/2={token}'"));
        ok(&mut next, &format!("BEGIN ISOLATION LEVEL {level}"));
        assert_eq!(code(&mut next, "INSERT INTO parts VALUES (1, '')"), "", "{level}");
        assert_eq!(code(&mut next, "INSERT INTO parts VALUES (2, '')"), "", "{level}");
        assert_eq!(code(&mut next, "COMMIT"), "", "{level}");
        next = without_token(&world.proxy.address());
    }
}

#[test]
fn a_keyed_observing_fence() {
    let policies = KEYED.replace("name: 'part/{id}',", "name: 'part/{id}', mode: observe,");
    let world = World::start_with("a_keyed_observing_fence", &policies, Default::default());
    world.postgres.sql("INSERT INTO fencegate_state.epoch (resource, token, drained) VALUES ('part/1', 5, true)");
    let mut around = without_token(&world.postgres.socket());
    ok(&mut around, "SET lease.fence = 'part/1=4'");
    ok(&mut around, "INSERT INTO parts VALUES (1, ''), (2, ''); TRUNCATE parts");
    for said in [
        "resource \"part/1\" would reject a write with LF001, presented=4 highest=5",
        "resource \"part/2\" would reject a write with LF002",
        "resource \"part/{id}\" would reject TRUNCATE",
    ] {
        wait_until(said, DEADLINE, || world.postgres.log().contains(said));
    }
}
