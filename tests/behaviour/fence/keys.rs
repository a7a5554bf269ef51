//! Keyed resources: the state of keys is bounded, and releasing it loses no protection.

use crate::fence::reason;
use crate::fence::server::{Session, World, connect};
use crate::support::until;
use fencegate_fence::session::{Activity, FULL, MOST_AT_ONCE};
use fencegate_policy::{Resource, load};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const POLICIES: &str = "version: 1\nresources:\n  - name: shard_of/{shard}/x\n    \
                        tables: [{name: public.ticks, key: n, operations: [insert]}]\n";

/// The keyed resource of the policies.
pub fn family() -> Arc<Resource> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("fencegate-keys-{}-{number}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("keys.yaml"), POLICIES).unwrap();
    let policies = load(&directory);
    std::fs::remove_dir_all(&directory).unwrap();
    policies.unwrap().resources[0].clone()
}

/// Creates epochs for this number of keys, under token 7.
pub async fn seed(world: &World, family: &Resource, keys: usize) {
    world
        .run(&format!(
            "INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash) \
             SELECT 'shard_of/' || n || '/x', 7, true, '{}' FROM generate_series(1, {keys}) n",
            family.fingerprint
        ))
        .await;
}

impl Session {
    /// The steps of a relay for a write to the key: held back until admitted, busy while the statement runs.
    pub async fn write_key(&self, family: &Resource, key: usize, after: Activity) {
        let resource = family.of_key(&key.to_string()).unwrap();
        self.admit(&resource, 7).await.unwrap();
        assert!(self.fence.begin_write([(resource.name.as_str(), 7)]));
        self.client.batch_execute(&format!("INSERT INTO ticks VALUES ({key}, 7)")).await.unwrap();
        self.fence.set_activity(after);
    }
}

#[tokio::test]
async fn an_idle_session_releases_admissions_before_reaching_the_limit() {
    const KEYS: usize = FULL + 100;
    let (world, family) = (World::new().await, family());
    let (one, two) = (world.proxy("p1"), world.proxy("p2"));
    seed(&world, &family, KEYS).await;
    let (old, new) = (world.session(&one).await, world.session(&two).await);
    for key in 1..=KEYS {
        old.write_key(&family, key, Activity::Idle).await;
    }
    assert_eq!(world.admissions(&old).await, "100", "those admitted after it had too many");
    assert!(!old.fence.begin_write([("shard_of/1/x", 7)]), "revoked");
    // A key that was released before, and one that its proxy releases now: the proxy can parse the key's name.
    one.put_in_force(std::slice::from_ref(&family));
    for key in ["1", &KEYS.to_string()] {
        let resource = family.of_key(key).unwrap();
        world.publish(&resource.name, 8).await;
        let left = format!(
            "SELECT count(*) FROM fencegate_state.admission WHERE pid = {} AND resource = '{}'",
            old.pid(),
            resource.name
        );
        until("its own proxy releases it", async || world.ask(&left).await == "0").await;
        new.admit(&resource, 8).await.unwrap();
        assert!(!old.fence.begin_write([(resource.name.as_str(), 7)]));
        assert!(world.lives(&old).await, "{key}");
        assert_eq!(one.cut_off_by(&old.fence).await, None, "a released admission terminates no session");
    }
    old.write_key(&family, 2, Activity::Idle).await;
}

#[tokio::test]
async fn a_session_with_uncommitted_work_releases_no_admissions() {
    const KEYS: usize = FULL + 10;
    let (world, family) = (World::new().await, family());
    let proxy = world.proxy("p1");
    seed(&world, &family, KEYS).await;
    let (old, new) = (world.session(&proxy).await, world.session(&proxy).await);
    old.client.batch_execute("BEGIN").await.unwrap();
    for key in 1..=KEYS {
        old.write_key(&family, key, Activity::Waiting).await;
    }
    let admissions = world.admissions(&old).await;
    new.admit(&family.of_key("1").unwrap(), 8).await.unwrap();
    assert!(old.client.batch_execute("COMMIT").await.is_err(), "it would commit a write of token 7 after token 8");
    assert_eq!(world.ask("SELECT count(*) FROM ticks").await, "0");
    assert_eq!(admissions, KEYS.to_string());
}

