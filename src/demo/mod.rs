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

pub use story::Played;
pub use transcript::DemoError;

use crate::stage::Stage;
use transcript::Transcript;

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
