//! A new leader shuts out the old one even if it writes nothing.

use super::world::{POLICIES, WITHOUT_ELECTION, World, detail_is};
use crate::support::link::Link;
use crate::support::programs::run;
use crate::support::ticks::{WRITE, ok, process, refused, session, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, Wire, wait_until};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// One leader has written, in a session that is idle, and another is elected. Returns the session and both tokens.
fn deposed_while_idle(world: &World, proxy: &Proxy) -> (Wire, i64, i64) {
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = session(&proxy.address(), first);
    ok(&mut old, WRITE);
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    (old, first, second)
}

#[test]
fn an_idle_session_is_shut_out() {
    let world = World::start();
    let proxy = world.proxy();
    let (mut old, first, second) = deposed_while_idle(&world, &proxy);
    detail_is(&refused(&mut old, WRITE, "LF001"), first, Some(second));
    // The process is not terminated, because it had nothing to roll back.
    ok(&mut old, "SELECT 1");
}

#[test]
fn an_open_transaction_is_cut_off_before_the_new_leader_reads() {
    let world = World::start();
    let proxy = world.proxy();
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&proxy, first);
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    let mut new = session(&proxy.address(), second);
    let seen = new.rows("SELECT count(*) FROM ticks").unwrap();
    is_cut_off(&mut old, first, second);
    assert_eq!(new.rows("SELECT count(*) FROM ticks").unwrap(), seen, "nothing is committed after the read");
}

/// The fence is raised to the leader's token. An operator who does not know of the new leader then lowers it.
#[test]
fn a_reset_to_the_deposed_leaders_token_is_overtaken() {
    let world = World::start();
    let proxy = world.proxy();
    let (mut old, first, second) = deposed_while_idle(&world, &proxy);
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    console.rows(&format!("FENCE RESET scheduler TO {first} FORCE")).unwrap();
    world.wait_for_epoch(&format!("2/{second}"));
    refused(&mut old, WRITE, "LF001");
}

#[test]
fn through_two_proxies() {
    let world = World::start();
    let (one, other) = (world.proxy(), world.proxy());
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut idle = session(&one.address(), first);
    ok(&mut idle, WRITE);
    let mut open = in_transaction(&other, first);
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    // Its own proxy revokes the admission or, on a busy machine, the other proxy terminates the process.
    assert_eq!(error_in(&idle.query(WRITE)).expect("it is shut out").code(), "LF001");
    is_cut_off(&mut open, first, second);
}

/// The old leader's proxy is suspended. Another proxy, which has a session in the database, shuts the leader out.
#[test]
fn while_the_old_leaders_proxy_sleeps() {
    let world = World::start();
    let (mut asleep, awake) = (world.proxy(), world.proxy());
    let mut reader = Wire::login(&awake.address(), "postgres", "postgres");
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&asleep, first);
    let process = process(&mut old);
    asleep.pause();
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    wait_until_harmless(&world.postgres, &process);
    ok(&mut reader, "SELECT 1");
    asleep.signal("CONT");
    was_cut_off(&mut old, first, second);
}

/// No session exists when the new leader is elected; the first session catches up.
#[test]
fn when_the_first_session_starts_later() {
    let world = World::start();
    let (mut asleep, awake) = (world.proxy(), world.proxy());
    drop(Wire::login(&awake.address(), "postgres", "postgres"));
    let clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    wait_until("its connections are closed", DEADLINE, || world.postgres.value(clients) == "1");
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&asleep, first);
    asleep.pause();
    world.depose("a");
    awake.wait_for_log(&format!("token={second}"), DEADLINE);
    // No event to wait for: a proxy without sessions does not change the database.
    sleep(Duration::from_millis(500));
    assert_eq!(world.epoch(), format!("1/{first}"));
    let _session = Wire::login(&awake.address(), "postgres", "postgres");
    world.wait_for_epoch(&format!("1/{second}"));
    asleep.signal("CONT");
    was_cut_off(&mut old, first, second);
}

