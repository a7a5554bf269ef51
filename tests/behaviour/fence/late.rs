//! Queries that arrive long after their control connections were closed do not change newer state.

use crate::fence::held::Held;
use crate::fence::keys::{family, seed};
use crate::fence::reason;
use crate::fence::server::{World, metrics, resource};
use fencegate_fence::background::Background;
use fencegate_fence::session::{Activity, Epoch, FULL};
use fencegate_fence::{Database, ResetError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A proxy whose messages to the server may be held.
fn proxy_behind(world: &World, held: &Held) -> Arc<Database> {
    let control = held.control_config(world);
    let proxy = Database::new(
        world.database.clone(),
        control,
        "behind",
        fencegate_fence::Authority::new(Background::current()),
        metrics(),
        Background::current(),
    );
    proxy.put_in_force(std::slice::from_ref(&world.resource));
    proxy
}

fn slice(resource: &Arc<fencegate_policy::Resource>) -> &[Arc<fencegate_policy::Resource>] {
    std::slice::from_ref(resource)
}

#[tokio::test]
async fn a_late_removal_keeps_later_admissions() {
    let (world, family) = (World::new().await, family());
    seed(&world, &family, FULL + 1).await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (old, new) = (world.session(&behind).await, world.session(&other).await);
    for key in 1..=FULL {
        old.write_key(&family, key, Activity::Idle).await;
    }
    held.hold("EXECUTE delete(");
    let refused = reason(old.admit(&family.of_key("1025").unwrap(), 7).await);
    assert!(refused.contains("did not answer"), "{refused}");
    // A released admission is needed again.
    old.client.batch_execute("BEGIN").await.unwrap();
    old.write_key(&family, 1, Activity::Waiting).await;
    held.is_holding().await;
    held.arrives(&format!("DELETE {}", FULL - 1)).await;
    new.admit(&family.of_key("1").unwrap(), 8).await.unwrap();
    assert!(!world.lives(&old).await, "it would commit a write of token 7 after token 8");
}

#[tokio::test]
async fn a_late_release_keeps_later_admissions() {
    let world = World::new().await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (old, new) = (world.session(&behind).await, world.session(&other).await);
    old.admit(&world.resource, 5).await.unwrap();
    world.run("UPDATE fencegate_state.epoch SET token = 6").await;
    let _ = old.fence.revoke("scheduler", Epoch { generation: 1, token: 6 });
    held.hold("EXECUTE delete(");
    behind.release(&old.fence).await;
    held.is_holding().await;
    behind.release(&old.fence).await;
    assert_eq!(world.admissions(&old).await, "0");
    // The operator prunes the epoch, and the session's token becomes the first of the next epoch.
    assert_eq!(world.ask("SELECT fencegate.prune('0', 'scheduler')").await, "1");
    old.admit(&world.resource, 5).await.unwrap();
    old.write(5).await;
    held.arrives("DELETE 0").await;
    new.admit(&world.resource, 6).await.unwrap();
    assert!(!world.lives(&old).await);
}

#[tokio::test]
async fn older_policies_do_not_replace_newer_ones() {
    let world = World::new().await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (first, second) = (world.session(&behind).await, world.session(&other).await);
    first.admit(&world.resource, 1).await.unwrap();
    let (older, newer) = (resource("scheduler", "b"), resource("scheduler", "c"));
    held.hold("SET policy_hash = 'b'");
    assert!(behind.apply_policy(slice(&older)).await.unwrap_err().to_string().contains("did not answer"));
    held.is_holding().await;
    for proxy in [&behind, &other] {
        proxy.apply_policy(slice(&newer)).await.unwrap();
    }
    held.arrives("UPDATE 0").await;
    assert_eq!(world.ask("SELECT policy_hash FROM fencegate_state.epoch").await, "c");
    for session in [&first, &second] {
        session.admit(&newer, 2).await.unwrap();
    }
}

/// If older policies come back, the proxy that has loaded newer ones puts these in force again. A proxy with older
/// policies waits.
#[tokio::test]
async fn newer_policies_replace_older_ones_everywhere() {
    let world = World::new().await;
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    let (older, newer) = (world.resource.clone(), resource("scheduler", "b"));
    one.apply_policy(slice(&older)).await.unwrap();
    two.apply_policy(slice(&newer)).await.unwrap();
    let (first, second) = (world.session(&one).await, world.session(&two).await);
    second.admit(&newer, 1).await.unwrap();
    let recorded = "SELECT policy_hash FROM fencegate_state.epoch";
    let as_before = "UPDATE fencegate_state.epoch SET policy_hash = 'a', policy_loaded = 1";
    world.run(as_before).await;
    second.admit(&newer, 2).await.unwrap();
    assert!(reason(first.admit(&older, 2).await).contains("reload"));
    assert!(reason(one.overtake(&older, 3).await).contains("policies"));
    assert_eq!(one.reset(&older, 5, "operator", true).await, Err(ResetError::OtherPolicies));
    assert_eq!(world.ask(recorded).await, "b");
    world.run(as_before).await;
    two.overtake(&newer, 4).await.unwrap();
    assert_eq!(world.ask(recorded).await, "b");
    world.run(as_before).await;
    assert_eq!(two.reset(&newer, 3, "operator", true).await.unwrap().after, Epoch { generation: 2, token: 3 });
    // Policies that are loaded again are new. Policies loaded earlier stay older, however late they are recorded.
    world.run("UPDATE fencegate_state.epoch SET policy_loaded = 1").await;
    two.apply_policy(slice(&newer)).await.unwrap();
    let a_minute_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    one.apply_policy_of(slice(&older), a_minute_ago).await.unwrap();
    assert_eq!(world.ask(recorded).await, "b");
    // A clock that was ahead and was corrected does not prevent later policies.
    world.run("UPDATE fencegate_state.epoch SET policy_loaded = 9000000000000000").await;
    one.apply_policy(slice(&older)).await.unwrap();
    assert_eq!(world.ask(recorded).await, "a");
    first.admit(&older, 7).await.unwrap();
}

#[tokio::test]
async fn a_late_reset_does_not_change_a_later_token() {
    let world = World::new().await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (stays, new) = (world.session(&behind).await, world.session(&other).await);
    new.admit(&world.resource, 100).await.unwrap();
    held.hold("INSERT INTO fencegate_state.reset");
    let reset = behind.reset(&world.resource, 50, "operator", true).await;
    assert!(matches!(reset, Err(ResetError::Store(_))), "{reset:?}");
    held.is_holding().await;
    new.admit(&world.resource, 120).await.unwrap();
    held.arrives("SELECT 0").await;
    assert_eq!(world.epoch().await, "(1,120,t)");
    assert_eq!(behind.reset(&world.resource, 50, "operator", true).await.unwrap().after.generation, 2);
    stays.admit(&world.resource, 50).await.unwrap();
}

#[tokio::test]
async fn a_late_publish_does_not_raise_a_pruned_epoch() {
    let world = World::new().await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (late, new) = (world.session(&behind).await, world.session(&other).await);
    world
        .run("INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash) VALUES ('scheduler', 5, true, 'a')")
        .await;
    held.hold("EXECUTE raise(");
    assert!(reason(late.admit(&world.resource, 7).await).contains("did not answer"));
    held.is_holding().await;
    assert_eq!(world.ask("SELECT fencegate.prune('0', 'scheduler')").await, "1");
    new.admit(&world.resource, 3).await.unwrap();
    held.arrives("INSERT 0 0").await;
    assert_eq!(world.epoch().await, "(1,3,t)");
}

/// A late Admit creates a row that no session uses. The next token drains it like any other.
#[tokio::test]
async fn a_late_admit_admits_only_to_the_token_in_force() {
    for token in [5, 6] {
        let world = World::new().await;
        let held = Held::new(&world);
        let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
        let (late, new) = (world.session(&behind).await, world.session(&other).await);
        new.admit(&world.resource, 5).await.unwrap();
        held.hold("EXECUTE admit(");
        assert!(reason(late.admit(&world.resource, 5).await).contains("did not answer"));
        held.is_holding().await;
        new.admit(&world.resource, token).await.unwrap();
        held.arrives(if token == 5 { "INSERT 0 1" } else { "INSERT 0 0" }).await;
        assert!(!late.fence.begin_write([("scheduler", 5)]));
        new.admit(&world.resource, 7).await.unwrap();
        assert_eq!(world.admissions(&late).await, "0");
    }
}

#[tokio::test]
async fn a_mark_counts_under_the_policies_of_its_drain_only() {
    let world = World::new().await;
    let held = Held::new(&world);
    let (behind, other) = (proxy_behind(&world, &held), world.proxy("p2"));
    let (late, new) = (world.session(&behind).await, world.session(&other).await);
    held.hold("EXECUTE mark(");
    assert!(reason(late.admit(&world.resource, 1).await).contains("did not answer"));
    held.is_holding().await;
    let newer = resource("scheduler", "b");
    other.apply_policy(slice(&newer)).await.unwrap();
    held.arrives("UPDATE 0").await;
    assert_eq!(world.epoch().await, "(1,1,f)");
    new.admit(&newer, 1).await.unwrap();
}
