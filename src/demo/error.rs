//! Why the demo could not run: among other reasons because an event that must happen did not.

use crate::stage::StageError;
use fencegate_leader::etcd::EtcdError;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Time limit for an event that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks for the event.
const LOOK: Duration = Duration::from_millis(2);

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The servers could not be started.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A process could not be started.
    #[error("cannot set up the demo: {0}")]
    Start(#[from] std::io::Error),
    /// etcd did not answer.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A statement that only prepares the story failed.
    #[error("the demo's database: {}", fencegate_postgres::sql::message(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The story took an unexpected course.
    #[error("the demo is stuck: {0}")]
    Story(String),
}

/// Polls until an event that must happen has happened.
pub(super) async fn until<T>(what: &str, look: impl AsyncFn() -> Result<Option<T>, DemoError>) -> Result<T, DemoError> {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            return Err(DemoError::Story(what.to_owned()));
        }
        sleep(LOOK).await;
    }
}
