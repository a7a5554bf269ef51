//! The watcher of one database: heartbeat, notifications, janitor, and closing after the last session.
//!
//! Owns a background task. The task starts with the first operation on a control connection, or with the first session if the
//! database has policies. It ends when no session has been registered for a moment.
//!
//! Must never terminate a process, except those of own sessions that a drain would terminate as well. The watcher only makes
//! advances faster and memory fresher. No guarantee depends on it.
//!
//! Functions here are not cancel-safe unless their comment says so: the task is aborted only together with its connections.

use super::advance::spare_or_end_own;
use super::background::Background;
use super::database::Database;
use super::enforcement;
use super::issuer::{self, follow_elections_of_keys};
use super::memory::Memory;
use super::session::Epoch;
use super::step::Context;
use super::store::StoreError;
use super::supervise::supervise;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// Interval between heartbeats of the listening connection.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Interval between deletions of dead processes' rows.
const SWEEP: Duration = Duration::from_secs(10);
/// Interval after which everything is read again without a notification, because the server's notification queue may be full.
const UNANNOUNCED: Duration = Duration::from_secs(10);
/// Time for which the connections stay open after the last session.
const LINGER: Duration = Duration::from_millis(500);

/// Starts the watcher.
pub(super) fn start(background: &Background, memory: &Arc<Memory>, database: Weak<Database>) -> AbortHandle {
    let (memory, mut has_run) = (memory.clone(), false);
    supervise(background, "watch_fences", move || {
        if std::mem::replace(&mut has_run, true) {
            // Notifications may have arrived before the restart.
            memory.request_full_read();
        }
        watch(database.clone())
    })
}

async fn watch(database: Weak<Database>) {
    let mut swept = Instant::now();
    let mut beaten = Instant::now();
    let mut looked = Instant::now();
    let mut alone_since: Option<Instant> = None;
    let mut reported = None;
    loop {
        let Some(current) = database.upgrade() else { return };
        let context = current.context();
        if looked.elapsed() >= UNANNOUNCED {
            looked = Instant::now();
            context.memory.request_full_read();
        }
        attend(context).await;
        if beaten.elapsed() >= HEARTBEAT {
            beaten = Instant::now();
            beat(&current, &mut reported).await;
            enforcement::check(context).await;
            // The end of a lease is not announced.
            issuer::follow(context, None).await;
            follow_elections_of_keys(context);
        }
        announce(context).await;
        if context.sessions.take_left_rows() || swept.elapsed() >= SWEEP {
            swept = Instant::now();
            sweep(context).await;
        }
        if !context.sessions.is_empty() {
            alone_since = None;
        } else if alone_since.get_or_insert_with(Instant::now).elapsed() >= linger(&current)
            && context.watcher.retire_unless(|| !context.sessions.is_empty())
        {
            context.watcher.forget();
            follow_elections_of_keys(context);
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

/// Detects a silently lost connection and opens it again. Logs each obstacle once, and none if the database has nothing to
/// fence.
async fn beat(database: &Database, reported: &mut Option<StoreError>) {
    let context = database.context();
    let beaten = context.store().beat().await;
    context.watcher.set_queue_usage(beaten.as_ref().ok().copied());
    let failure = beaten.err();
    if let Some(error) = failure.as_ref().filter(|error| reported.as_ref() != Some(error) && !database.fences_nothing())
    {
        tracing::warn!(database = database.name(), %error, "control_not_listening");
    }
    *reported = failure;
}

/// Announces the fences enforced here if they have changed or the connection is new. Never opens a connection: the next
/// heartbeat does.
async fn announce(context: Context<'_>) {
    if context.unwatched.proxy_connection() == 0 {
        return;
    }
    if let Err(error) = enforcement::announce(context).await {
        tracing::debug!(database = context.environment.name, %error, "what is enforced is not announced");
    }
}

/// Reads the subjects of the notifications again. Releases or terminates own sessions below the epochs, so that other proxies
/// need not wait for them.
async fn attend(context: Context<'_>) {
    let news = context.memory.take_news();
    if news.all || !news.leases.is_empty() {
        issuer::follow(context, (!news.all).then_some(&news.leases)).await;
    }
    let mut read: Vec<(String, Epoch)> = Vec::new();
    if news.all {
        match context.store().epochs_above_admissions().await {
            Ok(epochs) => {
                epochs.iter().for_each(|(resource, epoch)| context.memory.learn(resource, *epoch));
                read.extend(epochs);
            }
            Err(error) => tracing::debug!(database = context.environment.name, %error, "epochs cannot be read"),
        }
    }
    let mut names = news.resources;
    if news.all {
        // Detects a missed reset. The number of these resources is bounded, unlike that of keys.
        names.extend(context.policies.plain_names());
    }
    if !names.is_empty() {
        match context.read_epochs(&names.iter().map(String::as_str).collect::<Vec<_>>()).await {
            Ok(epochs) => read.extend(epochs),
            Err(error) => tracing::debug!(database = context.environment.name, %error, "epochs cannot be read"),
        }
    }
    for (name, epoch) in read {
        if let Some(resource) = context.policies.find(&name)
            && let Err(error) = spare_or_end_own(&context.advance(&resource, epoch)).await
        {
            tracing::debug!(resource = name, %error, "sessions below the epoch are left to its drain");
        }
    }
}

async fn sweep(context: Context<'_>) {
    if let Err(error) = context.store().delete_dead(None).await {
        tracing::debug!(database = context.environment.name, %error, "dead processes' rows are left");
    }
}
