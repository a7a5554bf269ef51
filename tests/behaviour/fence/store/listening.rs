//! Any role can keep the connection that listens busy: takeovers go on without it.

use super::Heard;
use crate::fence::server::World;
use crate::support::frozen::Frozen;
use fencegate::fence::session::Epoch;
use fencegate::fence::store::{Postgres, Store};
use std::sync::Arc;

/// The server process of the connection that listens, after a beat.
const LISTENER: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control' \
    AND datname = current_database() AND query LIKE '%pg_notification_queue_usage%'";

#[tokio::test]
async fn takeovers_do_not_wait_for_notifications() {
    let world = World::new().await;
    let control = world.control_config(&world.control());
    let store = Postgres::new(control, "p".to_owned(), Arc::new(Heard::default()));
    store.beat().await.unwrap();
    let _frozen = Frozen::processes([world.ask(LISTENER).await.as_str()]);
    let epoch = Epoch { generation: 1, token: 1 };
    assert_eq!(store.publish(&world.resource, epoch, None, 0).await.unwrap(), Some(epoch));
    assert!(store.holders(&world.resource.name, epoch).await.unwrap().is_empty());
    store.mark(&world.resource, epoch).await.unwrap();
    store.announce_enforced(&[]).await.unwrap();
    store.announce_catalog().await.unwrap();
    store.leave().await.unwrap();
}
