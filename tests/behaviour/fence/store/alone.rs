//! Some statements terminate all other processes of the database. If the role may not terminate those of control
//! connections, the proxy closes these first, and none of their server processes remains.

use super::store_in;
use crate::fence::server::World;
use crate::support::frozen::Frozen;
use fencegate_fence::store::{Postgres, Store};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const LEFT: &str = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity \
    WHERE application_name = 'fencegate control' AND datname = current_database()";
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);
/// Time for a wrong result to arrive.
const MOMENT: Duration = Duration::from_millis(200);

/// Open connections, whose server processes are suspended.
struct Stopped {
    world: World,
    store: Postgres,
    frozen: Frozen,
}

impl Stopped {
    async fn new() -> Self {
        let world = World::new().await;
        let store = store_in(world.control_config(&world.control()));
        store.record_policy(&world.resource, 0).await.unwrap();
        store.beat().await.unwrap();
        let pids = world.ask(LEFT).await;
        assert_eq!(pids.split(' ').count(), 3);
        let frozen = Frozen::processes(pids.split(' '));
        Self { world, store, frozen }
    }

    fn keep_closed(&self) {
        self.store.keep_closed(Some(Instant::now() + LONG));
    }

    /// Checks that closing returns only after the server processes have ended.
    async fn are_waited_for(self, wait: bool) {
        let mut closing = std::pin::pin!(self.store.close(wait));
        assert!(timeout(MOMENT, closing.as_mut()).await.is_err(), "they have not ended");
        drop(self.frozen);
        closing.await;
        assert_eq!(self.world.ask(LEFT).await, "");
    }
}

/// The watcher closes the connections as soon as no session is left.
#[tokio::test]
async fn connections_that_the_watcher_is_closing_leave_no_process() {
    let stopped = Stopped::new().await;
    stopped.keep_closed();
    stopped.are_waited_for(false).await;
}

#[tokio::test]
async fn connections_that_were_closed_just_before_leave_no_process() {
    let stopped = Stopped::new().await;
    stopped.store.close(false).await;
    stopped.store.beat().await.unwrap();
    stopped.keep_closed();
    stopped.are_waited_for(true).await;
}
