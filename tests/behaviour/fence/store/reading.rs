//! A long reading of the catalog neither delays a drain nor makes it fail.

use super::store_in;
use crate::fence::server::World;
use crate::support::frozen::Frozen;
use fencegate_catalog::Fenced;
use fencegate_fence::session::Epoch;
use fencegate_fence::store::Store;
use std::sync::Arc;

/// The server process that reads the catalog.
const READER: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencegate control' \
    AND datname = current_database() AND query LIKE '%EXECUTE ways%'";
#[tokio::test]
async fn looks_do_not_wait_for_a_reading() {
    let world = World::new().await;
    let store = Arc::new(store_in(world.control_config(&world.control())));
    let reading = || {
        let (store, resource) = (store.clone(), world.resource.clone());
        async move { store.catalog(Fenced(&[resource]), None).await }
    };
    reading().await.unwrap();
    let frozen = Frozen::processes([world.ask(READER).await.as_str()]);
    let read = tokio::spawn(reading());
    for token in 1..100 {
        store.beat().await.unwrap();
        assert!(store.holders(&world.resource.name, Epoch { generation: 1, token }).await.unwrap().is_empty());
    }
    assert!(!read.is_finished());
    drop(frozen);
    read.await.unwrap().unwrap();
}
