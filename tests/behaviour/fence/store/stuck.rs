//! Keys whose locks another session holds, and an epoch row that another transaction is creating, do not block other
//! keys.

use super::Notifications;
use crate::fence::keys::{family, seed};
use crate::fence::server::{World, connect};
use crate::support::identity::identity;
use crate::support::{Release, until};
use fencegate_fence::First;
use fencegate_fence::session::{Epoch, Identity};
use fencegate_fence::store::{Postgres, Store};
use fencegate_policy::Resource;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_postgres::Client;

const STUCK: [&str; 4] = ["1", "2", "3", "4"];
const SEVEN: Epoch = Epoch { generation: 1, token: 7 };

struct Keys {
    world: World,
    family: Arc<Resource>,
    store: Arc<Postgres>,
    /// A client whose process is `identity`.
    _client: Client,
    identity: Identity,
}

impl Keys {
    async fn new(release: Release) -> Keys {
        let world = World::new_on(release).await;
        let control = world.control_config(&world.control());
        let store = Arc::new(Postgres::new(control, "p".to_owned(), Arc::new(Notifications::default())));
        let client = connect(&world.config(&format!("{}_app", world.database))).await;
        let identity = identity(&client).await;
        Keys { world, family: family(), store, _client: client, identity }
    }

    fn key(&self, key: &str) -> Arc<Resource> {
        self.family.of_key(key).unwrap()
    }

    fn first(&self, key: &str) -> First {
        First { identity: self.identity.clone(), resource: self.key(key), token: 7, loaded: 0 }
    }

    /// Takes the locks of these keys with this function, as a superuser, whose process the control role may not
    /// terminate.
    async fn hold_locks(&self, function: &str) -> Client {
        let holder = connect(&self.world.config("postgres")).await;
        for key in STUCK {
            let lock = format!("SELECT {function}(hashtextextended('fencegate:{}', 0))", self.key(key).name);
            holder.batch_execute(&lock).await.unwrap();
        }
        holder
    }

    /// Returns when the operation has completed for another key during a single wait for a stuck key.
    async fn ends_during_a_wait(&self, operation: impl AsyncFn(String)) {
        let waits = "SELECT coalesce(string_agg(pid || ' ' || waitstart, ','), '') FROM pg_locks \
            WHERE locktype = 'advisory' AND NOT granted AND waitstart IS NOT NULL \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let mut number = 10;
        until("an operation on another key ends while a stuck key waits", async || {
            let before = self.world.ask(waits).await;
            number += 1;
            operation(number.to_string()).await;
            let after = self.world.ask(waits).await;
            before.split(',').any(|wait| !wait.is_empty() && after.contains(wait))
        })
        .await;
    }
}

