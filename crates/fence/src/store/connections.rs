//! The connections of one proxy to a database: one lane for each kind of Query, and single-use connections.
//!
//! Owns which Query runs on which connection, and the order in which connections close. Must never let a Query wait behind
//! one of a kind that may take longer.
//!
//! Functions here are not cancel-safe: a Query that was sent continues.

use super::announcer::Announcer;
use super::common::{Common, Process};
use super::control::{BETWEEN_LOOKS, Lane};
use super::error::LIMIT;
use super::sql::lanes::{FOR_ADMITS, FOR_EPOCHS, FOR_LOOKS, FOR_READINGS, FOR_WAITS};
use super::{Listener, StoreError, sql};
use fencegate_postgres::sql::{StatementResult, answers, rows};
use fencegate_postgres::tls::ControlConfig;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryRow;

/// The connections, which are opened when needed.
#[derive(Debug)]
pub(super) struct Connections {
    control: ControlConfig,
    /// For Admits.
    pub(super) admission: Lane,
    /// For epochs. Its commits are durable.
    pub(super) publish: Lane,
    /// For looks, signals and deletes.
    pub(super) look: Arc<Lane>,
    pub(super) announcer: Arc<Announcer>,
    /// For Queries of `admission` and `publish` that wait for a lock.
    pub(super) wait: Lane,
    /// Held by the Query that runs on `wait`.
    pub(super) waiting: Mutex<()>,
    /// For readings of the catalog. A drain's looks must neither wait for a reading nor be lost with it.
    pub(super) reading: Lane,
    /// Receives notifications. Any role can flood it with them, so only heartbeats and readings of the catalog wait for its
    /// answers.
    listening: Arc<Lane>,
    pub(super) common: Arc<Common>,
}

impl Connections {
    pub(super) fn new(control: ControlConfig, listener: Arc<dyn Listener>) -> Self {
        let common = Arc::new(Common::default());
        let lane = |synchronous_commit, prepared, listener| {
            Lane::new(control.clone(), synchronous_commit, prepared, listener, common.clone())
        };
        let admission = lane("off", FOR_ADMITS, None);
        let (publish, look) = (lane("on", FOR_EPOCHS, None), Arc::new(lane("off", FOR_LOOKS, None)));
        let announcer = Announcer::new(look.clone());
        let (wait, waiting) = (lane("on", FOR_WAITS, None), Mutex::default());
        let (reading, listening) = (lane("off", FOR_READINGS, None), Arc::new(lane("off", &[], Some(listener))));
        Connections { control, admission, publish, look, announcer, wait, waiting, reading, listening, common }
    }

    fn lanes(&self) -> [&Lane; 6] {
        [&self.admission, &self.publish, &self.wait, &self.reading, &self.listening, &self.look]
    }

    pub(super) async fn look(&self, query: &str) -> Result<Vec<StatementResult>, StoreError> {
        match self.look.run(query).await {
            // Boxed, so that the future of every look stays small.
            Err(StoreError::LockNotAvailable) => Box::pin(self.look.run_past_table_locks(query)).await,
            Err(error @ StoreError::TimedOut(_)) => Err(self.common.table_locks.explain(error, LIMIT)),
            answers => answers,
        }
    }

    /// Runs a look and returns the rows that can be decoded.
    pub(super) async fn read<T, C: FromIterator<T>>(
        &self,
        query: &str,
        read: impl Fn(&SimpleQueryRow) -> Option<T>,
    ) -> Result<C, StoreError> {
        Ok(rows(&self.look(query).await?).filter_map(read).collect())
    }

    /// Runs a look while no Query runs on any other connection of this proxy, and none can open. `query` receives their
    /// server processes.
    pub(super) async fn look_alone(
        &self,
        query: impl FnOnce(&[Process]) -> String,
    ) -> Result<Vec<StatementResult>, StoreError> {
        let _none_passes =
            timeout(LIMIT, self.common.passing.write()).await.map_err(|_| StoreError::TimedOut(LIMIT))?;
        let others = [
            self.admission.hold().await,
            self.publish.hold().await,
            self.wait.hold().await,
            self.reading.hold().await,
            self.listening.hold().await,
        ];
        let own: Vec<_> = others.iter().filter_map(|slot| slot.process()).chain(self.common.leaving()).collect();
        self.look(&query(&own)).await
    }

    /// Opens the listening connection in the background, if it is not open. Remembered epochs are used only after it listens.
    pub(super) fn listen(&self) {
        if !self.listening.is_open() {
            drop(self.query_in_background("SELECT".to_owned()));
        }
    }

    /// Runs a Query on the listening connection. If opening that connection takes longer than the limit, it continues in the
    /// background.
    pub(super) async fn query_listener(&self, query: String) -> Result<Vec<StatementResult>, StoreError> {
        timeout(LIMIT, self.query_in_background(query))
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or(Err(StoreError::TimedOut(LIMIT)))
    }

    fn query_in_background(&self, query: String) -> JoinHandle<Result<Vec<StatementResult>, StoreError>> {
        let listening = self.listening.clone();
        tokio::spawn(async move { listening.run(&query).await })
    }

    /// Reads the catalog. Changes during the reading are announced on the listening connection, which must therefore answer
    /// before the reading begins. A reading waits only for locks on views, so its own error is returned unchanged.
    pub(super) async fn read_catalog(&self, query: &str) -> Result<Vec<StatementResult>, StoreError> {
        self.query_listener("SELECT".to_owned()).await?;
        self.reading.run(query).await
    }

    /// Runs a Query over a separate connection, which does not require the schema.
    pub(super) async fn query_once(&self, query: &str) -> Result<Vec<StatementResult>, StoreError> {
        let passes = self.common.passing.clone().read_owned().await;
        let client = self.common.open_once(&self.control, passes).await?;
        client.simple_query(query).await.map(answers).map_err(|error| StoreError::Refused(error.into()))
    }

    pub(super) fn is_open(&self) -> bool {
        self.lanes().iter().any(|lane| lane.is_open())
    }

    /// Lets the next operation try to connect even if a recent attempt failed. Cancel-safe.
    pub(super) async fn forget_failure(&self) {
        self.look.forget_failure().await;
        self.publish.forget_failure().await;
        self.wait.forget_failure().await;
        self.reading.forget_failure().await;
    }

    pub(super) fn close_outdated(&self) {
        self.lanes().iter().for_each(|lane| lane.close_outdated());
    }

    /// As [`super::Store::close`].
    pub(super) async fn close(&self, wait: bool) {
        // Evaluated each time: connections may be kept closed in the meantime. Then the watcher's close must wait, too.
        let waits = || wait || self.common.is_kept_closed();
        if waits() {
            // Wait until single-use connections have ended, or the server does not answer.
            timeout(LIMIT, self.common.passing.write()).await.map(drop).ok();
        }
        for lane in self.lanes() {
            // The last lane queries the processes of connections that were closed before.
            if waits() && std::ptr::eq(lane, &*self.look) {
                self.wait_for_leaving().await;
            }
            if waits() { lane.end().await } else { lane.close().await }
        }
    }

    /// Returns after the server processes of recently abandoned connections have ended, or if the server does not answer.
    async fn wait_for_leaving(&self) {
        let question = sql::proxy::alive(&self.common.leaving());
        let have_ended = async {
            while self.look(&question).await.is_ok_and(|answers| rows(&answers).next().is_some()) {
                sleep(BETWEEN_LOOKS).await;
            }
        };
        timeout(LIMIT, have_ended).await.ok();
    }
}
