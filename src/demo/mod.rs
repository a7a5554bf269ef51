//! `fencegate demo`: what a deposed leader's late write does to a table, without and with the proxy.
//!
//! Owns the course of the demo; the proxy in it is the program itself, run as a user would run it.
//! Must never claim what was not read back from the table, and must never leave anything behind.
//!
//! Not cancel-safe where nothing else is said: a scene that is dropped stays half played.

mod check;
mod leader;
mod stage;
mod story;
mod timeline;

use stage::Stage;
use timeline::Timeline;

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No PostgreSQL on this machine.
    #[error(
        "no PostgreSQL found in PATH or /usr/lib/postgresql: install it (Debian, Ubuntu: apt-get install postgresql)"
    )]
    NoPostgres,
    /// The temporary folder or a process could not be made.
    #[error("cannot set the demo up: {0}")]
    Start(std::io::Error),
    /// PostgreSQL or the proxy did not come up.
    #[error("the demo's servers did not start; the end of their log:\n{0}")]
    Servers(String),
    /// A statement that only prepares the story failed.
    #[error("the demo's database: {}", with_source(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The story did not go on as it has to.
    #[error("the demo is stuck: {0}")]
    Story(String),
}

/// Plays the demo. Returns what did not hold; empty when everything did.
/// Cancel-safe: dropped, it stops its servers and removes its folder.
///
/// # Errors
/// When it could not be shown.
pub async fn run() -> Result<Vec<String>, DemoError> {
    let mut timeline = Timeline::new();
    timeline.line("fencegate demo: a cron scheduler on two nodes, A and B. Only the leader may run a tick.");
    timeline.line("Each election gives its winner a higher token; public.ticks says who ran each tick.");
    timeline.line("Starting a throwaway PostgreSQL and fencegate in front of it ...");
    let stage = Stage::start().await?;
    story::play(&stage, &mut timeline).await
}

fn with_source(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
