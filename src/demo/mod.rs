//! `fencegate demo`: the effect of a deposed leader's late write, without and with the proxy.
//!
//! Owns the sequence of the demo. Its proxy is this program, started as a user would start it.
//! Must never claim a result that was not read from the table, or leave anything behind.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a scene leaves it unfinished.

mod check;
mod leader;
mod story;
mod takeover;
mod transcript;

use crate::stage::{Stage, StageError};
use fencegate_leader::etcd::EtcdError;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use transcript::Transcript;

/// Time limit for an event that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks for the event.
const LOOK: Duration = Duration::from_millis(2);

/// Policies of the demo's proxy.
const POLICIES: &str = "version: 1
resources:
  - name: scheduler
    tables:
      - public.ticks
  - name: beats
    election: /demo/leader
    tables:
      - public.beats
";

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The servers could not be started.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A process could not be started.
    #[error("cannot set the demo up: {0}")]
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

/// Result of the demo.
#[derive(Debug)]
pub struct Played {
    /// Failed expectations; empty on success.
    pub failures: Vec<String>,
    /// The events of the last scene, for `fencegate timeline`.
    pub events: String,
}

/// Runs the demo.
/// Cancel-safe: when dropped, it stops its servers and removes its folder.
pub async fn run() -> Result<Played, DemoError> {
    let mut transcript = Transcript::new();
    transcript.line("fencegate demo: a cron scheduler on two nodes, A and B. Only the leader may run a tick.");
    transcript.line("Each election gives its winner a higher token; public.ticks says who ran each tick.");
    transcript.line("Starting a throwaway PostgreSQL, etcd, and fencegate in front ...");
    let stage = Stage::start(&std::env::current_exe()?, POLICIES).await?;
    story::play(&stage, &mut transcript).await
}

/// Polls until an event that must happen has happened.
async fn until<T>(what: &str, look: impl AsyncFn() -> Result<Option<T>, DemoError>) -> Result<T, DemoError> {
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
