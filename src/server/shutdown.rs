//! The end of the proxy: no new client is let in, open transactions go on for a while, then all sessions end.
//!
//! Must never end a session in the middle of a message, nor before its transaction unless time is up.

use crate::state::database::SharedDatabase;
use crate::state::lifecycle::{FAREWELL, Phase};
use crate::state::shared::Shared;
use futures_util::future::join_all;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Then they are gone within this time, and the log says so of each.
const GONE: Duration = Duration::from_secs(1);

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
    sign_off(&shared.shared_databases()).await;
    tracing::info!("stopped");
}

/// Tells the other proxies what they have to know, and that this one is gone: in all databases at the same time, so that none
/// waits for another. Cancel-safe: they may not be told.
async fn sign_off(databases: &[Arc<SharedDatabase>]) {
    join_all(databases.iter().map(|database| database.sign_off())).await;
}

fn say_who_is_left(shared: &Shared, reason: &str) {
    tracing::warn!(sessions = shared.connections.places(), reason, "ending_sessions");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Database;
    use crate::fence::session::Identity;
    use crate::metrics::Metrics;
    use crate::policy::PolicySet;
    use crate::support::store::Server;
    use std::future::pending;
    use tokio::sync::watch;
    use tokio::time::{Instant, sleep};

    /// A database with an open control connection.
    async fn database(name: &str) -> Arc<SharedDatabase> {
        let [backend_start, system_identifier, postmaster_start] = [const { String::new() }; 3];
        let process = Identity { pid: 1, backend_start, system_identifier, postmaster_start };
        let (server, metrics) = (Server::new(0, &process, []), Arc::new(Metrics::new().unwrap()));
        let fence = Database::over(|it| server.store("one", it), name, "one", None, metrics.clone());
        let policies = watch::Sender::new(Arc::new(PolicySet::default()));
        let database = SharedDatabase::new(fence, policies.subscribe(), metrics);
        database.fence.announce_catalog().await;
        assert!(database.fence.is_open());
        database
    }

    #[tokio::test(start_paused = true)]
    async fn no_database_waits_for_another_to_sign_off() {
        let [unfinished, unannounced, other] = [database("a").await, database("b").await, database("c").await];
        unfinished.unfinished.spawn(pending::<()>());
        unannounced.announcements.spawn(pending::<()>());
        let began = Instant::now();
        let all = [unfinished.clone(), unannounced, other.clone()];
        let signing_off = tokio::spawn(async move { sign_off(&all).await });
        // Long before its watcher would close it.
        sleep(Duration::from_millis(1)).await;
        assert!(!other.fence.is_open() && unfinished.fence.is_open());
        signing_off.await.unwrap();
        assert!(!unfinished.fence.is_open());
        assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
