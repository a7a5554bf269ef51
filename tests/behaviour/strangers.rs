//! A role that may only log in and connect cannot lock fencegate's tables.

mod commands;
mod triggers;

use crate::support::fenced::{Fenced, code, ok, value};
use crate::support::message::{parse, sync};
use crate::support::proxy::fencegate;
use crate::support::wire::error_in;
use crate::support::{Options, ProxyOptions, Release, Wire, programs};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE ROLE stranger LOGIN; CREATE ROLE leader LOGIN";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

const RELATIONS: [&str; 9] =
    ["epoch", "admission", "proxy", "reset", "leased", "lease", "lease_history", "lease_grant", "lease_token"];

const STATEMENTS: [&str; 16] = [
    "PREPARE p AS SELECT FROM %",
    "PREPARE p AS INSERT INTO % DEFAULT VALUES",
    "PREPARE p AS SELECT FROM % FOR UPDATE",
    "CREATE RULE r AS ON INSERT TO % DO INSTEAD NOTHING",
    "CREATE TRIGGER t BEFORE INSERT ON % EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TEMPORARY TABLE mine (n text REFERENCES %)",
    "BEGIN; LOCK TABLE % IN ACCESS SHARE MODE",
    "COMMENT ON TABLE % IS 'x'",
    "ALTER TABLE % ADD COLUMN x int",
    "CREATE INDEX ON % ((1))",
    "DROP TABLE %",
    "TRUNCATE %",
    "ANALYZE %",
    "VACUUM %",
    "CREATE TEMPORARY TABLE mine (LIKE %)",
    "SELECT '%'::regclass",
];

/// Number of fencegate's relations that the stranger's processes have locked or wait to lock.
const LOCKED: &str = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
     JOIN pg_class c ON c.oid = l.relation WHERE a.usename = 'stranger' AND c.relnamespace = 'fencegate_state'::regnamespace";

fn start(release: Release) -> Fenced {
    Fenced::start_with(Options::default().release(release), SCHEMA, &ProxyOptions::default().policies(POLICIES))
}

#[test]
fn a_stranger_is_refused_before_any_lock() {
    refused_before_any_lock(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_stranger_is_refused_before_any_lock_on_18() {
    refused_before_any_lock(Release::Eighteen);
}

/// PostgreSQL locks a relation before it checks privileges on it, and this must not happen here. While the owner holds
/// an exclusive lock, each statement that takes a lock would wait.
fn refused_before_any_lock(release: Release) {
    let world = start(release);
    let mut leader = world.holder(1);
    ok(&mut leader, "INSERT INTO jobs VALUES (1)");
    let mut owner = Wire::login(&world.postgres.socket(), "postgres", "postgres");
    let mut stranger = Wire::login(&world.postgres.address(), "stranger", "postgres");
    ok(&mut stranger, "SET lock_timeout = '5s'");
    for path in ["fencegate_state.", ""] {
        if path.is_empty() {
            ok(&mut stranger, "SET search_path = fencegate_state, fencegate");
        }
        for relation in RELATIONS {
            // LOCK TABLE does not lock sequences.
            let lock = if relation == "lease_token" { "DROP SEQUENCE" } else { "LOCK TABLE" };
            ok(&mut owner, &format!("BEGIN; {lock} fencegate_state.{relation}"));
            let name = format!("{path}{relation}");
            for statement in STATEMENTS {
                let statement = statement.replace('%', &name);
                let refused = code(&mut stranger, &statement);
                assert_eq!(value(&mut owner, LOCKED).as_deref(), Some("0"), "{statement}");
                ok(&mut stranger, "ROLLBACK");
                // Without the schema's name, the relation is not found.
                let expected: &[&str] = if path.is_empty() { &["42P01", "42704", "3F000"] } else { &["42501"] };
                assert!(expected.contains(&refused.as_str()), "{statement}: {refused}");
            }
            stranger.send(&[parse("", &format!("SELECT FROM {name}"), &[]), sync()].concat());
            let refused = error_in(&stranger.read_until_ready()).expect("an error");
            assert_eq!(refused.code(), if path.is_empty() { "42P01" } else { "42501" }, "{name}");
            ok(&mut owner, "ROLLBACK");
        }
    }
    let mut next = world.holder(2);
    ok(&mut next, "INSERT INTO jobs VALUES (2)");
}

#[test]
fn a_leader_renews_while_a_stranger_tries() {
    renews_while_a_stranger_tries(Release::Installed);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_leader_renews_while_a_stranger_tries_on_18() {
    renews_while_a_stranger_tries(Release::Eighteen);
}

/// One session locks the table and keeps its transaction open. Another waits for an exclusive lock, and later sessions
/// would wait behind it.
fn renews_while_a_stranger_tries(release: Release) {
    let world = start(release);
    let control = world.postgres.control_url() + "postgres";
    let leases = ["init", "--control", &control, "--leases-for", "leader", "--elections", "*"];
    programs::run(fencegate().args(leases));
    let mut leader = Wire::login(&world.postgres.address(), "leader", "postgres");
    let token = value(&mut leader, "SELECT token FROM fencegate.acquire('e', 'a', '1 min')").expect("a token");
    let strangers = || Wire::login(&world.postgres.address(), "stranger", "postgres");
    let (mut holder, mut waiter) = (strangers(), strangers());
    ok(&mut waiter, "SET lock_timeout = '5s'");
    let mut written = 0;
    for relation in RELATIONS {
        let held = format!("BEGIN; PREPARE p AS INSERT INTO fencegate_state.{relation} DEFAULT VALUES");
        assert_eq!(code(&mut holder, &held), "42501", "{relation}");
        let waits = format!("CREATE RULE r AS ON INSERT TO fencegate_state.{relation} DO INSTEAD NOTHING");
        assert_eq!(code(&mut waiter, &waits), "42501", "{relation}");
        ok(&mut leader, &format!("SELECT fencegate.renew('e', {token}, '1 min')"));
        written += 1;
        ok(&mut world.holder(written), "INSERT INTO jobs VALUES (1)");
        ok(&mut holder, "ROLLBACK");
    }
}
