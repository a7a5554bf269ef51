//! Whether the proxy is ready for clients, and what a scrape of its metrics finds.
//!
//! Must never keep a connection to the server, nor ask it more than once a second, however often clients ask.

use super::shared::Shared;
use crate::fence::probe;
use crate::metrics::Now;
use crate::metrics::http::Pages;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// A server that does not answer within this time is not there for clients either.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// What the server answered counts for this long.
const FRESH: Duration = Duration::from_secs(1);

/// What is known of the proxy's own state.
#[derive(Debug, Default)]
pub struct Health {
    stopping: AtomicBool,
    /// When the server was asked last, and why it is not there if it is not. Held while it is asked: one asks for all.
    asked: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl Health {
    /// From now on the proxy is not ready: it is about to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

impl Pages for Shared {
    async fn metrics(&self) -> String {
        let ready = self.ready().await.is_ok();
        let mut tokens = Vec::new();
        for database in self.shared_databases() {
            let name = database.fence.name();
            let known = database.fence.known_tokens().into_iter();
            tokens.extend(known.map(|(resource, token)| (name.to_owned(), resource, token)));
        }
        self.metrics.text(Now { sessions: self.sessions.count(), ready, tokens })
    }

    /// Policies are loaded before the first request, so that only the server can be missing.
    async fn ready(&self) -> Result<(), String> {
        if self.health.stopping.load(Ordering::Relaxed) {
            return Err("the proxy is stopping".to_owned());
        }
        let mut asked = self.health.asked.lock().await;
        if let Some((_, answer)) = asked.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return answer.clone();
        }
        let answer = self.can_fence().await;
        *asked = Some((Instant::now(), answer.clone()));
        answer
    }
}

impl Shared {
    /// Logs if the control connection cannot be used: it may not be needed before the first leader writes.
    /// Cancel-safe.
    pub async fn check_control(self: Arc<Self>) {
        let settings = self.settings();
        let database = settings.control_database();
        if let Err(error) = self.can_control(database, false).await {
            tracing::warn!(database, error, "control_unusable");
        }
    }

    /// New tokens can be admitted, as far as the control connections go: in any database, and in those that are in use.
    async fn can_fence(&self) -> Result<(), String> {
        self.can_control(self.settings().control_database(), false).await?;
        for database in self.shared_databases().iter().filter(|it| it.fence.has_sessions() && it.has_fences()) {
            self.can_control(database.fence.name(), true).await?;
        }
        Ok(())
    }

    /// A control connection to the database can be opened, and may do what fences need. Cancel-safe.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub async fn can_control(&self, database: &str, needs_schema: bool) -> Result<(), String> {
        let control = self.encryption.control_for(&self.settings(), database);
        let no_answer = |_| Err(format!("the server did not answer within {} s", PROBE_LIMIT.as_secs()));
        timeout(PROBE_LIMIT, probe(&control, needs_schema)).await.unwrap_or_else(no_answer)
    }
}
