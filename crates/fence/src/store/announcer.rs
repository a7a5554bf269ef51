//! Notifications to other proxies: hints to read immediately what they would otherwise read within seconds.
//!
//! Owns when and on which connection notifications are sent. COMMIT of a transaction with NOTIFY takes a server-wide lock that
//! any role can hold for seconds, and fails if the queue is full. Queries of the protocol therefore never notify. Must never
//! delay such a Query.

use super::StoreError;
use super::control::Lane;
use super::error::LIMIT;
use super::sql;
use parking_lot::Mutex as Immediate;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The limit on the wait for the server's lock on the connection shared with looks.
const FIRST_TIMEOUT: Duration = Duration::from_millis(5);
/// The limit on a connection for notifications only. After it, the notifications are dropped.
const LATE: Duration = Duration::from_secs(1);
/// Maximum number of payloads that wait to be sent. Further ones are dropped.
const MOST: usize = 1_000;

/// Sends one batch of notifications at a time.
#[derive(Debug)]
pub(super) struct Announcer {
    look: Arc<Lane>,
    waiting: Immediate<BTreeSet<String>>,
    sending: Mutex<()>,
}

impl Announcer {
    /// `look`: the connection shared with looks.
    pub(super) fn new(look: Arc<Lane>) -> Arc<Self> {
        Arc::new(Announcer { look, waiting: Immediate::default(), sending: Mutex::default() })
    }

    /// Sends the payload in the background.
    pub(super) fn announce(self: &Arc<Self>, payload: &str) {
        if self.add(payload) {
            let announcer = self.clone();
            tokio::spawn(async move {
                if let Err(error) = announcer.send().await {
                    tracing::debug!(database = announcer.look.config.database(), %error, "notifications_dropped");
                }
            });
        }
    }

    /// Returns after the payload is sent or dropped. Cancel-safe: a separate task sends it.
    pub(super) async fn announced(self: &Arc<Self>, payload: &str) -> Result<(), StoreError> {
        self.add(payload);
        let announcer = self.clone();
        tokio::spawn(async move { announcer.send().await }).await.unwrap_or(Err(StoreError::TimedOut(LIMIT)))
    }

    /// Queues the payload. Returns true if no task is going to send the queue yet.
    fn add(&self, payload: &str) -> bool {
        let mut waiting = self.waiting.lock();
        let is_first = waiting.is_empty();
        if waiting.len() < MOST {
            waiting.insert(payload.to_owned());
        }
        is_first
    }

    async fn send(&self) -> Result<(), StoreError> {
        let _turn = self.sending.lock().await;
        let payloads = std::mem::take(&mut *self.waiting.lock());
        if payloads.is_empty() {
            return Ok(());
        }
        self.notify(&sql::epoch::announce(&payloads)).await
    }

    async fn notify(&self, query: &str) -> Result<(), StoreError> {
        // Use the shared connection only if it is open: a closed one stays closed.
        if self.look.is_open() {
            if let Some(process) = self.look.process() {
                self.look.common.announces(&process);
            }
            match self.look.run(&sql::lock::with_lock_timeout(FIRST_TIMEOUT, query)).await {
                Err(StoreError::LockNotAvailable) => {}
                sent => return sent.map(drop),
            }
        }
        let query = sql::lock::with_lock_timeout(LATE, query);
        let common = &self.look.common;
        let send = async {
            let passes = common.passing.clone().read_owned().await;
            let client = common.open_once(&self.look.config, passes).await?;
            let sent = client.simple_query(&query).await;
            sent.map(drop).map_err(|error| StoreError::Refused(error.into()))
        };
        timeout(LIMIT, send).await.map_err(|_| StoreError::TimedOut(LIMIT))?
    }
}
