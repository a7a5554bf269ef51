//! The tasks that keep the catalog of a database current while no statement waits for it.
//!
//! Owns how often they read and announce: any role can cause both. Must never keep the database alive, or open a
//! connection to one in which this proxy has no sessions.

use super::SharedDatabase;
use fencegate_fence::supervise::supervise;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Minimum interval between readings for which no statement waits. Without it, any role could cause readings by
/// announcing changes.
const PAUSE: Duration = Duration::from_millis(250);

/// Minimum pause after such a reading, as a multiple of its duration. Readings then use at most a fifth of a server
/// core.
const PAUSE_OF_READING: u32 = 4;

/// The catalog is read again after this time even without an announcement: the proxy that should have sent one may have
/// been killed, or the change may have bypassed the proxies.
const UNANNOUNCED: Duration = Duration::from_secs(10);

impl SharedDatabase {
    /// Keeps the catalog current for as long as the database is known.
    pub fn follow(self: &Arc<Self>) {
        let [changed, read, announced] = [(); 3].map(|()| Arc::downgrade(self));
        let (due, harmless) = (self.reading_due.clone(), self.harmless_change.clone());
        let background = self.fence.background();
        self.keep_task(supervise(background, "receive_catalog_changes", move || receive_changes(changed.clone())));
        self.keep_task(supervise(background, "read_catalog", move || read_now_and_then(read.clone(), due.clone())));
        let announce = move || announce_harmless_changes(announced.clone(), harmless.clone());
        self.keep_task(supervise(background, "announce_catalog_changes", announce));
    }
}

/// Records changes that others announce; any role can send an announcement. Also assumes a change at intervals, in case
/// an announcement was lost; writes do not wait for that reading. Never waits for anything else.
pub(super) async fn receive_changes(database: Weak<SharedDatabase>) {
    // After a restart, an announcement may have been missed.
    if let Some(database) = database.upgrade() {
        database.forget_catalog();
        database.read_soon();
    }
    while let Some(announced) = database.upgrade().map(|it| it.fence.catalog_announced()) {
        let announced = timeout(UNANNOUNCED, announced).await;
        let Some(database) = database.upgrade() else { return };
        match announced {
            Ok(()) => database.forget_catalog(),
            // A connection that begins to listen reads the catalog anyway.
            Err(_) if database.fence.listener() == 0 => continue,
            Err(_) => database.suppose_change(),
        }
        database.read_soon();
    }
}

/// Reads the catalog after changes for which no statement has waited.
async fn read_now_and_then(database: Weak<SharedDatabase>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        let since = Instant::now();
        // No connection is opened to a database in which this proxy has no sessions: it may be about to be dropped.
        if let Some(database) = database.upgrade().filter(|it| it.fence.has_sessions()) {
            database.catch_up().await;
        }
        tokio::time::sleep(PAUSE.max(since.elapsed() * PAUSE_OF_READING)).await;
    }
}

/// Changes unrelated to fenced tables may concern them together with definitions made elsewhere. Announces them to the
/// other proxies and reads the catalog, at most once per interval: no statement waits for it.
async fn announce_harmless_changes(database: Weak<SharedDatabase>, harmless: Arc<Notify>) {
    loop {
        harmless.notified().await;
        if let Some(database) = database.upgrade().filter(|it| it.fence.has_sessions()) {
            database.fence.announce_catalog().await;
            database.read_soon();
        }
        tokio::time::sleep(PAUSE).await;
    }
}
