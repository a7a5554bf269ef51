//! FENCE RESET restores service after a restore has decreased etcd's revisions. Also tests resets that fail.

use super::world::{WITHOUT_ELECTION, World, detail_is};
use crate::support::ticks::{WRITE, ok, refused, session, wait_for_process};
use crate::support::wait::wait_for;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Proxy, Wire, wait_until};

fn console(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), "postgres", "fencegate")
}

fn row(columns: &[&str]) -> Vec<Option<String>> {
    columns.iter().map(|&column| Some(column.to_owned())).collect()
}

#[test]
fn a_restored_etcd_locks_its_leaders_out_until_the_fence_is_reset() {
    let mut world = World::start();
    let (proxy, other) = (world.proxy(), world.proxy());
    world.etcd.save_snapshot("early");
    for number in 0..20 {
        world.etcd.put_new(&format!("/elsewhere/{number}"));
    }
    let high = world.stand("zombie");
    let mut zombie = session(&proxy.address(), high);
    ok(&mut zombie, WRITE);
    let mut open = session(&other.address(), high);
    ok(&mut open, "BEGIN");
    ok(&mut open, WRITE);

    world.etcd.restore_snapshot("early");
    let low = world.stand("new");
    assert!(low < high);
    let mut new = session(&proxy.address(), low);
    let mut new_through_other = session(&other.address(), low);
    // The follower may not have seen the new leader yet. The proxy queries etcd before it answers.
    wait_until("the error reports that tokens have gone back", DEADLINE, || {
        let error = refused(&mut new, WRITE, "LF001");
        detail_is(&error, low, Some(high));
        error.message().starts_with("tokens have gone back: ")
            && error.hint().contains(&format!("FENCE RESET scheduler TO {low}"))
    });
    // A session that does not lead is stale.
    let error = refused(&mut session(&proxy.address(), low - 1), WRITE, "LF001");
    assert!(error.message().contains("is stale"), "{error:?}");
    let shown = console(&proxy).rows("SHOW FENCES").unwrap();
    assert_eq!(shown[0].last().unwrap().as_deref(), Some("gone back"));
    refused(&mut new_through_other, WRITE, "LF001");
    assert_eq!(world.epoch(), format!("1/{high}"));

    let refusal = console(&proxy).rows(&format!("FENCE RESET scheduler TO {low}")).unwrap_err();
    assert_eq!(refusal.code(), "55006", "the old leaders are alive");
    assert_eq!(world.epoch(), format!("1/{high}"));
    let reset = console(&proxy).rows(&format!("FENCE RESET scheduler TO {low} FORCE")).unwrap();
    assert_eq!(reset, [row(&["postgres", "scheduler", "1", &high.to_string(), "2", &low.to_string()])]);
    assert_eq!(world.epoch(), format!("2/{low}"));
    let log = proxy.log();
    let event = log.lines().find(|line| line.contains("fence_reset")).expect("it is logged");
    let fields = ["WARN", "role=\"postgres\"", "resource=\"scheduler\"", "database=\"postgres\""];
    for field in fields.map(str::to_owned).into_iter().chain([format!("token_before={high}"), format!("token={low}")]) {
        assert!(event.contains(&field), "{field}: {event}");
    }
    // Sessions admitted before the reset have ended, whatever their tokens are.
    assert_eq!(error_in(&open.query("COMMIT")).unwrap().code(), "LF001");
    ok(&mut new, WRITE);
    wait_until("the other proxy follows the reset", DEADLINE, || error_in(&new_through_other.query(WRITE)).is_none());
    for zombie in [&mut zombie, &mut session(&proxy.address(), high), &mut session(&other.address(), high)] {
        wait_until("the token is unissued", DEADLINE, || {
            error_in(&zombie.query(WRITE)).expect("a refusal").code() == "LF005"
        });
        detail_is(&refused(zombie, WRITE, "LF005"), high, Some(low));
    }
    assert_eq!(world.epoch(), format!("2/{low}"));
    assert_eq!(world.ticks(), "3");
}

/// A session admitted under a higher token before the reset counts as older.
#[test]
fn a_reset_ends_sessions_that_were_admitted_before() {
    let world = World::start();
    // With an election, the proxy would immediately raise the fence to its leader's token.
    let proxy = world.proxy_with(WITHOUT_ELECTION);
    let token = 5;
    let mut open = session(&proxy.address(), token);
    ok(&mut open, "BEGIN");
    ok(&mut open, WRITE);
    console(&proxy).rows("FENCE RESET scheduler TO 1 FORCE").unwrap();
    assert_eq!(world.epoch(), "2/1");
    let error = error_in(&open.query("COMMIT")).unwrap();
    assert_eq!((error.severity(), error.code()), ("FATAL", "LF001"));
    assert!(error.message().ends_with("was reset after token 5 was admitted, and is at 1"), "{error:?}");
    assert_eq!(world.ticks(), "0");
    // The client may return: without an election, any token is accepted.
    ok(&mut session(&proxy.address(), token), WRITE);
    assert_eq!(world.epoch(), format!("2/{token}"));
}

