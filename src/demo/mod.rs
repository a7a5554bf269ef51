//! `fencegate demo`: what a deposed leader's late write does to a table, without and with the proxy.
//!
//! Owns the course of the demo; the proxy in it is the program itself, run as a user would run it.
//! Must never claim what was not read back from the table, and must never leave anything behind.
//!
//! Not cancel-safe where nothing else is said: a scene that is dropped stays half played.

mod check;
mod leader;
mod story;
mod takeover;
mod transcript;

use crate::etcd::EtcdError;
use crate::stage::{Stage, StageError};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use transcript::Transcript;

/// The longest that the story waits for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(2);

/// What the demo's proxy enforces.
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

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// There are no servers.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A process could not be started.
    #[error("cannot set the demo up: {0}")]
    Start(#[from] std::io::Error),
    /// etcd cannot be asked.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A statement that only prepares the story failed.
    #[error("the demo's database: {}", crate::sql::message(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The story did not go on as it has to.
    #[error("the demo is stuck: {0}")]
    Story(String),
}

/// The demo when it is over.
#[derive(Debug)]
pub struct Played {
    /// What did not hold; empty when everything did.
    pub failures: Vec<String>,
    /// The events of the last scene, for `fencegate timeline`.
    pub events: String,
}

/// Plays the demo.
/// Cancel-safe: dropped, it stops its servers and removes its folder.
pub async fn run() -> Result<Played, DemoError> {
    let mut transcript = Transcript::new();
    transcript.line("fencegate demo: a cron scheduler on two nodes, A and B. Only the leader may run a tick.");
    transcript.line("Each election gives its winner a higher token; public.ticks says who ran each tick.");
    transcript.line("Starting a throwaway PostgreSQL, etcd, and fencegate in front ...");
    let stage = Stage::start(&std::env::current_exe()?, POLICIES).await?;
    story::play(&stage, &mut transcript).await
}

/// Looks every few milliseconds until something that has to happen is there.
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