#[test]
fn after_etcd_could_not_be_reached() {
    let world = World::start();
    let link = Link::to(world.etcd.port());
    let proxy = Proxy::start(&world.postgres, POLICIES, &["--etcd", &format!("http://127.0.0.1:{}", link.port())]);
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&proxy, first);
    link.cut();
    proxy.wait_for_log("election_not_observed", DEADLINE);
    world.depose("a");
    ok(&mut old, WRITE);
    assert_eq!(world.epoch(), format!("1/{first}"));
    link.mend();
    world.wait_for_epoch(&format!("1/{second}"));
    is_cut_off(&mut old, first, second);
}

/// The database cannot be queried when the new leader is elected: the proxy retries.
#[test]
fn after_the_database_could_not_be_asked() {
    let world = World::start();
    let proxy = world.proxy();
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&proxy, first);
    world.postgres.sql("ALTER SCHEMA fencegate RENAME TO away");
    world.depose("a");
    proxy.wait_for_log("deposed_leader_not_shut_out", DEADLINE);
    world.postgres.sql("ALTER SCHEMA away RENAME TO fencegate");
    world.wait_for_epoch(&format!("1/{second}"));
    is_cut_off(&mut old, first, second);
    let tried = proxy.log().matches("deposed_leader_not_shut_out").count();
    assert!(tried < 30, "it spins: tried {tried} times");
}

/// A process that does not end blocks its own successor, but not the successor of another resource.
#[test]
fn while_another_fence_cannot_be_drained() {
    let world = World::start();
    let policies = format!("{POLICIES}  - {{name: other, election: /cron/other/leader, tables: [public.other]}}\n");
    let proxy = world.proxy_with(&policies);
    world.postgres.sql("CREATE TABLE other (number int)");
    let (first, second) = (world.stand("a"), world.stand("b"));
    let (other_first, other_second) =
        (world.etcd.put_new("/cron/other/leader/a"), world.etcd.put_new("/cron/other/leader/b"));
    let mut other = session(&proxy.address(), other_first);
    ok(&mut other, "INSERT INTO other VALUES (1)");
    let mut old = in_transaction(&proxy, first);
    let stuck = process(&mut old);
    run(Command::new("kill").args(["-STOP", &stuck]));
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}!"));
    world.etcd.delete("/cron/other/leader/a");
    let epoch = "SELECT token || '/' || drained FROM fencegate_state.epoch WHERE resource = 'other'";
    let soon = Duration::from_secs(5);
    wait_until("the other is shut out", soon, || world.postgres.value(epoch) == format!("{other_second}/true"));
    refused(&mut other, "INSERT INTO other VALUES (2)", "LF001");
    assert_eq!(world.epoch(), format!("1/{second}!"), "this one waits");
    run(Command::new("kill").args(["-CONT", &stuck]));
    world.wait_for_epoch(&format!("1/{second}"));
    is_cut_off(&mut old, first, second);
}

/// If no process was ever admitted, there is none to shut out, and no epoch is created.
#[test]
fn an_unused_fence_is_not_raised() {
    let world = World::start();
    let policies = format!("{POLICIES}  - {{name: other, election: /cron/scheduler/leader, tables: [public.other]}}\n");
    let proxy = world.proxy_with(&policies);
    let (first, second) = (world.stand("a"), world.stand("b"));
    ok(&mut session(&proxy.address(), first), WRITE);
    let _session = Wire::login(&proxy.address(), "postgres", "postgres");
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}"));
    assert_eq!(world.postgres.value("SELECT string_agg(resource, ' ') FROM fencegate_state.epoch"), "scheduler");
}