/// A Publish that began before a reset does not undo the reset.
#[test]
fn a_concurrent_publish_does_not_undo_a_reset() {
    let world = World::start();
    let proxy = world.proxy();
    let (first, second) = (world.stand("a"), world.stand("b"));
    let mut old = session(&proxy.address(), first);
    ok(&mut old, WRITE);
    let mut operator = Wire::login(&world.postgres.address(), "postgres", "postgres");
    ok(&mut operator, "BEGIN");
    ok(&mut operator, "SELECT FROM fencegate_state.epoch FOR SHARE");
    world.depose("a");
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%EXECUTE raise(%'";
    let publisher = wait_for("a Publish waits for the row", DEADLINE, || {
        Some(world.postgres.value(waiting)).filter(|process| !process.is_empty())
    });
    world.depose("b");
    ok(&mut operator, "UPDATE fencegate_state.epoch SET generation = 2, token = 1, drained = false");
    ok(&mut operator, "COMMIT");
    wait_for_process(&world.postgres, &publisher, "state = 'idle'");
    refused(&mut session(&proxy.address(), second), WRITE, "LF005");
    assert_eq!(world.epoch(), "2/1!");
}

/// The proxy finds the database even if it has had no session since its start.
#[test]
fn the_database_is_found_or_named() {
    let world = World::start();
    let token = world.stand("a");
    ok(&mut session(&world.proxy().address(), token), WRITE);
    let proxy = world.proxy();
    let mut console = console(&proxy);
    world.postgres.sql("CREATE DATABASE bare");
    let rows = console.rows("FENCE RESET scheduler TO 4 FORCE").unwrap();
    assert_eq!(rows, [row(&["postgres", "scheduler", "1", &token.to_string(), "2", "4"])]);
    let rows = console.rows("FENCE RESET 'scheduler' IN DATABASE \"postgres\" TO 5 FORCE").unwrap();
    assert_eq!(rows, [row(&["postgres", "scheduler", "2", "4", "3", "5"])]);
    assert_eq!(world.epoch(), "3/5");
}

#[test]
fn a_reset_above_the_leaders_token_needs_force() {
    let mut world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    ok(&mut session(&proxy.address(), token), WRITE);
    let mut console = console(&proxy);
    let above = token + 5;
    let error = console.rows(&format!("FENCE RESET scheduler TO {above}")).unwrap_err();
    assert_eq!(error.code(), "55006");
    assert!(error.message().contains(&format!("above {token}, the token of the leader")), "{error:?}");
    assert_eq!(world.epoch(), format!("1/{token}"));
    let warning = |frames: &[crate::support::Frame]| {
        let told = frames.iter().find(|frame| frame.tag == b'N').map(|frame| frame.fields());
        told.map(|told| told.message().to_owned()).unwrap_or_default()
    };
    let frames = console.query(&format!("FENCE RESET scheduler TO {above} FORCE"));
    assert!(warning(&frames).contains("above"), "{frames:?}");
    assert_eq!(world.epoch(), format!("2/{above}"));
    // A warning reports what the proxy cannot determine.
    world.etcd.pause();
    let frames = console.query(&format!("FENCE RESET scheduler TO {token}"));
    assert!(warning(&frames).contains("cannot determine whether token"), "{frames:?}");
    assert_eq!(world.epoch(), format!("3/{token}"));
}

#[test]
fn an_impossible_reset_is_reported() {
    let world = World::start();
    let proxy = world.proxy();
    let _session = Wire::login(&proxy.address(), "postgres", "postgres");
    let mut console = console(&proxy);
    for (command, code) in [
        ("FENCE RESET nothing TO 5", "42704"),
        ("FENCE RESET scheduler TO 5", "55000"),
        ("FENCE RESET scheduler IN DATABASE postgres TO 5", "55000"),
        ("FENCE RESET scheduler IN DATABASE template1 TO 5", "55000"),
        ("FENCE RESET scheduler IN DATABASE nowhere TO 5", "3D000"),
        ("FENCE RESET scheduler TO 0", "42601"),
    ] {
        let error = console.rows(command).unwrap_err();
        assert_eq!((error.severity(), error.code()), ("ERROR", code), "{command}: {error:?}");
    }
    assert_eq!(world.epoch(), "");
}

/// The error names a process that cannot be terminated. The reset takes effect.
#[test]
fn a_reset_that_cannot_drain_reports_it() {
    let world = World::start();
    let proxy = world.proxy();
    let token = world.stand("a");
    let mut writer = session(&proxy.address(), token);
    ok(&mut writer, WRITE);
    // A prepared transaction outlives all processes.
    world.postgres.sql("BEGIN; INSERT INTO ticks (note) VALUES ('prepared'); PREPARE TRANSACTION 'left'");
    let error = console(&proxy).rows("FENCE RESET scheduler TO 2 FORCE").unwrap_err();
    assert_eq!(error.code(), "LF006");
    assert!(error.message().contains("it was reset") && error.message().contains("left"), "{error:?}");
    assert_eq!(world.epoch(), "2/2!");
    world.postgres.sql("ROLLBACK PREPARED 'left'");
    ok(&mut session(&proxy.address(), 2), WRITE);
}
