//! Pruning the epochs of unused keys loses no protection.

use crate::fence::keys::{family, seed};
use crate::fence::server::{World, connect};
use crate::fence::stale_below;
use crate::support::until;
use fencegate_fence::session::{Activity, Token};

const EPOCHS: &str =
    "SELECT coalesce(string_agg(resource || '=' || token, ' ' ORDER BY resource), '') FROM fencegate_state.epoch";

/// A world with the epochs of keys 1 to `keys`, which were last raised two days ago.
async fn aged(keys: usize) -> (World, std::sync::Arc<fencegate_policy::Resource>) {
    let (world, family) = (World::new().await, family());
    seed(&world, &family, keys).await;
    world.run("UPDATE fencegate_state.epoch SET updated = updated - interval '2 days'").await;
    (world, family)
}

/// Calls `fencegate.prune` as the control role.
async fn prune(world: &World, not_raised_for: &str, starting_with: &str) -> String {
    let client = connect(&world.config(&world.control())).await;
    let call = format!("SELECT fencegate.prune('{not_raised_for}', '{starting_with}')");
    crate::support::identity::one(&client, &call).await[0].clone()
}

#[tokio::test]
async fn an_old_unused_epoch_with_a_matching_name_is_forgotten() {
    let (world, family) = aged(2500).await;
    world.run("INSERT INTO fencegate_state.epoch (resource, token, updated) VALUES ('scheduler', 7, '2000-01-01'), ('shardXof/1/x', 7, '2000-01-01')").await;
    let proxy = world.proxy("p1");
    let (reader, writer) = (world.session(&proxy).await, world.session(&proxy).await);
    writer.admit(&family.of_key("1").unwrap(), 7).await.unwrap();
    reader.admit(&family.of_key("2").unwrap(), 8).await.unwrap();
    drop(reader);
    until("the reader's admission is released", async || {
        world.ask("SELECT count(*) FROM fencegate_state.admission").await == "1"
    })
    .await;
    assert_eq!(prune(&world, "3 days", "shard_of/").await, "0");
    let mut batches = Vec::new();
    for _ in 0..4 {
        batches.push(prune(&world, "1 day", "shard_of/").await);
    }
    assert_eq!(batches, ["1000", "1000", "498", "0"]);
    assert_eq!(world.ask(EPOCHS).await, "scheduler=7 shardXof/1/x=7 shard_of/1/x=7 shard_of/2/x=8");
    assert!(world.lives(&writer).await && writer.fence.begin_write([("shard_of/1/x", 7)]));
}

#[tokio::test]
async fn an_epoch_with_a_pending_admission_or_raise_is_in_use() {
    let (world, family) = aged(3).await;
    let (sharing, raising) = (connect(&world.config("postgres")).await, connect(&world.config("postgres")).await);
    let key = |name: &str| format!("hashtextextended('fencegate:{name}', 0)");
    let shared = format!("BEGIN; SELECT pg_advisory_xact_lock_shared({})", key("shard_of/1/x"));
    sharing.batch_execute(&shared).await.unwrap();
    raising
        .batch_execute("BEGIN; SELECT FROM fencegate_state.epoch WHERE resource = 'shard_of/2/x' FOR UPDATE")
        .await
        .unwrap();
    assert_eq!(prune(&world, "1 day", "").await, "1");
    assert_eq!(world.ask(EPOCHS).await, "shard_of/1/x=7 shard_of/2/x=7");
    drop(family);
}

/// An admission that commits while the function runs must be visible.
#[tokio::test]
async fn an_older_snapshot_is_refused() {
    let (world, _) = aged(1).await;
    let client = connect(&world.config(&world.control())).await;
    let call = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT fencegate.prune('1 day', '')";
    let error = client.batch_execute(call).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("25001"));
    assert_eq!(world.ask(EPOCHS).await, "shard_of/1/x=7");
}

#[tokio::test]
async fn an_admission_during_pruning_is_noticed() {
    let (world, family) = aged(2).await;
    let proxy = world.proxy("p1");
    let session = world.session(&proxy).await;
    // An admission between the query for all keys and the check of this key.
    let gate = connect(&world.config("postgres")).await;
    world
        .run(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END'; \
             CREATE TRIGGER wait BEFORE DELETE ON fencegate_state.epoch FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await;
    gate.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let admitted = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 1";
        until("the prune waits", async || world.ask(waiting).await != "0").await;
        session.admit(&family.of_key("2").unwrap(), 7).await.unwrap();
        gate.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    };
    let (pruned, ()) = tokio::join!(prune(&world, "1 day", ""), admitted);
    assert_eq!((pruned.as_str(), world.ask(EPOCHS).await.as_str()), ("1", "shard_of/2/x=7"));
}

#[tokio::test]
async fn other_roles_may_not_prune() {
    let (world, _) = aged(1).await;
    let client = connect(&world.config(&format!("{}_app", world.database))).await;
    let error = client.batch_execute("SELECT fencegate.prune('1 day', '')").await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("42501"));
}

/// Without an election, the next session's token is accepted, even a stale one. The next higher token ends that session
/// as usual.
#[tokio::test]
async fn a_forgotten_token_no_longer_rejects_writes() {
    let (world, family) = aged(1).await;
    let proxy = world.proxy("p1");
    let key = family.of_key("1").unwrap();
    let (zombie, leader) = (world.session(&proxy).await, world.session(&proxy).await);
    let old: Token = 6;
    // The proxy answers from memory once it listens.
    while proxy.known_stale(&key.name, old).is_none() {
        stale_below(zombie.admit(&key, old).await, 7);
    }
    assert_eq!(prune(&world, "1 day", "shard_of/").await, "1");
    // The proxy is notified and reads the row again, instead of waiting for its memory to expire.
    until("the proxy has read the row again", async || !proxy.is_current(&key, 7)).await;
    assert_eq!(proxy.known_stale(&key.name, old), None);
    zombie.admit(&key, old).await.unwrap();
    assert_eq!(world.ask(EPOCHS).await, "shard_of/1/x=6");
    assert!(zombie.fence.begin_write([(key.name.as_str(), old)]));
    zombie.client.batch_execute("BEGIN; INSERT INTO ticks VALUES (1)").await.unwrap();
    zombie.fence.set_activity(Activity::Waiting);
    leader.admit(&key, 7).await.unwrap();
    assert!(!world.lives(&zombie).await);
    assert_eq!(world.ask(EPOCHS).await, "shard_of/1/x=7");
}
