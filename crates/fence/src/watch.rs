//! The watcher of one database: heartbeat, notifications, janitor, and closing after the last session.
//!
//! Owns a background task. The task starts with the first operation on a control connection, or with the first session if the
//! database has policies. It ends when no session has been registered for a moment.
//!
//! Must never terminate a process, except those of own sessions that a drain would terminate as well. The watcher only makes
//! advances faster and memory fresher. No guarantee depends on it.
//!
//! Functions here are not cancel-safe unless their comment says so: the task is aborted only together with its connections.

use super::database::Database;
use super::lease::Leased;
use super::session::Epoch;
use super::store::StoreError;
use crate::supervise::supervise;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval between heartbeats of the listening connection.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Interval between deletions of dead processes' rows.
const SWEEP: Duration = Duration::from_secs(10);
/// Interval after which everything is read again without a notification, because the server's notification queue may be full.
const UNANNOUNCED: Duration = Duration::from_secs(10);
/// Time for which the connections stay open after the last session.
const LINGER: Duration = Duration::from_millis(500);

/// Starts the watcher if it does not run.
pub(super) fn ensure(database: &Arc<Database>) {
    let mut watcher = database.watcher.lock();
    if watcher.is_none() {
        let background = &database.background;
        let (database, memory, mut has_run) = (Arc::downgrade(database), database.memory.clone(), false);
        *watcher = Some(supervise(background, "watch_fences", move || {
            if std::mem::replace(&mut has_run, true) {
                // Notifications may have arrived before the restart.
                memory.suppose_news();
            }
            watch(database.clone())
        }));
    }
}

async fn watch(database: Weak<Database>) {
    let mut swept = Instant::now();
    let mut beaten = Instant::now();
    let mut looked = Instant::now();
    let mut alone_since: Option<Instant> = None;
    let mut sessions = 0;
    let mut told = None;
    loop {
        let Some(current) = database.upgrade() else { return };
        if looked.elapsed() >= UNANNOUNCED {
            looked = Instant::now();
            current.memory.suppose_news();
        }
        attend(&current).await;
        if beaten.elapsed() >= HEARTBEAT {
            beaten = Instant::now();
            beat(&current, &mut told).await;
            current.check_policies().await;
            // The end of a lease is not announced.
            current.follow_leases(None).await;
            current.follow_elections_of_keys();
        }
        announce(&current).await;
        let before = std::mem::replace(&mut sessions, current.sessions.len());
        if swept.elapsed() >= SWEEP || sessions < before {
            swept = Instant::now();
            sweep(&current).await;
        }
        if sessions > 0 {
            alone_since = None;
        } else if alone_since.get_or_insert_with(Instant::now).elapsed() >= linger(&current) && retire(&current) {
            current.leased.send_replace(Leased::new());
            *current.queue_usage.lock() = None;
            current.follow_elections_of_keys();
            return current.close_connections(false).await;
        }
        let memory = current.memory.clone();
        drop(current);
        let pause = if alone_since.is_some() { LINGER } else { HEARTBEAT };
        tokio::select! {
            biased;
            () = memory.wake.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

fn linger(database: &Database) -> Duration {
    if database.vacating.lasts() { Duration::ZERO } else { LINGER }
}

/// Retires the watcher, unless a session has registered in the meantime. The next operation on a connection
/// starts a new one.
fn retire(database: &Database) -> bool {
    let mut watcher = database.watcher.lock();
    if database.sessions.is_empty() {
        *watcher = None;
    }
    watcher.is_none()
}

/// Detects a silently lost connection and opens it again. Logs each obstacle once, and none if the database has nothing to
/// fence.
async fn beat(database: &Arc<Database>, told: &mut Option<StoreError>) {
    let beaten = database.store().beat().await;
    *database.queue_usage.lock() = beaten.as_ref().ok().copied();
    let trouble = beaten.err();
    if let Some(error) = trouble.as_ref().filter(|error| told.as_ref() != Some(error) && !database.fences_nothing()) {
        tracing::warn!(database = database.name(), %error, "control_not_listening");
    }
    *told = trouble;
}

/// Announces the fences enforced here if they have changed or the connection is new. Never opens a connection: the next
/// heartbeat does.
async fn announce(database: &Arc<Database>) {
    if database.store.proxy_connection() == 0 {
        return;
    }
    if let Err(error) = database.announce().await {
        tracing::debug!(database = database.name(), %error, "what is enforced is not announced");
    }
}

/// Reads the subjects of the notifications again. Releases or terminates own sessions below the epochs, so that other proxies
/// need not wait for them.
async fn attend(database: &Arc<Database>) {
    let news = database.memory.take_news();
    if news.all || !news.leases.is_empty() {
        database.follow_leases((!news.all).then_some(&news.leases)).await;
    }
    let mut read: Vec<(String, Epoch)> = Vec::new();
    if news.all {
        match database.store().epochs_above_admissions().await {
            Ok(epochs) => {
                database.learn(&epochs);
                read.extend(epochs);
            }
            Err(error) => tracing::debug!(database = database.name(), %error, "epochs cannot be read"),
        }
    }
    let mut names = news.resources;
    if news.all {
        // Detects a missed reset. The number of these resources is bounded, unlike that of keys.
        names.extend(database.plain_resources());
    }
    if !names.is_empty() {
        match database.read_epochs(&names.iter().map(String::as_str).collect::<Vec<_>>()).await {
            Ok(epochs) => read.extend(epochs),
            Err(error) => tracing::debug!(database = database.name(), %error, "epochs cannot be read"),
        }
    }
    for (name, epoch) in read {
        if let Some(resource) = database.resource(&name)
            && let Err(error) = database.advance(&resource, epoch).spare_or_end_own().await
        {
            tracing::debug!(resource = name, %error, "sessions below the epoch are left to its drain");
        }
    }
}

async fn sweep(database: &Arc<Database>) {
    if let Err(error) = database.store().delete_dead(None).await {
        tracing::debug!(database = database.name(), %error, "dead processes' rows are left");
    }
}