#[tokio::test]
async fn admissions_of_a_transaction_are_limited() {
    let (world, family) = (World::new().await, family());
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    seed(&world, &family, 1).await;
    let name = |number: usize| format!("elsewhere/{number}");
    let seven = fencegate_fence::session::Epoch { generation: 1, token: 7 };
    for number in 0..MOST_AT_ONCE {
        assert!(session.fence.record_admission(&name(number), seven, 0));
        assert!(session.fence.begin_write([(name(number).as_str(), 7)]));
    }
    session.fence.set_activity(Activity::Waiting);
    let key = family.of_key("1").unwrap();
    assert!(reason(session.admit(&key, 7).await).contains("at most 10000 resources"));
    session.fence.set_activity(Activity::Idle);
    session.admit(&key, 7).await.unwrap();
}

#[tokio::test]
async fn the_policies_are_recorded_for_all_keys() {
    let (world, family) = (World::new().await, family());
    let proxy = world.proxy("p1");
    let _session = world.session(&proxy).await;
    const KEYS: usize = 25_000;
    seed(&world, &family, KEYS).await;
    // The underscore is not a wildcard, and the ends must not overlap.
    world
        .run(
            "UPDATE fencegate_state.epoch SET policy_hash = 'old'; INSERT INTO fencegate_state.epoch (resource, token, policy_hash) \
             SELECT name, 7, 'other' FROM unnest(ARRAY['shardXof/1/x', 'shard_of/1/y', 'shard_of/x', 'scheduler']) name",
        )
        .await;
    proxy.apply_policy(std::slice::from_ref(&family)).await.unwrap();
    let recorded = format!("SELECT count(*) FROM fencegate_state.epoch WHERE policy_hash = '{}'", family.fingerprint);
    assert_eq!(world.ask(&recorded).await, KEYS.to_string());
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.epoch WHERE policy_hash = 'other'").await, "4");
    let versions = "SELECT count(DISTINCT xmin::text) || ' ' || max(xmin::text) FROM fencegate_state.epoch";
    let before = world.ask(versions).await;
    proxy.apply_policy(std::slice::from_ref(&family)).await.unwrap();
    assert_eq!(world.ask(versions).await, before, "rows without a difference are not written");
}

#[tokio::test]
async fn the_fences_of_the_latest_keys_are_shown() {
    let (world, family) = (World::new().await, family());
    let proxy = world.proxy("p1");
    seed(&world, &family, 1500).await;
    let session = world.session(&proxy).await;
    session.admit(&family.of_key("3").unwrap(), 8).await.unwrap();
    let fences = proxy.fences(&[family.clone(), world.resource.clone()]).await.unwrap();
    assert!(fences.plain.is_empty());
    assert_eq!((fences.of_keys.len(), fences.left_out), (1000, 500));
    let (name, fence) = &fences.of_keys[0];
    assert_eq!((name.as_str(), fence.epoch.token, fence.drained, fence.admissions), ("shard_of/3/x", 8, true, 1));
    let reset = proxy.reset(&family.called("shard_of/3/x").unwrap(), 5, "operator", true).await.unwrap();
    assert_eq!((reset.after.generation, reset.after.token), (2, 5));
}

/// A token raised while policies are recorded does not keep the earlier policies.
#[tokio::test]
async fn policies_are_recorded_for_a_key_whose_token_is_being_raised() {
    let (world, family) = (World::new().await, family());
    let proxy = world.proxy("p1");
    seed(&world, &family, 3).await;
    world.run("UPDATE fencegate_state.epoch SET policy_hash = 'before'").await;
    let raising = connect(&world.config("postgres")).await;
    raising
        .batch_execute("BEGIN; UPDATE fencegate_state.epoch SET token = 8 WHERE resource = 'shard_of/2/x'")
        .await
        .unwrap();
    let raise = async {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("the record waits", async || world.ask(waiting).await != "0").await;
        raising.batch_execute("COMMIT").await.unwrap();
    };
    let (applied, ()) = tokio::join!(proxy.apply_policy(std::slice::from_ref(&family)), raise);
    applied.unwrap();
    let recorded = format!("SELECT count(*) FROM fencegate_state.epoch WHERE policy_hash = '{}'", family.fingerprint);
    assert_eq!(world.ask(&recorded).await, "3");
}