/// A database without the schema is not changed either, and the proxy does not keep logging this.
#[test]
fn a_database_without_the_schema_is_not_changed() {
    let world = World::start();
    let proxy = world.proxy();
    world.postgres.sql("CREATE DATABASE bare");
    let _session = Wire::login(&proxy.address(), "postgres", "bare");
    let (_idle, _, _) = deposed_while_idle(&world, &proxy);
    let third = world.stand("c");
    world.depose("b");
    world.wait_for_epoch(&format!("1/{third}"));
    assert!(!proxy.log().contains("deposed_leader_not_shut_out"), "{}", proxy.log());
}

#[test]
fn an_observing_fence_drains_no_process() {
    let world = World::start();
    let proxy = world.proxy_with(&(POLICIES.to_owned() + "    mode: observe\n"));
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&proxy, first);
    world.wait_for_epoch(&format!("1/{first}!"));
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}!"));
    ok(&mut old, "COMMIT");
    assert_eq!(world.ticks(), "1");
}

/// Sessions admitted before the mode changed continue as well.
#[test]
fn a_fence_that_was_changed_to_observe_drains_no_process() {
    let world = World::start();
    let mut proxy = world.proxy();
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = in_transaction(&proxy, first);
    let hash = "SELECT policy_hash FROM fencegate_state.epoch";
    let before = world.postgres.value(hash);
    proxy.write_policies(&(POLICIES.to_owned() + "    mode: observe\n"));
    proxy.sighup();
    wait_until("the policy is recorded", DEADLINE, || world.postgres.value(hash) != before);
    world.depose("a");
    world.wait_for_epoch(&format!("1/{second}!"));
    ok(&mut old, WRITE);
    ok(&mut old, "COMMIT");
    assert_eq!(world.ticks(), "2");
}

/// A reload follows the elections of the new policies.
#[test]
fn after_a_reload() {
    let world = World::start();
    let mut proxy = world.proxy_with(WITHOUT_ELECTION);
    let mut old = session(&proxy.address(), 1);
    ok(&mut old, WRITE);
    let token = world.stand("a");
    proxy.write_policies(POLICIES);
    proxy.sighup();
    world.wait_for_epoch(&format!("1/{token}"));
    refused(&mut old, WRITE, "LF001");
}

/// The proxy already has the leader, so the fence is due before the database has recorded the new policies.
#[test]
fn after_a_reload_with_a_known_leader() {
    let world = World::start();
    let other = "  - {name: other, election: /cron/scheduler/leader, tables: [public.other]}\n";
    let mut proxy = world.proxy_with(&(WITHOUT_ELECTION.to_owned() + other));
    let mut old = session(&proxy.address(), 1);
    ok(&mut old, WRITE);
    let token = world.stand("a");
    proxy.wait_for_log(&format!("token={token}"), DEADLINE);
    proxy.write_policies(POLICIES);
    proxy.sighup();
    world.wait_for_epoch(&format!("1/{token}"));
    refused(&mut old, WRITE, "LF001");
}

fn in_transaction(proxy: &Proxy, token: i64) -> Wire {
    let mut wire = session(&proxy.address(), token);
    ok(&mut wire, "BEGIN");
    ok(&mut wire, WRITE);
    wire
}

/// No message was in flight, so the outcome of the transaction is certain.
#[track_caller]
fn is_cut_off(old: &mut Wire, presented: i64, highest: i64) {
    assert_eq!(was_cut_off(old, presented, highest), "rolled_back");
}

/// Returns the outcome. A proxy that was suspended may forward the COMMIT before it sees that the server has ended the
/// session. The outcome is then unknown.
#[track_caller]
fn was_cut_off(old: &mut Wire, presented: i64, highest: i64) -> String {
    let error = error_in(&old.query("COMMIT")).expect("it was cut off");
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"), "{error:?}");
    let (detail, outcome) = error.detail().split_once(" outcome=").expect("an outcome");
    assert_eq!(detail, format!("resource=scheduler presented={presented} highest={highest}"));
    outcome.to_owned()
}
