//! Any role can keep the listening connection busy. Takeovers do not wait for it.

use super::store_in;
use crate::fence::held::Held;
use crate::fence::server::World;
use crate::support::frozen::Frozen;
use fencegate_fence::session::Epoch;
use fencegate_fence::store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The server process of the listening connection, after a beat.
const LISTENER: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control' \
    AND datname = current_database() AND query LIKE '%pg_notification_queue_usage%'";

#[tokio::test]
async fn takeovers_do_not_wait_for_notifications() {
    let world = World::new().await;
    let store = store_in(world.control_config(&world.control()));
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

/// LISTEN scans the server's notification queue, which may take long. A database that is about to be dropped does not
/// wait for it.
#[tokio::test]
async fn a_listen_under_way_does_not_delay_the_closing() {
    let world = World::new().await;
    let link = Held::new(&world);
    let store = Arc::new(store_in(link.control_config(&world)));
    link.hold("LISTEN fencegate");
    let beating = store.clone();
    let beat = tokio::spawn(async move { beating.beat().await });
    link.is_holding().await;
    // Shorter than the limit of LISTEN.
    timeout(Duration::from_secs(20), store.close(false)).await.expect("it is closed");
    assert!(beat.await.unwrap().is_err());
}
