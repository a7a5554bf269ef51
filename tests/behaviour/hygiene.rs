//! Effects of a session's own commands on its fence: roles, two-phase commit, locks, large objects. See also
//! `parameter` for the token within a transaction, `prepared` for EXECUTE and portals, and `opaque` for replication.

use crate::support::Options;
use crate::support::fenced::{Fenced, code, code_in, last_value, ok, value};
use crate::support::message::function_call;
use crate::support::proxy::ProxyOptions;
use crate::support::wire::{Wire, error_in};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (n int); CREATE ROLE worker LOGIN; \
    GRANT ALL ON jobs, free TO worker; \
    CREATE FUNCTION run_tick() RETURNS int LANGUAGE sql AS 'INSERT INTO jobs VALUES (1) RETURNING 1'";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

fn world() -> Fenced {
    Fenced::start(SCHEMA, POLICIES)
}

fn world_with_two_phase_commit() -> Fenced {
    let options = Options::default().setting("max_prepared_transactions", "4");
    Fenced::start_with(options, SCHEMA, &ProxyOptions::default().policies(POLICIES))
}

#[test]
fn writes_under_a_token_are_not_prepared() {
    let world = world_with_two_phase_commit();
    let mut wire = world.holder(47);
    ok(&mut wire, "BEGIN; INSERT INTO jobs VALUES (1)");
    assert_eq!(code(&mut wire, "PREPARE TRANSACTION 'one'"), "LF004");
    assert_eq!(code(&mut wire, "COMMIT"), "");
    // A session without a token can prepare and commit writes that are not fenced.
    let mut wire = world.login();
    ok(&mut wire, "BEGIN; INSERT INTO free VALUES (1)");
    ok(&mut wire, "PREPARE TRANSACTION 'two'");
    ok(&mut wire, "COMMIT PREPARED 'two'");
    assert_eq!(world.postgres.value("SELECT (SELECT count(*) FROM jobs) || ' ' || (SELECT count(*) FROM free)"), "0 1");
}

#[test]
fn a_transaction_prepared_around_the_proxy_ends_before_a_newer_token_is_admitted() {
    let world = world_with_two_phase_commit();
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
    world.postgres.sql("BEGIN; INSERT INTO jobs VALUES (46); PREPARE TRANSACTION 'hidden'");
    let mut leader = world.holder(48);
    let refused = leader.query("INSERT INTO jobs VALUES (48)");
    let error = error_in(&refused).unwrap();
    assert_eq!(error.code(), "LF006");
    assert!(error.message().contains("hidden"), "{error:?}");
    // The transaction commits before the newer leader writes, so the order is kept whichever session commits it.
    ok(&mut world.login(), "COMMIT PREPARED 'hidden'");
    ok(&mut leader, "INSERT INTO jobs VALUES (48)");
    assert_eq!(world.postgres.value("SELECT string_agg(n::text, ' ') FROM jobs"), "47 46 48");
}

#[test]
fn another_role_is_the_same_session() {
    let world = world();
    for (token, become_another) in [(47, "SET ROLE worker"), (57, "SET SESSION AUTHORIZATION worker")] {
        let mut wire = world.holder(token);
        ok(&mut wire, "INSERT INTO jobs VALUES (1)");
        ok(&mut wire, become_another);
        ok(&mut wire, "INSERT INTO jobs VALUES (2)");
        assert_eq!(value(&mut wire, "SHOW lease.fence"), Some(token.to_string()));
        ok(&mut world.holder(token + 1), "INSERT INTO jobs VALUES (3)");
        assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (4)"), "LF001", "{become_another}");
    }
}

#[test]
fn a_session_that_discards_all_has_no_token() {
    let world = world();
    let mut wire = world.holder(47);
    ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    ok(&mut wire, "DISCARD ALL");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (2)"), "LF002");
    ok(&mut wire, "SET lease.fence = 47");
    ok(&mut wire, "INSERT INTO jobs VALUES (2)");
}

#[test]
fn the_token_of_a_role_is_that_of_its_next_sessions() {
    let world = world();
    let mut wire = world.login_as("worker");
    world.postgres.sql("ALTER ROLE worker SET lease.fence = '47'");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
    ok(&mut world.login_as("worker"), "INSERT INTO jobs VALUES (1)");
}

#[test]
fn locks_are_taken_by_the_current_leader_or_without_a_token() {
    let world = world();
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (1)");
    for lock in ["LOCK TABLE jobs", "LOCK TABLE jobs IN SHARE MODE", "SELECT n FROM jobs FOR UPDATE"] {
        for (token, expected) in [("", ""), ("46", "LF001"), ("47", "")] {
            let mut wire = world.login();
            ok(&mut wire, &format!("SET lease.fence = '{token}'; BEGIN"));
            assert_eq!(code(&mut wire, lock), expected, "{lock} under '{token}'");
            ok(&mut wire, "ROLLBACK");
        }
    }
    // The next leader would wait for the lock, so its holder is terminated.
    let mut zombie = world.holder(47);
    ok(&mut zombie, "BEGIN; LOCK TABLE jobs");
    ok(&mut world.holder(48), "INSERT INTO jobs VALUES (2)");
    assert_eq!(code(&mut zombie, "COMMIT"), "LF001");
}

#[test]
fn large_objects_are_not_fenced() {
    let world = world();
    let mut wire = world.login();
    let oid: u32 = value(&mut wire, "SELECT lo_create(0)").unwrap().parse().unwrap();
    ok(&mut wire, &format!("SELECT lo_put({oid}, 0, 'text')"));
    // The calls of libpq and other drivers for large objects.
    let call = |wire: &mut Wire, name: &str, arguments: &[&[u8]]| {
        let number =
            world.postgres.value(&format!("SELECT oid FROM pg_proc WHERE proname = '{name}'")).parse().unwrap();
        let arguments: Vec<_> = arguments.iter().copied().map(Some).collect();
        wire.exchange(&function_call(number, &arguments))
    };
    ok(&mut wire, "BEGIN");
    const READ_AND_WRITE: [u8; 4] = 0x60000u32.to_be_bytes();
    let descriptor = [0; 4];
    assert_eq!(code_in(&call(&mut wire, "lo_open", &[&oid.to_be_bytes(), &READ_AND_WRITE])), "");
    assert_eq!(code_in(&call(&mut wire, "lowrite", &[&descriptor, b"TEXT"])), "");
    for name in ["lo_lseek", "lo_lseek64"] {
        let offset = if name == "lo_lseek" { vec![0; 4] } else { vec![0; 8] };
        assert_eq!(code_in(&call(&mut wire, name, &[&descriptor, &offset, &[0; 4]])), "", "{name}");
    }
    for (name, more) in [("loread", vec![0, 0, 0, 4]), ("lo_truncate", vec![0; 4]), ("lo_truncate64", vec![0; 8])] {
        assert_eq!(code_in(&call(&mut wire, name, &[&descriptor, &more])), "", "{name}");
    }
    for name in ["lo_tell", "lo_tell64", "lo_close"] {
        assert_eq!(code_in(&call(&mut wire, name, &[&descriptor])), "", "{name}");
    }
    for name in ["lo_create", "lo_creat"] {
        assert_eq!(code_in(&call(&mut wire, name, &[&[0; 4]])), "", "{name}");
    }
    assert_eq!(code_in(&call(&mut wire, "lo_unlink", &[&oid.to_be_bytes()])), "");
    assert_eq!(last_value(&wire.query("COMMIT; SELECT 'goes on'")).as_deref(), Some("goes on"));
    assert_eq!(code_in(&call(&mut wire, "run_tick", &[])), "LF004");
}