#[tokio::test]
async fn a_first_token_does_not_wait_for_a_stuck_key() {
    first_token_beside_stuck_keys(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn a_first_token_does_not_wait_for_a_stuck_key_on_18() {
    first_token_beside_stuck_keys(Release::Eighteen).await;
}

async fn first_token_beside_stuck_keys(release: Release) {
    let keys = Keys::new(release).await;
    // With these locks, an Admit can continue, but a Publish waits.
    let _holder = keys.hold_locks("pg_advisory_lock_shared").await;
    let mut publishes = JoinSet::new();
    for key in STUCK {
        let (store, resource) = (keys.store.clone(), keys.key(key));
        publishes.spawn(async move {
            loop {
                store.publish(&resource, SEVEN, None, 0).await.unwrap_err();
            }
        });
    }
    keys.ends_during_a_wait(async |key| {
        let rows = keys.store.admit_first(&[&keys.first(&key)]).await.unwrap();
        assert_eq!(rows.len(), 1, "key {key}");
    })
    .await;
    let names: Vec<String> = STUCK.iter().map(|key| format!("'{}'", keys.key(key).name)).collect();
    let made = format!("SELECT count(*) FROM fencegate_state.epoch WHERE resource IN ({})", names.join(", "));
    assert_eq!(keys.world.ask(&made).await, "0", "the locks are held throughout");
}

#[tokio::test]
async fn an_admit_does_not_wait_for_a_stuck_key() {
    admit_beside_stuck_keys(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn an_admit_does_not_wait_for_a_stuck_key_on_18() {
    admit_beside_stuck_keys(Release::Eighteen).await;
}

async fn admit_beside_stuck_keys(release: Release) {
    let keys = Keys::new(release).await;
    seed(&keys.world, &keys.family, 1000).await;
    let _holder = keys.hold_locks("pg_advisory_lock").await;
    let mut admits = JoinSet::new();
    for key in STUCK {
        let (store, resource, identity) = (keys.store.clone(), keys.key(key), keys.identity.clone());
        admits.spawn(async move {
            loop {
                store.admit(&identity, &resource, 7, 0).await.unwrap_err();
            }
        });
    }
    keys.ends_during_a_wait(async |key| {
        let report = keys.store.admit(&keys.identity, &keys.key(&key), 7, 0).await.unwrap();
        assert!(report.admission.is_some(), "key {key}");
    })
    .await;
}

/// An operator creates the row by hand, without the resource's lock.
#[tokio::test]
async fn a_first_token_does_not_wait_for_a_row_being_created() {
    first_token_beside_a_new_row(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn a_first_token_does_not_wait_for_a_row_being_created_on_18() {
    first_token_beside_a_new_row(Release::Eighteen).await;
}

async fn first_token_beside_a_new_row(release: Release) {
    let keys = Keys::new(release).await;
    let operator = connect(&keys.world.config("postgres")).await;
    let insert = format!("INSERT INTO fencegate_state.epoch (resource, token) VALUES ('{}', 3)", keys.key("1").name);
    operator.batch_execute(&format!("BEGIN; {insert}")).await.unwrap();
    let firsts = ["1", "2", "3"].map(|key| keys.first(key));
    let rows = keys.store.admit_first(&firsts.each_ref()).await.unwrap();
    let mut admitted: Vec<String> = rows.into_iter().map(|row| row.resource).collect();
    admitted.sort();
    assert_eq!(admitted, [keys.key("2").name.clone(), keys.key("3").name.clone()], "key 1 is still being created");
    operator.batch_execute("COMMIT").await.unwrap();
}

/// The connection for first tokens also records policies and marks epochs.
#[tokio::test]
async fn a_first_token_does_not_wait_for_a_locked_row() {
    let keys = Keys::new(Release::Installed).await;
    seed(&keys.world, &keys.family, 2).await;
    keys.world.run("UPDATE fencegate_state.epoch SET policy_hash = 'old', drained = false").await;
    let operator = connect(&keys.world.config("postgres")).await;
    operator.batch_execute("BEGIN; SELECT FROM fencegate_state.epoch FOR UPDATE").await.unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND application_name = 'fencegate control' AND wait_event_type = 'Lock'";
    let mut blocked = JoinSet::new();
    for number in 0..3 {
        let (store, family, key) = (keys.store.clone(), keys.family.clone(), keys.key("1"));
        blocked.spawn(async move {
            match number {
                0 => store.record_policy(&family, 1).await.map(drop),
                1 => store.record_policy(&key, 1).await.map(drop),
                _ => store.mark(&key, SEVEN).await.map(drop),
            }
        });
    }
    until("a control connection waits for the row", async || keys.world.ask(waits).await != "0").await;
    let rows = keys.store.admit_first(&[&keys.first("10")]).await.unwrap();
    assert_eq!(rows.len(), 1);
    while let Some(outcome) = blocked.join_next().await {
        outcome.unwrap().unwrap_err();
    }
    operator.batch_execute("ROLLBACK").await.unwrap();
    keys.store.record_policy(&keys.family, 1).await.unwrap();
}
