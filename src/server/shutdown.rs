//! The end of the proxy: no new client is let in, open transactions go on for a while, then all sessions end.
//!
//! Must never end a session in the middle of a message, nor before its transaction unless time is up.

use crate::state::lifecycle::{FAREWELL, Phase};
use crate::state::shared::Shared;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Then they are gone within this time, and the log says so of each.
const GONE: Duration = Duration::from_secs(1);

/// Other proxies are told within this time what was defined last; without that they find out by themselves, later.
const LAST_ANNOUNCEMENTS: Duration = Duration::from_secs(5);

/// The signals that ask the proxy to stop.
pub struct StopSignals(Signal, Signal);

impl StopSignals {
    /// From now on they are heard, and do not kill.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// The next one. Cancel-safe.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

/// Stops listening, and returns when no session is left, or `shutdown_timeout` is over, or at another signal.
/// Not cancel-safe: sessions may go on.
pub async fn shut_down(shared: &Shared, mut listeners: JoinSet<()>, signals: &mut StopSignals) {
    let limit = shared.settings().limits.shutdown;
    tracing::info!(sessions = shared.connections.places(), limit_seconds = limit.as_secs_f64(), "stopping");
    shared.health.stop();
    // First: once one client has been refused, no later one is let in.
    shared.set_phase(Phase::Draining);
    listeners.shutdown().await;
    tokio::select! {
        () = shared.connections.none_left() => {}
        () = tokio::time::sleep(limit) => say_who_is_left(shared, "shutdown_timeout is over"),
        () = signals.recv() => say_who_is_left(shared, "another signal"),
    }
    shared.set_phase(Phase::Ending);
    tokio::time::timeout(FAREWELL + GONE, shared.connections.none_left()).await.ok();
    tokio::time::timeout(LAST_ANNOUNCEMENTS, leave_databases(shared)).await.ok();
    tracing::info!("stopped");
}

/// Tells the other proxies what they have to know, and that this one is gone. Cancel-safe: they may not be told.
async fn leave_databases(shared: &Shared) {
    shared.announcements.close();
    shared.announcements.wait().await;
    for database in shared.shared_databases() {
        database.fence.close().await;
    }
}

fn say_who_is_left(shared: &Shared, reason: &str) {
    tracing::warn!(sessions = shared.connections.places(), reason, "ending_sessions");
}
