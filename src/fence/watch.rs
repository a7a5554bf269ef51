//! The watcher of one database: heartbeat, notifications, janitor, and closing after the last session.
//!
//! Owns a background task that lives from the first need of a control connection, or the first session where something may be
//! fenced, until no session has been registered for a moment. Must never terminate a process but those of own sessions that a
//! drain would end as well: it only makes advances faster and memory fresher, and everything holds without it.
//!
//! Not cancel-safe where nothing else is said: the watcher's task is aborted only together with the connections that it uses.

use super::database::Database;
use super::lease::Leased;
use super::session::Epoch;
use super::store::StoreError;
use crate::supervise::supervise;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two signs of life of the listening connection.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Between two deletions of dead processes' rows.
const SWEEP: Duration = Duration::from_secs(10);
/// Everything is read again after this time without a notification too: the server's queue of notifications may be full.
const UNANNOUNCED: Duration = Duration::from_secs(10);
/// How long the connections stay open after the last session.
const LINGER: Duration = Duration::from_millis(500);

/// Starts the watcher, unless it runs.
pub(super) fn ensure(database: &Arc<Database>) {
    let mut watcher = database.watcher.lock();
    if watcher.is_none() {
        let (database, memory, mut has_run) = (Arc::downgrade(database), database.memory.clone(), false);
        *watcher = Some(supervise("watch_fences", move || {
            if std::mem::replace(&mut has_run, true) {
                // Notifications may have come meanwhile.
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
            // Nobody announces that a lease runs out.
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

/// Retires the watcher, unless a session has registered meanwhile: the next need for a connection
/// starts a new one.
fn retire(database: &Database) -> bool {
    let mut watcher = database.watcher.lock();
    if database.sessions.is_empty() {
        *watcher = None;
    }
    watcher.is_none()
}

/// A connection that is lost in silence is found out here, and opened again. What is in the way is told once, and not at all
/// where there is nothing to guard.
async fn beat(database: &Arc<Database>, told: &mut Option<StoreError>) {
    let beaten = database.store().beat().await;
    *database.queue_usage.lock() = beaten.as_ref().ok().copied();
    let trouble = beaten.err();
    if let Some(error) = trouble.as_ref().filter(|error| told.as_ref() != Some(error) && !database.fences_nothing()) {
        tracing::warn!(database = database.name(), %error, "the control connection does not listen");
    }
    *told = trouble;
}

/// Says which fences are enforced here, where that has changed or the connection is a new one. Opens none: the next beat does.
async fn announce(database: &Arc<Database>) {
    if database.store.proxy_connection() == 0 {
        return;
    }
    if let Err(error) = database.announce().await {
        tracing::debug!(database = database.name(), %error, "what is enforced is not announced");
    }
}

/// Reads again what the notifications are about; own sessions below it give way, so that no other proxy waits for them.
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
        // A bounded number, unlike keys: a reset that was missed is found out.
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
