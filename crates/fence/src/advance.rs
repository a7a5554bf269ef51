//! Advance: publish a higher token, drain all processes below it, mark the epoch as drained.
//!
//! Owns the order of these steps. Any proxy may repeat any step. The next proxy that needs the epoch finishes an incomplete
//! advance.
//!
//! Functions here are not cancel-safe: a step may be left incomplete.

use super::drain::drain;
use super::fence_error::FenceError;
use super::mark::mark;
use super::publish::publish;
use super::session::Epoch;
use super::step::Advance;
use tokio::time::Instant;

/// Raises the epoch, unless the current one is as high, and drains lower admissions. `known`: the current epoch, as it was
/// read. The caller has checked that the token may raise the fence (`issuer.rs`). Ok does not mean admitted: run Admit again.
pub(super) async fn raise(advance: &Advance<'_>, known: Option<Epoch>, deadline: Instant) -> Result<(), FenceError> {
    match publish(advance, known).await? {
        Some(current) if current == advance.to => settle(advance, deadline).await,
        // Raised further, or reset, by another proxy or session.
        _ => Ok(()),
    }
}

/// Drains lower admissions, and marks the epoch. Ok does not mean admitted: run Admit again.
pub(super) async fn settle(advance: &Advance<'_>, deadline: Instant) -> Result<(), FenceError> {
    let start = Instant::now();
    let drained = drain(advance, deadline).await;
    let waited = start.elapsed();
    advance.context.environment.metrics.drain_seconds.observe(waited.as_secs_f64());
    drained?;
    mark(advance, waited).await
}
