//! Shutdown: no new clients, open transactions may finish within a limit, then all sessions end.
//!
//! Must never end a session in the middle of a message, nor before its transaction has ended unless time is up.

use super::process::Workers;
use super::sockets::Sockets;
use super::{process, reload, take_over};
use crate::state::database::SharedDatabase;
use crate::state::lifecycle::{FAREWELL, Phase};
use crate::state::shared::Shared;
use futures_util::future::join_all;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time limit for the remaining sessions to end and to log their end.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Signals that stop the proxy.
pub struct StopSignals(Signal, Signal);

impl StopSignals {
    /// Starts to listen. From then on the signals no longer kill the process.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

/// Serves the remaining sessions after a successor has taken over the sockets. Returns when no connection is left or
/// `drain_timeout` has passed. Cancel-safe: cancel requests are forwarded until the process ends.
pub async fn drain(shared: &Arc<Shared>, successor: UnixStream, workers: &Workers, hangup: &mut Signal) {
    let limit = shared.settings().limits.drain;
    process::taken_over();
    tracing::info!(sessions = shared.connections.places(), limit_seconds = limit.as_secs_f64(), "sockets_handed_over");
    let served = shared.clone();
    shared.background.spawn(async move { take_over::serve_cancels(&served, successor).await });
    let reload = async {
        reload::follow_successor(shared).await;
        reload::at_signal(shared, hangup).await;
    };
    tokio::select! {
        () = workers.none_left() => {}
        () = tokio::time::sleep(limit) => log_remaining_sessions(shared, "drain_timeout expired"),
        () = reload => {}
    }
}

/// Stops listening, and returns when no session remains, `shutdown_timeout` has passed, or another signal arrives. Not
/// cancel-safe: sessions may continue.
pub async fn shut_down(shared: &Shared, sockets: &Sockets, signals: &mut StopSignals) {
    let limit = shared.settings().limits.shutdown;
    tracing::info!(sessions = shared.connections.places(), limit_seconds = limit.as_secs_f64(), "stopping");
    shared.health.stop();
    // Set the phase first: once one client has been refused, no later client may be admitted.
    shared.set_phase(Phase::Draining);
    sockets.close_for_clients().await;
    tokio::select! {
        () = shared.connections.none_left() => {}
        () = tokio::time::sleep(limit) => log_remaining_sessions(shared, "shutdown_timeout expired"),
        () = signals.recv() => log_remaining_sessions(shared, "another signal"),
    }
    shared.set_phase(Phase::Ending);
    tokio::time::timeout(FAREWELL + END_LIMIT, shared.connections.none_left()).await.ok();
    sign_off(&shared.shared_databases()).await;
    tracing::info!("stopped");
}

/// Sends pending announcements to the other proxies and signs off, in all databases concurrently, so that none waits
/// for another. Cancel-safe: the other proxies may not be informed.
async fn sign_off(databases: &[Arc<SharedDatabase>]) {
    join_all(databases.iter().map(|database| database.sign_off())).await;
}

fn log_remaining_sessions(shared: &Shared, reason: &str) {
    tracing::warn!(sessions = shared.connections.places(), reason, "ending_sessions");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use fencegate_fence::Database;
    use fencegate_fence::background::Background;
    use fencegate_fence::session::Identity;
    use fencegate_fence::simulated::Server;
    use fencegate_policy::PolicySet;
    use std::future::pending;
    use tokio::sync::watch;
    use tokio::time::{Instant, sleep};

    /// A database with an open control connection.
    async fn database(name: &str) -> Arc<SharedDatabase> {
        let [backend_start, system_identifier, postmaster_start] = [const { String::new() }; 3];
        let process = Identity { pid: 1, backend_start, system_identifier, postmaster_start };
        let (server, metrics) = (Server::new(0, &process, []), Arc::new(Metrics::new().unwrap()));
        let fence = Database::over(
            |it| server.store("one", it),
            name,
            "one",
            fencegate_fence::Authority::new(Background::current()),
            metrics.fence.clone(),
            Background::current(),
        );
        let policies = watch::Sender::new(Arc::new(PolicySet::default()));
        let database = SharedDatabase::new(fence, policies.subscribe(), metrics);
        database.fence.announce_catalog().await;
        assert!(database.fence.is_open());
        database
    }

    #[tokio::test(start_paused = true)]
    async fn databases_sign_off_independently() {
        let [unfinished, unannounced, other] = [database("a").await, database("b").await, database("c").await];
        unfinished.unfinished.spawn(pending::<()>());
        unannounced.announcements.spawn(pending::<()>());
        let began = Instant::now();
        let all = [unfinished.clone(), unannounced, other.clone()];
        let signing_off = tokio::spawn(async move { sign_off(&all).await });
        // Much shorter than the interval at which its watcher would close it.
        sleep(Duration::from_millis(1)).await;
        assert!(!other.fence.is_open() && unfinished.fence.is_open());
        signing_off.await.unwrap();
        assert!(!unfinished.fence.is_open());
        assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
